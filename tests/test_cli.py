"""python -m mxloop: commands, their output and their exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nets
import numpy as np
import pytest
from test_compat import fake_mxnet
from test_states_format import assert_same

from mxloop import FeedForward, cli, mx
from mxloop.data import ArrayIter
from mxloop.states_format import decode_states

ROOT = Path(__file__).resolve().parent.parent


def mxloop(*words, code=0, cwd=None):
    """Run a command in a new process; return its output and its errors."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mxloop", *map(str, words)],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def called(capsys, *words, code=0):
    """Run a command here; return its output and its errors."""
    assert cli.main([str(word) for word in words]) == code
    return capsys.readouterr()


# --- The command line ---------------------------------------------------------------------------


def test_help_lists_every_command():
    output, _ = mxloop("--help")
    for name, text in cli.COMMANDS.items():
        assert name in output
        assert text in output


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    assert cli.COMMANDS[command] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [[], ["inspekt"], ["inspect"], ["summary", "m", "x"]], ids=str)
def test_a_mistake_in_the_command_line_is_one_line_and_code_2(words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failure_is_one_line_and_code_1(tmp_path):
    _, errors = mxloop("summary", tmp_path / "m", 1, code=1)
    assert errors.startswith("mxloop summary: error: there is no file")
    assert errors.count("\n") == 1


def test_importing_mxloop_without_mxnet_fails_but_in_the_command():
    code = "import sys; sys.modules['mxnet'] = None; import mxloop"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "MXNet is not installed" in done.stderr.splitlines()[-1]


def test_another_command_without_mxnet_is_one_line(tmp_path):
    fake_mxnet(tmp_path, "raise ModuleNotFoundError('no', name='mxnet')")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "mxloop", "inspect", "m"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("mxloop inspect: error: MXNet is not installed")
    assert done.stderr.count("\n") == 1


# --- convert-states -----------------------------------------------------------------------------


def module(optimizer, kvstore=None, devices=1):
    """A Module of MXNet after five steps."""
    made = mx.mod.Module(nets.mlp(), context=[mx.cpu(i) for i in range(devices)])
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    made.fit(
        mx.io.NDArrayIter(*nets.samples(40), 8),
        num_epoch=1,
        arg_params=args,
        optimizer=optimizer,
        optimizer_params={"learning_rate": 0.01},
        kvstore=kvstore,
    )
    return made


def states_by_name(made, names):
    """The updater's own states, under the parameters' names."""
    held = made._kvstore._updater if made._update_on_kvstore else made._updater
    step = 1 if made._update_on_kvstore else len(made._context)
    found = {}
    for i, name in enumerate(names):
        found[name] = held.states[name if name in held.states else i * step]
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("kvstore", "devices"), [(None, 1), (None, 2), ("local", 2)])
def test_states_of_a_module_come_out_under_the_parameters_names(
    tmp_path, capsys, optimizer, kvstore, devices
):
    made = module(optimizer, kvstore, devices)
    made.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    file = tmp_path / "m-0001.states"
    pickled = file.read_bytes()
    flags = [] if kvstore else ["--devices", devices]
    output = called(capsys, "convert-states", file, *flags, "--num-update", 5).out
    names = list(nets.params(nets.mlp(), data=(8, 10))[0])
    assert f"{len(names)} parameters" in output
    read = decode_states(file.read_bytes())
    assert_same({name: read[name][0] for name in names}, states_by_name(made, names))
    assert {number for _, number in read.values()} == {5}
    assert (tmp_path / "m-0001.states.stock").read_bytes() == pickled


def test_training_goes_on_from_a_modules_states_as_mxnet_would(tmp_path, capsys):
    made = module("adam")
    made.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    called(capsys, "convert-states", tmp_path / "m-0001.states", "--num-update", 5)
    model = FeedForward.load(
        tmp_path / "m",
        1,
        load_optimizer_states=True,
        num_epoch=2,
        optimizer="adam",
        learning_rate=0.01,
    )
    x, y = nets.samples(40)
    model.fit(ArrayIter(x, y, 8))
    # The same module, five steps further.
    for batch in mx.io.NDArrayIter(x, y, 8):
        made.forward_backward(batch)
        made.update()
    nets.assert_close(model.arg_params, made.get_params()[0])


def test_a_file_that_holds_the_optimizer_needs_nothing_else(tmp_path, capsys):
    made = module("adam")
    file = tmp_path / "dumped"
    file.write_bytes(made._updater.get_states(dump_optimizer=True))
    output = called(capsys, "convert-states", file, "-o", tmp_path / "new").out
    assert "does not say" not in output
    read = decode_states((tmp_path / "new").read_bytes())
    assert {number for _, number in read.values()} == {5}
    assert set(read) == set(nets.params(nets.mlp(), data=(8, 10))[0])
    assert file.read_bytes()[:1] == b"\x80"


