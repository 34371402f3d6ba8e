"""The examples on colour images: RecordIO, resuming, fine-tuning, scoring, predicting, configs."""

import importlib
import importlib.metadata
import json
import re
import shutil

import nets
import numpy as np
import pytest
from test_examples import EXAMPLES, final_accuracy, run

from mxloop import FeedForward, load_checkpoint, mx
from mxloop.data import record_iterator

SMALL = ["--num-layers", 8, "--num-epochs", 1, "--lr-step-epochs", "1", "--num-examples", 96]


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def in_process(capfd, name, *flags):
    """Run a script that does not train: (exit code, output, lines of errors)."""
    script = importlib.import_module(name)
    try:
        code = script.cli.run(script.main, script.parse([str(flag) for flag in flags]))
    except SystemExit as error:
        code = error.code
    captured = capfd.readouterr()
    return code, captured.out, captured.err.splitlines()


# --- Pictures -----------------------------------------------------------------------------------


def draw(folder, classes=3, each=8):
    """PNG files of coloured digits, a folder a class; their pixels by name."""
    image = pytest.importorskip("PIL.Image")
    from common.images import coloured_digits

    from mxloop.data import load_digits28

    x, y = coloured_digits(*load_digits28()[0], seed=0)
    pixels = {}
    for label in range(classes):
        (folder / f"digit{label}").mkdir(parents=True)
        for number, index in enumerate(np.flatnonzero(y == label)[:each]):
            name = f"digit{label}/{number}.png"
            pixels[name] = (x[index] * 127 + 128).astype("uint8").transpose(1, 2, 0)
            image.fromarray(pixels[name]).save(folder / name)
    return pixels


