"""Every code block of the README runs, or is what another test or the Makefile runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
FIRST_STEPS = next(code for _, code in BLOCKS if "mxloop doctor" in code).splitlines()
LINES = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
LINES = [line for line in LINES if line not in FIRST_STEPS]


def run(command, cwd, **options):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, **options
    )


def test_blocks_are_python_or_shell_and_there_are_some_of_each():
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert len(PYTHON) >= 2
    assert len(LINES) + len(FIRST_STEPS) >= 8


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[-1][:30])
def test_python_block_runs(code, tmp_path):
    done = run([sys.executable, "-W", "error:::mxloop", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_model_is_fifteen_lines_and_the_loop_twenty_five():
    statements = [len([line for line in code.splitlines() if line]) for code in PYTHON]
    assert statements[0] <= 15
    assert statements[1] <= 25


def test_the_loop_block_learns(tmp_path):
    done = run([sys.executable, "-c", PYTHON[1]], tmp_path)
    last = float(re.findall(r"test \('accuracy', .*?(\d[\d.]+)\)", done.stdout)[-1])
    assert last > 0.9


@pytest.mark.parametrize("line", LINES)
def test_shell_line_works(line, tmp_path):
    if line.startswith("make "):
        # The tests themselves run under make: whether the target exists is what is left to see.
        done = run(["make", "--dry-run", *line.split()[1:]], ROOT)
        assert done.returncode == 0, done.stderr
    elif line.startswith("pip "):
        extras = re.findall(r"\[(.*?)\]", line)
        known = (ROOT / "setup.py").read_text(encoding="utf-8")
        assert all(f'"{name}":' in known for extra in extras for name in extra.split(","))
    elif line.startswith("mpiexec "):
        # tests/multi_node/test_mpi_examples.py runs these, to their accuracy.
        examples = (ROOT / "example" / "image-classification" / "README.md").read_text()
        command = line.replace("example/image-classification/", "")
        assert re.search(f"^    {re.escape(command)}$", examples, re.MULTILINE)
    elif line.startswith("python -m venv"):
        assert run([sys.executable, "-c", "import venv, ensurepip"], tmp_path).returncode == 0
    else:
        assert line.startswith("python example/")
        done = run([sys.executable, *line.split()[1:]], ROOT)
        without_cuda = "--gpus" in line and done.returncode == 2
        assert done.returncode == 0 or without_cuda, done.stderr


def test_from_nothing_to_a_report_in_under_ten_commands(tmp_path):
    assert len(FIRST_STEPS) < 10
    venv, pip, *steps = FIRST_STEPS
    assert venv.startswith("python -m venv")  # whose steps CONTRIBUTING's `make env` takes, too
    extras = re.search(r"\[(.*?)\]", pip)[1].split(",")
    assert all(f'"{name}":' in (ROOT / "setup.py").read_text() for name in extras)
    (tmp_path / "example").symlink_to(ROOT / "example")
    output = ""
    for line in steps:
        program, *words = line.split()
        command = {"python": [sys.executable], "mxloop": [sys.executable, "-m", "mxloop"]}[program]
        done = run([*command, *words], tmp_path)
        assert done.returncode == 0, line + done.stdout + done.stderr
        output += done.stdout
    trained, scored = (
        float(found) for found in re.findall(r"accuracy[=:] ?([\d.]+)$", output, re.M)[-2:]
    )
    assert scored == pytest.approx(trained, abs=5e-5)
    assert scored > 0.95
    for name in ("curves.png", "confusion.png", "mistakes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "digits.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert "fc1" in page


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_link_leads_to_a_file(target):
    assert (ROOT / target).exists()
