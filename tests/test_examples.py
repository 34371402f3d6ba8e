"""The example scripts, run as a user runs them: exit codes, accuracy, one-line errors, logs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxloop import checkpoint, load_checkpoint, mx

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "example" / "image-classification"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (python .*)$", README, re.MULTILINE)


def run(script, *flags, cwd=None, code=0, path=str(ROOT)):
    """Run a script; return its output, and its errors as lines, once the exit code is right."""
    # One thread: these nets are small, and the tests share the machine.
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, flags)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    # MXNet's own notes, such as which backend it uses, begin with a time.
    errors = [
        line for line in done.stderr.splitlines() if not re.match(r"\[\d\d:\d\d:\d\d\]", line)
    ]
    return done.stdout, errors


def values(output, name):
    return [float(value) for value in re.findall(rf"{name}=([\d.]+)", output)]


def final_accuracy(output):
    return float(re.findall(r"^Final validation accuracy: ([\d.]+)$", output, re.MULTILINE)[0])


# --- train_mnist.py -----------------------------------------------------------------------------


def test_without_a_flag_it_learns_the_digits_and_says_that_they_are_not_mnist(tmp_path):
    output, errors = run("train_mnist.py", cwd=tmp_path)
    assert final_accuracy(output) > 0.95
    assert "not MNIST" in output.splitlines()[0]
    assert len(values(output, "Validation-accuracy")) == 20
    assert errors == []


def test_a_run_repeats_with_its_seed_and_only_with_it():
    first, again, other = (
        values(run("train_mnist.py", "--num-epochs", 2, "--seed", seed)[0], "accuracy")
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_two_contexts_give_what_one_gives():
    # The MLP, not LeNet: where two inputs of a max pooling are all but equal, rounding decides
    # which one learns, on one device as well.
    one, *others = (
        run("train_mnist.py", "--num-epochs", 2, "--loss", "ce", *flags)[0]
        for flags in (["--cpus", 1], ["--cpus", 2], ["--cpus", 2, "--kv-store", "local"])
    )
    for name in ("accuracy", "cross-entropy"):
        expected = np.array(values(one, name))
        assert len(expected) == 4
        for several in others:
            assert np.abs(values(several, name) - expected).max() < 1e-4


def test_lenet_learns_the_digits_in_three_epochs_on_two_contexts():
    output, _ = run("train_mnist.py", "--network", "lenet", "--num-epochs", 3, "--cpus", 2)
    assert final_accuracy(output) > 0.95


def arrays_of(prefix, epoch):
    _, args, auxs = load_checkpoint(prefix, epoch)
    return {name: value.asnumpy() for name, value in {**args, **auxs}.items()}


def test_training_goes_on_from_a_saved_epoch_as_if_it_had_never_stopped(tmp_path):
    common = ["--lr-step-epochs", "1,3"]
    run("train_mnist.py", *common, "--num-epochs", 4, "--model-prefix", tmp_path / "whole")
    parts = [*common, "--model-prefix", tmp_path / "parts"]
    run("train_mnist.py", *parts, "--num-epochs", 2)
    output, _ = run("train_mnist.py", *parts, "--num-epochs", 4, "--load-epoch", 2)
    assert re.findall(r"Epoch\[(\d)\] Train-acc", output) == ["2", "3"]
    found = arrays_of(tmp_path / "parts", 4)
    for name, value in arrays_of(tmp_path / "whole", 4).items():
        assert np.array_equal(value, found[name]), name


def test_small_batches_that_are_added_up_train_as_large_ones_do(tmp_path):
    """The rate falls after the same epochs, too."""
    common = ["--lr-step-epochs", "1,2", "--num-epochs", 3, "--num-examples", 300]
    flags = {"large": ["--batch-size", 64], "small": ["--batch-size", 16, "--accumulate", 4]}
    for name, own in flags.items():
        run("train_mnist.py", *common, *own, "--model-prefix", tmp_path / name)
    small, large = (arrays_of(tmp_path / name, 3) for name in ("small", "large"))
    for name, value in large.items():
        assert np.abs(small[name] - value).max() < 1e-5, name


def test_training_goes_on_from_what_mxnet_saved_without_momentum(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    flags = "--mom 0 --num-epochs 2 --model-prefix m"
    assert main_in_process(monkeypatch, capfd, flags)[0] == 0
    symbol, args, auxs = mx.model.load_checkpoint("m", 1)
    mx.model.save_checkpoint("stock", 1, symbol, args, auxs)
    code, _ = main_in_process(
        monkeypatch, capfd, flags.replace("prefix m", "prefix stock --load-epoch 1")
    )
    assert code == 0
    found = arrays_of("stock", 2)
    for name, value in arrays_of("m", 2).items():
        assert np.abs(value - found[name]).max() < 1e-6, name


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends_with_its_exit_code(tmp_path, number, code):
    command = [sys.executable, str(EXAMPLES / "train_mnist.py"), "--num-epochs", "500"]
    command += ["--model-prefix", str(tmp_path / "m"), "--save-period", "500"]
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1])}
    child = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in child.stdout:
        if line.startswith("Epoch[1]"):
            break
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code
    assert errors.splitlines()[-1].startswith("ended: ")
    assert checkpoint.newest(tmp_path / "m").epoch >= 1


def test_the_save_period_counts_epochs_and_the_last_is_saved_too(tmp_path):
    run(
        "train_mnist.py", "--num-epochs", 3, "--model-prefix", "m", "--save-period", 2, cwd=tmp_path
    )
    names = sorted(path.name for path in tmp_path.glob("*.params"))
    assert names == ["m-0002.params", "m-0003.params"]
    symbol, arg_params, _ = mx.model.load_checkpoint(str(tmp_path / "m"), 2)
    assert set(arg_params) == set(symbol.list_arguments()) - {"data", "softmax_label"}


def test_an_accuracy_below_the_target_fails():
    output, errors = run("train_mnist.py", "--num-epochs", 1, "--target-acc", 0.99, code=1)
    assert final_accuracy(output) < 0.99
    assert len(errors) == 1
    assert "0.99" in errors[0]


def test_test_io_only_reads():
    output, _ = run("train_mnist.py", "--test-io", 1, "--disp-batches", 10)
    assert re.search(r"^Read 1500 samples at \d+ samples/s$", output, re.MULTILINE)
    assert "Epoch" not in output


def test_metrics_monitor_and_speed_are_shown_on_request():
    output, _ = run(
        "train_mnist.py",
        *["--num-epochs", 1, "--top-k", 3, "--loss", "ce", "--monitor", 10, "--disp-batches", 10],
    )
    assert "Validation-top_k_accuracy_3" in output
    assert "Validation-cross-entropy" in output
    assert re.search(r"fc1_weight .*cpu\(0\)", output)
    assert len(re.findall(r"Batch \[[\d-]+\]\s+Speed: ", output)) == 2


def test_mnist_files_train_as_well(tmp_path):
    for name, n in (("train", 64), ("t10k", 20)):
        labels = np.arange(n, dtype="uint8") % 10
        images = np.repeat(labels * 25, 28 * 28).astype("uint8")
        head = b"\0\0\x08\x03" + n.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = b"\0\0\x08\x01" + n.to_bytes(4, "big")
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    flags = ["--dataset", "mnist", "--data-dir", tmp_path, "--num-epochs", 1]
    assert "MNIST; 64 images" in run("train_mnist.py", *flags)[0]


MISTAKES = {
    "--network foo": "'lenet'",
    "--batch-size 0": "at least 1",
    "--batch-size x": "at least 1",
    "--lr -0.1": "at least 0",
    "--lr nan": "at least 0",
    "--lr-factor 2": "0 to 1",
    "--lr-step-epochs a,b": "'10,15'",
    "--lr-step-epochs 5,3": "'10,15'",
    "--cpus -1": "at least 0",
    "--gpus x": "'0,1'",
    "--gpus 0 --cpus 2": "not allowed",
    "--seed -1": "from 0",
    "--optimizer sdg": "'sgd'",
    "--kv-store lcoal": "'local'",
    "--num-classes 5": "from 0 to 9",
    "--top-k 11": "10 classes",
    "--dtype float16": "--gpus",
    "--dataset mnist": "--data-dir",
    "--dataset fashion --data-dir absent": "dataset-fashion-mnist",
    "--load-epoch 2": "--model-prefix",
    "--load-epoch 2 --model-prefix absent": "absent",
    "--model-prefix absent/m": "absent",
    "--network resnet --num-layers 7": "6n+2",
    "--no-such-flag": "--no-such-flag",
}


def main_in_process(monkeypatch, capfd, flags):
    """Run train_mnist.py's main in this process, which spares the import of MXNet for each."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_mnist

    try:
        code = train_mnist.cli.run(train_mnist.main, train_mnist.parse(flags.split()))
    except SystemExit as error:
        code = error.code
    captured = capfd.readouterr()
    return code, captured.err.splitlines()


