"""Exit codes of the examples, as a shell or a scheduler sees them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mxloop import checkpoint

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "example" / "image-classification" / "train_mnist.py"
SHORT = ("--num-examples", "128", "--batch-size", "32")


def started(*flags, cwd):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-u", str(SCRIPT), *SHORT, *flags],
        env=environ,
        cwd=str(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--num-epochs", "1", "--target-acc", "0"], 0, ""),
        (["--num-epochs", "1", "--target-acc", "1"], 1, "below the target"),
        (["--num-epochs", "1", "--lr", "1e30"], 1, "NaN or infinite"),
        (["--num-epochs", "none"], 2, "--num-epochs"),
        (["--optimizer", "sdg"], 2, "sgd"),
        (["--history", "run.txt"], 2, ".jsonl"),
        (["--history", "nowhere/run.csv"], 2, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_code_tells_success_failure_and_mistake(tmp_path, flags, code, words):
    process = started(*flags, cwd=tmp_path)
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if not re.match(r"\[\d\d:\d\d:\d\d\]", line)]
    assert process.returncode == code, errors
    assert len(lines) == (code != 0), errors
    assert words in "".join(lines)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_the_run_with_its_code_once_a_checkpoint_is_written(tmp_path, number, code):
    flags = ("--checkpoint", "run", "--num-epochs", "100000")
    process = started(*flags, cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("Epoch[3]"):
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "ended:" in errors
    found = checkpoint.newest(tmp_path / "run")
    assert found.epoch >= 3
    # The same command goes on from there.
    end = str(found.epoch + 2)
    again = started("--checkpoint", "run", "--num-epochs", end, "--resume", cwd=tmp_path)
    output, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    epochs = [
        int(epoch) for epoch in re.findall(r"^Epoch\[(\d+)\] Train-acc", output, re.MULTILINE)
    ]
    assert epochs == [found.epoch, found.epoch + 1]
