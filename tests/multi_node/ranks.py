"""Real processes under mpiexec: each has a deadline, and none outlives its test."""

import ctypes
import importlib.util
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}/usr/bin")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason="the extra 'mpi' (mpi4py, mpich) is not installed",
)


class Ended(NamedTuple):
    """How mpiexec ended: None where it had to be killed."""

    code: object
    output: str


def run(size, arguments, seconds=60, cwd=None, **more):
    """Run Python with these arguments on so many ranks; return how that ended."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "MXLOOP_", "PMI"))}
    always = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MXLOOP_MPI_SECONDS": "20"}
    environment = {**kept, **always, **more}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [MPIEXEC, "-n", str(size), sys.executable, *map(str, arguments)],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM),
        )
        code = _end_of(process, seconds)
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def _end_of(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec takes its ranks along
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None


def run_text(size, text, seconds=60, cwd=None, **more):
    """Run a program that is given as text."""
    return run(size, ["-c", inspect.cleandoc(text)], seconds, cwd, **more)


class Checks:
    """The functions of one file in checks/, run on so many ranks by one mpiexec.

    Starting processes takes longer than most checks do.
    """

    def __init__(self, file, size, seconds=60):
        self._arguments = size, [HERE / "run_checks.py", HERE / "checks" / f"{file}.py"], seconds
        self._ended = None

    def outcome(self, name):
        """Run all, once; raise AssertionError unless a check passed on all ranks."""
        if self._ended is None:
            self._ended = run(*self._arguments)
        passed = re.findall(rf"^PASSED {name} on rank \d+$", self._ended.output, re.MULTILINE)
        told = f"exit code {self._ended.code}\n{self._ended.output[-6000:]}"
        assert len(set(passed)) == self._arguments[0], told


def check_names(file):
    """The names of the checks in a file, without importing it."""
    text = (HERE / "checks" / f"{file}.py").read_text()
    return re.findall(r"^def check_(\w+)\(", text, re.MULTILINE)