@pytest.mark.parametrize("flags", MISTAKES)
def test_a_mistaken_flag_is_one_line_and_exit_code_2(monkeypatch, capfd, tmp_path, flags):
    monkeypatch.chdir(tmp_path)
    code, errors = main_in_process(monkeypatch, capfd, flags)
    assert code == 2
    assert len(errors) == 1
    assert len(errors[0]) <= 250
    assert MISTAKES[flags] in errors[0]


def test_gpus_that_are_not_there_are_one_line_and_exit_code_2():
    if mx.context.num_gpus():
        pytest.skip("there are GPUs here")
    output, errors = run("train_mnist.py", "--gpus", "0,1", code=2)
    assert output == ""
    assert len(errors) == 1
    assert "gpu(0), gpu(1)" in errors[0]


def test_gpus_that_are_there_are_bound(monkeypatch, capfd):
    """On a build without CUDA the bind call is as far as a GPU can be taken."""
    bound = []

    def simple_bind(symbol, ctx, **kwargs):
        bound.append(ctx)
        raise mx.base.MXNetError("bound far enough")

    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(mx.sym.Symbol, "simple_bind", simple_bind)
    monkeypatch.setattr(mx.sym.Symbol, "bind", simple_bind)
    code, errors = main_in_process(monkeypatch, capfd, "--gpus 0,1 --num-epochs 1")
    assert code != 0
    assert "bound far enough" in errors[-1]
    assert bound[0] == mx.gpu(0)


