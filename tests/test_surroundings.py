"""Forks, pools, little memory: what happens around a training, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

BEGIN = """
import multiprocessing, os, resource, signal, sys, time
import nets, numpy as np
from mxloop import FeedForward, mx
from mxloop.errors import MXLoopError
x, y = nets.samples(24, (4,), classes=3)

def fit(**more):
    net = nets.mlp((5,), 3)
    params, _ = nets.params(net, data=(8, 4))
    made = FeedForward(net, nets.CPUS[:2], 2, numpy_batch_size=8, arg_params=params)
    return made.fit(x, y, seed=3, **more)

def same(one, other):
    other = other.arg_params
    return all((v.asnumpy() == other[n].asnumpy()).all() for n, v in one.arg_params.items())

def told(call):
    try:
        call()
    except MXLoopError as error:
        print("told", str(error))
"""

FORK = """
before = fit()
child = os.fork()
if not child:
    os._exit(0 if same(fit(), before) else 3)
assert os.waitpid(child, 0)[1] == 0 and same(fit(), before)
"""

POOL = """
def add(i):
    return float(mx.nd.array([i, 1]).sum().asscalar())

def sleep(i):
    time.sleep(60)

def use_pool(param):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(add, range(3)) == [1, 2, 3]
        pool.map_async(sleep, range(2))
    # leaving the block ended the children, which must obey a signal in the middle of a training

alone = fit()
assert same(fit(batch_end_callback=use_pool), alone)
"""

MEMORY = """
limit = 4 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

class Huge(mx.io.DataIter):
    def __init__(self, rows):
        super().__init__(rows)
        self.provide_data, self.provide_label = [("data", (rows, 64))], [("softmax_label", (rows,))]

wide = nets.mlp((2**20,), 3)
params, _ = nets.params(wide, data=(1, 4))
many = np.zeros((2**11, 4), "float32")
told(lambda: FeedForward(nets.mlp((5,), 3), num_epoch=1).fit(Huge(2**28)))
told(lambda: FeedForward(wide, num_epoch=1, numpy_batch_size=2**11).fit(many, many[:, 0]))
told(lambda: FeedForward(wide, arg_params=params, numpy_batch_size=2**11).predict(many))
fit()
"""


def run(code):
    """Run it, with time enough for a machine that does other things as well."""
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("code", [FORK, POOL], ids=["a forked child", "a pool in a callback"])
def test_a_process_may_be_forked_and_trains_the_same(code):
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_too_little_memory_is_one_line_and_leaves_mxnet_usable():
    done = run(MEMORY)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("told")]
    assert len(told) == 3, done.stdout
    assert all("use smaller batches" in line and len(line) <= 255 for line in told), told
