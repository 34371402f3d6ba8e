"""Every code block of docs/ runs, page by page; the pages build without a warning."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TASKS = ["train", "own-loop", "devices", "speed", "resume", "processes", "elsewhere"]
ORIGINS = ["from-module", "from-gluon", "from-keras", "from-pytorch"]


class Block(NamedTuple):
    """A code block: its language, what the fence says besides, and the code."""

    language: str
    note: str
    code: str


def blocks(page):
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(*(info.split(" ", 1) + [""])[:2], code) for info, code in found]


def run(command, cwd, **more):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        command, cwd=str(cwd), env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def needed(code):
    """Libraries, other than mxloop's own, that a block imports."""
    tree = ast.walk(ast.parse(code))
    names = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    return {name.partition(".")[0] for name in names} - {"mxloop", "onnxruntime"}


def runs(page, note):
    """The script that a page's blocks make, those of one note or those without."""
    return "".join(b.code for b in blocks(page) if b.language == "python" and b.note == note)


def test_there_is_a_page_for_each_task_and_each_origin():
    assert {page.stem for page in PAGES} == {*TASKS, *ORIGINS, "index", "reference"}
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name}$", index, re.MULTILINE) for name in [*TASKS, *ORIGINS])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page, tmp_path):
    found = blocks(page)
    assert {block.language for block in found} <= {"python", "sh", "{toctree}", "{eval-rst}"}
    for block in found:
        if block.note.startswith("file="):
            (tmp_path / block.note[5:]).write_text(block.code)
    code = runs(page, "")
    if "onnxruntime" in code:
        pytest.importorskip("onnxruntime")
    if code:
        run([sys.executable, "-W", "error:::mxloop", "-c", code], tmp_path)
    for line in "".join(block.code for block in found if block.language == "sh").splitlines():
        run_as_typed(line, tmp_path)


def run_as_typed(line, cwd):
    """Run a line of a shell block, with this Python's `python` and `mpiexec`."""
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]
    if words[0] == "mpiexec":
        pytest.importorskip("mpi4py")
        words[0] = str(Path(sys.executable).parent / "mpiexec")
    assert words[0] == sys.executable or "mpiexec" in words[0]
    run(words, cwd)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "library"), [("from-keras", "keras"), ("from-pytorch", "torch")])
def test_what_was_before_is_sound_and_runs_where_its_library_is(page, library, tmp_path):
    code = runs(DOCS / f"{page}.md", library)
    assert library in needed(code)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run([sys.executable, "-c", code], tmp_path, KERAS_BACKEND="torch")


@pytest.mark.parametrize("page", ORIGINS)
def test_ten_lines_of_theirs_become_no_more_of_mxloops(page):
    found = [block.code for block in blocks(DOCS / f"{page}.md") if block.language == "python"]
    before = next(code for code in found if code.startswith("# Before"))
    after = next(code for code in found if code.startswith("# After"))
    lines = [len([line for line in code.splitlines() if line.strip()]) for code in (before, after)]
    assert lines[0] >= 10
    assert lines[1] <= lines[0] + 5


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    done = run([sys.executable, "-m", "sphinx", "-W", "-q", DOCS, tmp_path / "html"], ROOT)
    assert done.stderr == ""
    text = (tmp_path / "html" / "reference.html").read_text(encoding="utf-8")
    for name in ("FeedForward.fit", "DataParallelExecutorManager.load_data_batch", "to_onnx"):
        assert name in text