def test_without_mxloop_it_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "mxloop.py").write_text("raise ImportError('no MXNet to be found')")
    _, errors = run("train_mnist.py", code=2, path=str(tmp_path))
    assert errors == ["error: no MXNet to be found; README.md says what to install"]


# --- custom_loop.py -----------------------------------------------------------------------------


def log_of(*flags, cwd=None):
    output, _ = run("custom_loop.py", *flags, cwd=cwd)
    return [json.loads(line) for line in output.splitlines()]


def test_the_custom_loop_logs_one_json_object_an_epoch(tmp_path):
    log = log_of(cwd=tmp_path)
    assert [row["epoch"] for row in log] == [0, 1, 2, 3, 4]
    for row in log:
        assert set(row) == {"epoch", "train", "clean", "shifted", "noisy"}
        assert set(row["clean"]) == {"accuracy", "cross-entropy"}
    assert log[-1]["clean"]["accuracy"] > 0.93
    assert log[-1]["clean"]["accuracy"] > log[-1]["shifted"]["accuracy"]


READ = [(name, metric) for name in ("train", "clean") for metric in ("accuracy", "cross-entropy")]


def test_the_custom_loop_gives_the_same_on_every_number_of_devices():
    one, *others = (
        [row[name][metric] for row in log_of("--num-epochs", 2, *flags) for name, metric in READ]
        for flags in (["--cpus", 1], ["--cpus", 2], ["--cpus", 3, "--kv-store", "local"])
    )
    for several in others:
        assert np.abs(np.array(several) - one).max() < 1e-4


def test_the_custom_loop_stays_under_80_lines():
    text = (EXAMPLES / "custom_loop.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80


# --- README.md ----------------------------------------------------------------------------------


def draw_photos(folder):
    """The folder of images that the README speaks of."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.RandomState(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(1, 17):
            pixels = random.randint(0, 256, (40, 36, 3)).astype("uint8")
            image.fromarray(pixels).save(str(folder / name / f"{number}.png"))


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path):
    assert len(COMMANDS) >= 20
    shutil.copytree(str(EXAMPLES / "configs"), str(tmp_path / "configs"))
    draw_photos(tmp_path / "photos")
    for command in COMMANDS:
        _, script, *flags = command.split()
        # Without flags the tests above run them; FOLDER stands for data that are not here, and the
        # test of MNIST's files for it.
        if flags and "FOLDER" not in flags:
            run(script, *flags, cwd=tmp_path)
