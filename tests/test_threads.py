"""Threads per context, in processes of their own: what a thread has prepared for stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxloop import cpu

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import ctypes
from mxloop import mx, threads
told = {}
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def ask(ctx):
    look = kind(lambda *_: told.__setitem__(ctx.device_id, mx.base._LIB.omp_get_max_threads()))
    none = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXEnginePushSync(
        look, none, none, (ctypes.c_int * 2)(ctx.device_typeid, ctx.device_id),
        none, 0, none, 0, none, 0, b"ask"))
    mx.nd.waitall()
    return told[ctx.device_id]
"""


def run(body, **environ):
    base = {n: v for n, v in os.environ.items() if "OMP_NUM_THREADS" not in n}
    program = PROGRAM + body
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**base, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_contexts_share_the_threads_and_numbers_never_rise():
    body = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MXLOOP_OMP_NUM_THREADS"] = "4"
ctx = [mx.cpu(i) for i in range(2)]
def net(width):
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width)
    return mx.sym.SoftmaxOutput(layer, name="softmax")
big, small = net(1024), net(4)
inputs = [mx.io.DataDesc("data", (64, 1024)), mx.io.DataDesc("softmax_label", (64,))]
print(threads.choose(big, inputs, ctx[:1]), threads.choose(big, inputs, ctx))
print(threads.choose(small, inputs, ctx[:1]), threads.choose(big, inputs, [mx.cpu(0)] * 2))
for number in (3, 2, 4):
    threads.use(ctx, number)
    print(*map(ask, ctx))
"""
    told, stderr = run(body)
    assert told == ["4", "2", "1", "4", "3", "3", "2", "2", "2", "2"]
    assert stderr.count("goes on with 2 threads") == 2


@pytest.mark.parametrize(
    ("cores", "width", "arrays", "iterator"),
    [(2, 16, 1, 1), (2, 128, 2, 1), (4, 128, 2, 2), (2, 512, 2, 2), (4, 400, 4, 4)],
)
def test_small_networks_get_few_threads_and_leave_python_a_core(cores, width, arrays, iterator):
    body = f"""
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MXLOOP_OMP_NUM_THREADS"] = "{cores}"
layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden={width})
net = mx.sym.SoftmaxOutput(layer, name="softmax")
inputs = [mx.io.DataDesc("data", (128, 800)), mx.io.DataDesc("softmax_label", (128,))]
print(*(threads.choose(net, inputs, [mx.cpu()], takes_rows) for takes_rows in (True, False)))
"""
    told, _ = run(body)
    assert told == [str(arrays), str(iterator)]


def test_contexts_do_not_meet_in_openblas():
    body = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["MXLOOP_OMP_NUM_THREADS"] = "8"
data = mx.sym.var("data")
layer = mx.sym.FullyConnected(data, num_hidden=1024)
nets = [layer, mx.sym.dot(layer, mx.sym.var("w", shape=(1024, 1024)))]
inputs = [mx.io.DataDesc("data", (128, 1024))]
for number in (1, 2):
    print(*(threads.choose(net, inputs, [mx.cpu(i) for i in range(number)]) for net in nets))
"""
    told, _ = run(body)
    assert told == ["8", "8", "4", "1"]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_what_the_user_chose_stays(threads):
    told, _ = run("threads.use([mx.cpu()], 2)\nprint(ask(mx.cpu()))", OMP_NUM_THREADS=threads)
    assert told == [threads]


def test_a_child_process_takes_the_parents_choice_for_no_users():
    environ = {}
    cpu.propose_threads(environ, 2)
    cpu.propose_threads(environ, 1)
    assert environ["OMP_NUM_THREADS"] == "1"
    del environ["OMP_NUM_THREADS"]
    cpu.propose_threads(environ, 3)
    assert environ["OMP_NUM_THREADS"] == "3"
    environ["OMP_NUM_THREADS"] = "7"
    cpu.propose_threads(environ, 2)
    assert environ["OMP_NUM_THREADS"] == "7"


def test_the_main_thread_starts_no_team_of_its_own():
    """Else copies of large arrays would make more threads than there are cores."""
    told, _ = run("print(mx.base._LIB.omp_get_max_threads(), ask(mx.cpu()))", OMP_NUM_THREADS="2")
    assert told == ["1", "2"]