def test_counts_that_nobody_gave_are_told(tmp_path, capsys):
    module("sgd").save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    assert "--num-update" in called(capsys, "convert-states", tmp_path / "m-0001.states").out


def test_a_converted_file_is_left_as_it_is(tmp_path, capsys):
    file = tmp_path / "m-0001.states"
    module("sgd").save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    called(capsys, "convert-states", file)
    before = file.read_bytes()
    assert "no conversion" in called(capsys, "convert-states", file).out
    assert file.read_bytes() == before


@pytest.mark.parametrize("case", ["missing", "text", "numbered", "devices", "kept"])
def test_what_cannot_be_converted_is_one_line(tmp_path, capsys, case):
    file, flags = tmp_path / "m-0001.states", []
    module("sgd", devices=2).save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    if case == "missing":
        file.unlink()
    elif case == "text":
        file.write_text("hello")
    elif case == "numbered":
        (tmp_path / "m-symbol.json").unlink()
    elif case == "kept":
        (tmp_path / "m-0001.states.stock").touch()
        flags = ["--devices", 2]
    before = file.read_bytes() if file.exists() else None
    errors = called(capsys, "convert-states", file, *flags, code=1).err
    assert errors.count("\n") == 1
    assert len(errors) <= 300
    assert before == (file.read_bytes() if file.exists() else None)


# --- summary and inspect ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A prefix with checkpoints of two epochs."""
    prefix = tmp_path_factory.mktemp("run") / "m"
    model = FeedForward(nets.mlp(), num_epoch=2, learning_rate=0.1)
    model.fit(ArrayIter(*nets.samples(40), 8), checkpoint=prefix, seed=1)
    return prefix


def test_summary_shows_the_layers_of_a_checkpoint(saved, capsys):
    output = called(capsys, "summary", saved, 2, "--shape", "data=8,10").out
    assert "8 x 16" in output
    assert f"{16 * 11 + 4 * 17} parameters" in output
    without = called(capsys, "summary", saved, 2).out
    assert "1 x 16" in without  # the checkpoint tells the shape of a sample


def test_summary_of_what_mxnet_wrote_shows_the_parameters(tmp_path, capsys):
    args, aux = nets.params(nets.mlp(), data=(8, 10))
    mx.model.save_checkpoint(str(tmp_path / "m"), 3, nets.mlp(), args, aux)
    output = called(capsys, "summary", tmp_path / "m", 3).out
    assert f"{16 * 11 + 4 * 17} parameters" in output
    assert "?" in output


def test_inspect_lists_what_can_be_resumed(saved, capsys):
    lines = called(capsys, "inspect", saved).out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 2", "epoch 1"]
    assert all("valid; 244 numbers in 4 arrays; can be resumed" in line for line in lines)
    told = [
        json.loads(line) for line in called(capsys, "inspect", saved, "--json").out.split("\n")[:2]
    ]
    assert [(each["epoch"], each["valid"], each["resumable"]) for each in told] == [
        (2, True, True),
        (1, True, True),
    ]


def test_inspect_tells_a_damaged_checkpoint(saved, tmp_path, capsys):
    for file in saved.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    params = tmp_path / "m-0002.params"
    data = bytearray(params.read_bytes())
    data[-1] ^= 1
    params.write_bytes(data)
    lines = called(capsys, "inspect", tmp_path / "m", code=1).out.splitlines()
    assert "DAMAGED" in lines[0]
    assert "m-0002.params" in lines[0]
    assert "valid" in lines[1]


def test_inspect_reads_what_mxnet_wrote(tmp_path, capsys):
    args, aux = nets.params(nets.conv_bn(), data=(2, 1, 12, 12))
    mx.model.save_checkpoint(str(tmp_path / "m"), 3, nets.conv_bn(), args, aux)
    (line,) = called(capsys, "inspect", tmp_path / "m").out.splitlines()
    numbers = sum(np.prod(a.shape) for a in [*args.values(), *aux.values()])
    assert line == (
        f"epoch 3: readable (no manifest: no checksums); {numbers:,} numbers in 14 arrays; "
        "without optimizer states"
    )


def test_inspect_of_nothing_fails(tmp_path, capsys):
    assert "no checkpoint" in called(capsys, "inspect", tmp_path / "m", code=1).err
