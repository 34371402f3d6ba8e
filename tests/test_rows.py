"""rows.py: devices that take a batch's rows themselves get what a gather would have given them."""

import copy
import gc
import pickle
import subprocess
import sys
import threading

import nets
import numpy as np
import pytest
from nets import CPUS

from mxloop import FeedForward, host
from mxloop.callback import Callback
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.executor_manager import DataParallelExecutorManager
from mxloop.rows import RowsBatch

X, Y = nets.samples(100)


class Gathered(mx.io.DataIter):
    """The batches of an ArrayIter as arrays: what a manager cannot take rows of."""

    def __init__(self, batches):
        super().__init__(batches.batch_size)
        self._batches = batches
        self.provide_data, self.provide_label = batches.provide_data, batches.provide_label

    def reset(self):
        self._batches.reset()

    def next(self):
        batch = self._batches.next()
        return mx.io.DataBatch(batch.data, batch.label, batch.pad, batch.index)


def fitted(data, devices=1, callbacks=None, **kwargs):
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    model = FeedForward(
        nets.mlp(), CPUS[:devices], 3, arg_params=args, learning_rate=0.1, momentum=0.9, **kwargs
    )
    model.fit(data, callbacks=callbacks, seed=0)
    return model


def same(one, other):
    assert one.arg_params.keys() == other.arg_params.keys()
    for name, value in one.arg_params.items():
        assert (value.asnumpy() == other.arg_params[name].asnumpy()).all(), name
    accuracies = [[row["train_accuracy"] for row in each.history] for each in (one, other)]
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("last_batch", ["keep", "pad", "discard", "roll_over"])
def test_training_is_the_same_to_the_bit(devices, last_batch):
    make = lambda: ArrayIter(X, Y, 16, shuffle=True, last_batch=last_batch, seed=3)  # noqa: E731
    same(fitted(make(), devices), fitted(Gathered(make()), devices))


def loaded(dtype, wanted="float32"):
    """The network's input after each batch of some whole numbers in `dtype`."""
    data = mx.sym.Cast(mx.sym.Variable("data", dtype=wanted), "float32")
    weight = mx.sym.Variable("w", shape=(1, 1))
    net = mx.sym.MakeLoss(mx.sym.broadcast_mul(data, weight))
    values = np.arange(40).reshape(20, 2).astype(dtype)
    batches = ArrayIter(values, batch_size=8, shuffle=True, seed=1, dtype=dtype)
    described = ArrayIter(values, batch_size=8, dtype=wanted)
    manager = DataParallelExecutorManager(net, CPUS[:2], described, param_names=["w"])
    found = []
    for batch in batches:
        manager.load_data_batch(batch)
        parts = [manager.group.execs[i].arg_dict["data"] for i in manager.group.active]
        found.append(np.concatenate([part.asnumpy() for part in parts]))
        assert (found[-1] == values[batch.index]).all()
    return np.concatenate(found)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int8", "int32"])
def test_every_dtype_arrives(dtype):
    assert sorted(loaded(dtype)[:, 0]) == list(range(0, 40, 2))
    assert sorted(loaded(dtype, wanted=dtype)[:, 0]) == list(range(0, 40, 2))


def test_nothing_is_gathered_in_training():
    seen = []

    class Look(Callback):
        def on_batch_end(self, state):
            seen.append(state.data_batch)

    batches = ArrayIter(X, Y, 25)
    fitted(batches, callbacks=[Look()])
    assert all(isinstance(batch, RowsBatch) for batch in seen)
    assert all(batch.is_unseen for batch in seen[1:])  # the first one tells the shapes


@pytest.mark.parametrize("how", ["in place", "in the list", "another list"])
def test_a_batch_that_a_callback_changes_is_trained_as_changed(how):
    class Negate(Callback):
        def on_batch_begin(self, state):
            batch = state.data_batch
            if how == "in place":
                batch.data[0][:] = -batch.data[0]
            elif how == "in the list":
                batch.data[0] = -batch.data[0]
            else:
                batch.data = [-batch.data[0]]

    negated = fitted(ArrayIter(X, Y, 16), callbacks=[Negate()])
    same(negated, fitted(ArrayIter(-X, Y, 16)))