def cifar(folder):
    """The 20 images of CIFAR-10 that foolbox brings, a folder a class."""
    try:
        files = importlib.metadata.files("foolbox")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("foolbox, which brings images of CIFAR-10, is not installed")
    for path in (file for file in files if re.match(r"cifar10_.*\.png", file.name)):
        label = path.stem.rsplit("_", 1)[1]
        (folder / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(str(path.locate()), str(folder / label))


@pytest.fixture
def pictures(tmp_path):
    return draw(tmp_path / "pictures")


# --- make_rec.py --------------------------------------------------------------------------------


def test_a_folder_becomes_records_that_decode_to_its_pixels(tmp_path, pictures, capfd):
    folder = tmp_path / "pictures"
    assert in_process(capfd, "make_rec", folder, tmp_path / "all")[0] == 0
    names = (tmp_path / "all.classes.txt").read_text().split()
    assert names == ["digit0", "digit1", "digit2"]
    data = record_iterator(str(tmp_path / "all.rec"), (3, 32, 32), 6)
    assert len(data) == 4
    found = {label: set() for label in range(3)}
    for batch in data:
        for label, x in zip(batch.label[0].asnumpy(), batch.data[0].asnumpy()):
            found[int(label)].add(x.transpose(1, 2, 0).astype("uint8").tobytes())
    for label, seen in found.items():
        wanted = {p.tobytes() for name, p in pictures.items() if name.startswith(names[label])}
        assert seen == wanted


def test_a_share_of_each_class_is_set_aside(tmp_path, pictures, capfd):
    flags = [tmp_path / "pictures", tmp_path / "p", "--val-share", 0.25]
    code, output, _ = in_process(capfd, "make_rec", *flags)
    assert code == 0
    assert re.findall(r"(\w+)\.rec: (\d+) images", output) == [("p_train", "18"), ("p_val", "6")]
    validation = record_iterator(str(tmp_path / "p_val.rec"), (3, 32, 32), 6)
    labels = next(validation).label[0].asnumpy()
    assert sorted(labels) == [0, 0, 1, 1, 2, 2]


def test_workers_count_the_batches_of_their_parts(tmp_path, pictures, capfd):
    in_process(capfd, "make_rec", tmp_path / "pictures", tmp_path / "all")
    for parts in (1, 2, 3, 5):
        counted = 0
        for part in range(parts):
            cut = {"num_parts": parts, "part_index": part}
            data = record_iterator(str(tmp_path / "all.rec"), (3, 32, 32), 1, **cut)
            assert len(data) == sum(1 for _ in data)
            counted += len(data)
        assert counted == 24


# --- train_cifar10.py ---------------------------------------------------------------------------


@pytest.mark.parametrize("source", [draw, pytest.param(cifar, marks=pytest.mark.slow)])
def test_training_on_augmented_records_resumes_to_the_bit_from_within_an_epoch(
    tmp_path, capfd, source
):
    source(tmp_path / "pictures")
    flags = [tmp_path / "pictures", tmp_path / "p", "--val-share", 0.4]
    assert in_process(capfd, "make_rec", *flags)[0] == 0
    common = ["--num-layers", 8, "--num-epochs", 2, "--batch-size", 4, "--lr-step-epochs", "1"]
    common += ["--data-train", tmp_path / "p_train.rec", "--data-val", tmp_path / "p_val.rec"]
    common += ["--checkpoint-batches", 2, "--max-random-rotate-angle", 10]
    output, _ = run("train_cifar10.py", *common, "--checkpoint", tmp_path / "whole")
    assert "p_train.rec, augmented" in output
    for name in tmp_path.glob("whole-0001-*2.*"):  # the second batch of the second epoch
        shutil.copy(str(name), str(tmp_path / name.name.replace("whole", "part")))
    shutil.copy(str(tmp_path / "whole-symbol.json"), str(tmp_path / "part-symbol.json"))
    again = [*common, "--checkpoint", tmp_path / "part", "--resume"]
    resumed, _ = run("train_cifar10.py", *again)
    assert "Epoch[0]" not in resumed
    whole, part = (load_checkpoint(tmp_path / name, 2) for name in ("whole", "part"))
    nets.assert_equal({**part[1], **part[2]}, {**whole[1], **whole[2]})
    assert final_accuracy(resumed) == final_accuracy(output)
    # A finished run trains no further, and says the same.
    assert final_accuracy(run("train_cifar10.py", *again)[0]) == final_accuracy(output)


def test_the_synthetic_benchmark_tells_samples_a_second():
    output, _ = run("train_cifar10.py", "--benchmark", 1, *SMALL)
    assert float(re.search(r"^Synthetic benchmark: ([\d.]+) samples/s$", output, re.M)[1]) > 1
    assert "data:" not in output
    assert "alid" not in output


@pytest.mark.slow
def test_without_files_it_learns_coloured_digits_and_says_that_they_are_not_cifar():
    flags = ["--num-layers", 8, "--num-epochs", 5, "--lr-step-epochs", "3,4"]
    output, _ = run("train_cifar10.py", *flags, "--target-acc", 0.93)
    assert "not CIFAR-10" in output.splitlines()[0]
    assert final_accuracy(output) > 0.93


# --- fine_tune.py -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The prefix of a network that has learned a little, in the first epoch."""
    prefix = tmp_path_factory.mktemp("base") / "base"
    run("train_cifar10.py", *SMALL, "--model-prefix", prefix)
    return prefix


def fine_tuned(base, tmp_path, *flags):
    """(parameters before, after, statistics before, after), as NumPy arrays."""
    prefix = tmp_path / "tuned"
    settings = ["--pretrained", base, "--pretrained-epoch", 1, "--num-epochs", 1]
    settings += ["--num-examples", 96, "--cpus", 2, "--model-prefix", prefix]
    output, _ = run("fine_tune.py", *settings, *flags)
    assert final_accuracy(output) > 0
    states = [*load_checkpoint(base, 1)[1:], *load_checkpoint(prefix, 1)[1:]]
    args, aux, new_args, new_aux = map(nets.numpy_of, states)
    return args, new_args, aux, new_aux


def is_frozen(name):
    return name.startswith(("conv0", "stage1"))


@pytest.mark.parametrize("statistics", [False, True])
def test_frozen_layers_are_unchanged_to_the_bit(base, tmp_path, statistics):
    flags = ["--freeze", "stage1", *(["--freeze-statistics"] if statistics else [])]
    args, new_args, aux, new_aux = fine_tuned(base, tmp_path, *flags)
    assert args.keys() - new_args.keys() == {"fc_weight", "fc_bias"}
    assert new_args.keys() - args.keys() == {"new_fc_weight", "new_fc_bias"}
    kept = {name for name in args.keys() & new_args.keys() if (args[name] == new_args[name]).all()}
    assert kept == {name for name in args if is_frozen(name)} != set()
    kept = {name for name in aux if (aux[name] == new_aux[name]).all()}
    assert kept == ({name for name in aux if is_frozen(name)} if statistics else set())


def test_the_two_rates_are_applied(base, tmp_path):
    flags = ["--mom", 0, "--wd", 0, "--num-examples", 32, "--batch-size", 32]
    full, tenth = (
        fine_tuned(base, tmp_path, *flags, "--base-rate", rate)[:2] for rate in (1.0, 0.1)
    )
    steps = [{n: new[n] - old[n] for n in old if n in new} for old, new in (full, tenth)]
    for name, step in steps[0].items():
        np.testing.assert_allclose(steps[1][name], 0.1 * step, atol=1e-6, err_msg=name)
    assert max(np.abs(step).max() for step in steps[0].values()) > 1e-3
    for name in ("new_fc_weight", "new_fc_bias"):
        np.testing.assert_array_equal(full[1][name], tenth[1][name])


def test_the_head_changes_its_classes_and_its_place(base):
    import fine_tune

    symbol = load_checkpoint(base, 1)[0]
    net = fine_tune.with_new_head(symbol, None, 3)
    assert net.infer_shape(data=(2, 3, 32, 32))[1] == [(2, 3)]
    early = fine_tune.with_new_head(symbol, "stage2_block1_conv2", 3)
    assert "stage3_block1_conv1_weight" not in early.list_arguments()
    assert "stage2_block1_conv2_weight" in early.list_arguments()


# --- score.py, predict_image.py, benchmark_score.py ---------------------------------------------


def test_score_gives_what_the_training_gave(base, tmp_path, capfd):
    code, output, _ = in_process(capfd, "score", "--model-prefix", base, "--load-epoch", 1)
    assert code == 0
    model = FeedForward.load(base, 1)
    from common.images import coloured_digits

    from mxloop.data import load_digits28

    x, y = coloured_digits(*load_digits28()[1], 1)
    found = dict(re.findall(r"^([\w-]+)=([\d.]+)$", output, re.M))
    assert float(found["accuracy"]) == pytest.approx(model.score(x, y), abs=1e-6)
    assert 0 < float(found["accuracy"]) <= float(found["top_k_accuracy_5"]) <= 1


def test_score_reads_records(base, tmp_path, pictures, capfd):
    in_process(capfd, "make_rec", tmp_path / "pictures", tmp_path / "all")
    flags = ["--model-prefix", base, "--load-epoch", 1, "--data-val", tmp_path / "all.rec"]
    code, output, _ = in_process(capfd, "score", *flags, "--batch-size", 7, "--metrics", "acc")
    assert code == 0
    x = np.stack([(pixels.transpose(2, 0, 1) - 128.0) / 128 for pixels in pictures.values()])
    y = np.repeat(np.arange(3), 8)
    expected = FeedForward.load(base, 1).score(x, y)
    found = float(re.search(r"^accuracy=([\d.]+)$", output, re.M)[1])
    assert found == pytest.approx(expected, abs=1e-6)


def test_predict_image_names_the_five_likeliest_classes(base, tmp_path, pictures, capfd):
    flags = ["--model-prefix", base, "--load-epoch", 1, "--classes", "cifar10"]
    paths = [tmp_path / "pictures" / name for name in ("digit0/0.png", "digit2/3.png")]
    code, output, _ = in_process(capfd, "predict_image", *flags, *paths)
    assert code == 0
    blocks = re.split(r"^(?=/)", output, flags=re.M)[1:]
    assert [block.splitlines()[0] for block in blocks] == [str(path) for path in paths]
    model = FeedForward.load(base, 1)
    from common.images import CIFAR10

    for block, name in zip(blocks, ("digit0/0.png", "digit2/3.png")):
        x = (pictures[name].transpose(2, 0, 1)[None] - 128.0) / 128
        scores = model.predict(x)[0]
        shown = re.findall(r"^  ([\d.]+) (\w+)$", block, re.M)
        assert [CIFAR10.index(word) for _, word in shown] == list(np.argsort(-scores)[:5])
        np.testing.assert_allclose(
            [float(s) for s, _ in shown], np.sort(scores)[::-1][:5], atol=1e-4
        )


def test_names_of_classes_come_from_make_rec(base, tmp_path, pictures, capfd):
    (tmp_path / "names").write_text("".join(f"the {n}\n" for n in range(10)))
    flags = ["--model-prefix", base, "--load-epoch", 1, "--classes", tmp_path / "names"]
    image = tmp_path / "pictures" / "digit1" / "0.png"
    _, output, _ = in_process(capfd, "predict_image", *flags, "--top", 2, image)
    assert len(re.findall(r"^  [\d.]+ the \d$", output, re.M)) == 2


def test_benchmark_score_tells_images_a_second(capfd):
    flags = ["--num-batches", 1, "--batch-sizes", "1,4"]
    code, output, _ = in_process(capfd, "benchmark_score", *flags, "--num-layers", 8)
    assert code == 0
    found = re.findall(r"^network: (\w+)\tbatch size: (\d)\timages/s: [\d.]+$", output, re.M)
    assert found == [(n, size) for n in ("mlp", "lenet", "resnet") for size in ("1", "4")]


# --- Mistakes -----------------------------------------------------------------------------------

MODEL = "--model-prefix BASE --load-epoch 1"
TUNE = "--pretrained BASE --pretrained-epoch 1"
MISTAKES = {
    "train_cifar10 --data-train absent.rec --data-val absent.rec": "absent.rec",
    "train_cifar10 --data-train absent.rec": "--data-val",
    "train_cifar10 --image-shape 3,32": "'3,32,32'",
    "train_cifar10 --image-shape 3,64,64": "--image-shape",
    "train_cifar10 --resume": "--checkpoint",
    "train_cifar10 --checkpoint absent/c": "absent",
    "make_rec absent out": "absent",
    "make_rec pictures absent/out": "absent/out",
    "make_rec pictures/digit0 out": "two folders",
    "make_rec broken out": "bad.png is no image",
    f"score {MODEL} --data-val absent.rec": "absent.rec",
    f"score {MODEL} --metrics accu": "accu",
    "score --model-prefix absent --load-epoch 1": "absent",
    f"predict_image {MODEL} absent.png": "absent.png",
    f"predict_image {MODEL} broken/a/bad.png": "no image",
    f"predict_image {MODEL} --classes pictures.txt pictures/digit0/0.png": "3 names",
    f"predict_image {MODEL} --classes absent pictures/digit0/0.png": "--classes absent",
    f"fine_tune {TUNE} --freeze stage9": "no layer",
    f"fine_tune {TUNE} --freeze new_fc": "new head",
    f"fine_tune {TUNE} --freeze-statistics": "needs --freeze",
    f"fine_tune {TUNE} --layer nowhere": "no layer",
    "fine_tune --pretrained BASE": "--pretrained-epoch",
    "benchmark_score --batch-sizes 0": "growing",
    "train_cifar10 --config absent.json": "absent.json",
    "train_cifar10 --config broken.json": "broken.json",
    "train_cifar10 --config list.json": "no object",
    "train_cifar10 --config typo.json": "did you mean 'num-epochs'",
    "train_cifar10 --config wrong.json": "at least 1",
}


@pytest.fixture
def folder(tmp_path, pictures, monkeypatch):
    """A folder with what the mistakes are about."""
    for name in ("broken/a", "broken/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "bad.png").write_bytes(b"no image")
    (tmp_path / "pictures.txt").write_text("digit0\ndigit1\ndigit2\n")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "typo.json").write_text('{"num-epoch": 1}')
    (tmp_path / "wrong.json").write_text('{"batch-size": 0}')
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(base, folder, capfd, command):
    name, *flags = command.replace("BASE", str(base)).split()
    code, _, errors = in_process(capfd, name, *flags)
    assert code == 2
    assert len(errors) == 1
    assert len(errors[0]) <= 250 + len(str(base))
    assert MISTAKES[command] in errors[0]


# --- --config -----------------------------------------------------------------------------------

SETTINGS = {"num-layers": 8, "lr_step_epochs": [2, 4], "lr": 0.1, "resume": True, "gpus": None}


def check_settings(args):
    assert (args.num_layers, args.lr_step_epochs, args.lr) == (8, [2, 4], 0.1)
    assert args.resume
    assert args.gpus is None


def test_flags_come_from_a_json_file_and_the_command_line_overrides_them(tmp_path):
    import train_cifar10

    path = tmp_path / "run.json"
    path.write_text(json.dumps(SETTINGS))
    check_settings(train_cifar10.parse(["--config", str(path)]))
    assert train_cifar10.parse([f"--config={path}", "--lr", "0.2"]).lr == 0.2
    assert train_cifar10.parse(["--lr", "0.2", "--config", str(path)]).lr == 0.2


def test_flags_come_from_a_yaml_file(tmp_path, capfd):
    pytest.importorskip("yaml")
    import train_cifar10

    path = tmp_path / "run.yaml"
    path.write_text("num-layers: 8\nlr_step_epochs: [2, 4]\nlr: 0.1\nresume: true\ngpus:\n")
    check_settings(train_cifar10.parse(["--config", str(path)]))
    path.write_text("lr: [1\n")
    code, _, errors = in_process(capfd, "train_cifar10", "--config", path)
    assert code == 2
    assert len(errors) == 1


def test_yaml_without_pyyaml_names_the_extra(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "yaml", None)
    (tmp_path / "run.yaml").write_text("lr: 0.1\n")
    code, _, errors = in_process(capfd, "train_cifar10", "--config", tmp_path / "run.yaml")
    assert code == 2
    assert "mxloop[yaml]" in errors[0]


@pytest.mark.parametrize(
    "script", ["train_mnist", "fine_tune", "score", "predict_image", "make_rec"]
)
def test_every_script_takes_a_config(script, tmp_path, capfd):
    (tmp_path / "typo.json").write_text('{"nonsense": 1}')
    code, _, errors = in_process(capfd, script, "--config", tmp_path / "typo.json")
    assert code == 2
    assert "'nonsense' is no flag" in errors[0]


def test_mxnet_itself_reads_what_was_fine_tuned(base, tmp_path):
    fine_tuned(base, tmp_path, "--num-examples", 32)
    symbol, args, _ = mx.model.load_checkpoint(str(tmp_path / "tuned"), 1)
    assert set(args) == set(symbol.list_arguments()) - {"data", "softmax_label"}
