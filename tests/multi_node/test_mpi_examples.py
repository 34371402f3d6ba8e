"""The examples of several processes, run as a user runs them: accuracy, and one-line errors."""

import re

import pytest
from ranks import ROOT, needs_mpi, run

EXAMPLES = ROOT / "example" / "image-classification"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    mpiexec -n (\d) python (.*)$", README, re.MULTILINE)

pytestmark = [needs_mpi, pytest.mark.slow]


def accuracy(output):
    return [
        float(each) for each in re.findall(r"^Final validation accuracy: ([\d.]+)$", output, re.M)
    ]


@pytest.mark.parametrize(
    "size, command", COMMANDS, ids=[command.split()[0] for _, command in COMMANDS]
)
def test_the_readmes_commands_reach_their_accuracy(size, command, tmp_path):
    script, *flags = command.split()
    ended = run(int(size), [EXAMPLES / script, *flags, "--target-acc", "0.95"], 120, tmp_path)
    assert ended.code == 0, ended.output
    assert len(accuracy(ended.output)) == 1  # one rank speaks


def test_the_readme_shows_every_example():
    shown = {command.split()[0] for _, command in COMMANDS}
    assert shown == {"train_mnist.py", *[path.name for path in EXAMPLES.glob("train_mnist_*.py")]}


def test_ranks_resume_where_they_were(tmp_path):
    script, flags = EXAMPLES / "train_mnist.py", ["--checkpoint", tmp_path / "run"]
    lines = []
    for more in (["--num-epochs", 2], ["--num-epochs", 3, "--resume"]):
        ended = run(2, [script, *flags, *more], 60)
        assert ended.code == 0, ended.output
        lines += re.findall(r"^Epoch\[\d\] Validation-accuracy=.*$", ended.output, re.M)
    ended = run(2, [script, "--num-epochs", 3], 60)
    assert re.findall(r"^Epoch\[\d\] Validation-accuracy=.*$", ended.output, re.M) == lines


def test_stages_may_be_in_one_process():
    ended = run(1, [EXAMPLES / "train_mnist_pipeline.py", "--target-acc", "0.95"])
    assert ended.code == 0, ended.output


def test_a_missed_target_and_another_number_of_ranks_are_one_line():
    script = EXAMPLES / "train_mnist_model_parallel.py"
    ended = run(2, [script, "--num-epochs", "1", "--target-acc", "1"])
    assert ended.code == 1 and "error: that is below the target of 1" in ended.output
    ended = run(1, [script])
    assert ended.code == 2 and "this example is for 2 ranks, and got 1" in ended.output