def test_a_callback_may_say_that_rows_are_padding():
    class Shorten(Callback):
        def on_batch_begin(self, state):
            state.data_batch.pad = 9

    rows = np.concatenate([np.arange(at, at + 7) for at in range(0, 96, 16)])
    shortened = fitted(ArrayIter(X[:96], Y[:96], 16), callbacks=[Shorten()])
    same(shortened, fitted(ArrayIter(X[rows], Y[rows], 7)))


def test_a_batch_stays_what_it_was_when_the_iterator_goes_on():
    batches = ArrayIter(X, Y, 16, shuffle=True, seed=5)
    kept = list(batches)
    batches.reset()
    list(batches)
    rows = np.concatenate([batch.index for batch in kept])
    assert sorted(rows) == list(range(100))
    wanted = X.astype(np.float32)
    for batch in kept:
        assert (batch.data[0].asnumpy() == wanted[batch.index]).all()
        assert (batch.label[0].asnumpy() == Y[batch.index]).all()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_a_copy_is_a_batch_of_arrays(copied):
    batch = ArrayIter(X, Y, 16, last_batch="pad").next()
    other = copied(batch)
    assert type(other) is mx.io.DataBatch
    assert other.pad == batch.pad
    assert (other.data[0].asnumpy() == batch.data[0].asnumpy()).all()
    assert (other.label[0].asnumpy() == batch.label[0].asnumpy()).all()
    assert "data shapes: [(16, 10)]" in str(batch)


def test_arrays_live_until_they_have_been_read():
    numbers = mx.nd.array(np.random.RandomState(0).permutation(20000), dtype="int64")
    for seed in range(10):
        values = np.random.RandomState(seed).rand(20000, 50).astype(np.float32)
        wanted = values[numbers.asnumpy()]
        table = host.shared(values)
        del values
        taken = mx.nd.take(table, numbers)
        del table
        gc.collect()
        np.random.rand(1000000)  # into the memory that is free now
        assert (taken.asnumpy() == wanted).all()


def test_the_users_array_stays_writable():
    values = np.ones((4, 2), np.float32)
    table = host.shared(values)
    values[0] = 5
    assert table.asnumpy()[0].tolist() == [5, 5]


ENDS = """
import sys
import numpy as np
from mxloop.compat import mx
from mxloop.data import ArrayIter

batches = ArrayIter(np.ones((40000, 200)), np.ones(40000), 4096, shuffle=True)
table = batches._tables.shared["data"][0]
taken = [mx.nd.take(table, batch.numbers) for batch in batches]
if sys.argv[1] == "cycle":
    ring = [batches, table]
    ring.append(ring)
    del batches, table, ring
"""


@pytest.mark.parametrize("how", ["plain", "cycle"])
def test_a_process_ends_while_arrays_are_read(how):
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, how], stderr=subprocess.PIPE, timeout=100, check=False
    )
    assert (ended.returncode, ended.stderr.decode()) == (0, "")


def test_an_engine_thread_never_waits_for_itself():
    """A collection of garbage may come while a callback of the engine runs Python."""
    process, found = host.os.getpid(), []
    assert host._engine_runs(process)
    assert not host._engine_runs(process + 1)
    import _thread

    done = threading.Event()
    _thread.start_new_thread(lambda: (found.append(host._engine_runs(process)), done.set()), ())
    assert done.wait(30)
    assert found == [False]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_a_copy_of_an_iterator_that_was_trained_on_holds_the_arrays_once(again):
    data = ArrayIter(X, Y, 16)
    before = len(pickle.dumps(data))
    fitted(data)
    assert len(pickle.dumps(data)) - before < X.nbytes
    data.reset()
    other = again(data)
    same(fitted(data), fitted(other))
