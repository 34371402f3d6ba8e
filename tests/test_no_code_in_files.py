"""No file that mxloop reads is ever run.

Ranks of one job exchange objects by mpi4py's own serialisation (`MPI.pickle`, in
mxloop/multi_node/communicator.py alone): those are messages of processes that one mpiexec started
with the same program, and nothing in them comes from a file.
"""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parent.parent / "mxloop").rglob("*.py"))
FORBIDDEN = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_objects_are_unpickled_in_messages_between_ranks_only():
    found = {
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "pickle"
    }
    assert found == {"communicator.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_source_neither_unpickles_nor_evaluates(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN, node.lineno
        if isinstance(node, ast.Import):
            assert not FORBIDDEN_MODULES & {alias.name for alias in node.names}, node.lineno
        if isinstance(node, ast.ImportFrom):
            assert node.module not in FORBIDDEN_MODULES, node.lineno
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert getattr(node.value, "value", None) is False, node.lineno
