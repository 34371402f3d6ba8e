"""Prefetch against the very iterator that it wraps: batches, errors, states, threads, forks."""

import copy
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import nets
import numpy as np
import pytest

from mxloop import FeedForward, mx, passes, prefetch
from mxloop.callback import Checkpoint
from mxloop.data import ArrayIter, Prefetch
from mxloop.errors import ArgumentError, ArgumentTypeError, MXLoopError, StateError

HERE = Path(__file__).resolve().parent
ROWS = 29
X, Y = nets.samples(ROWS)


class Reusing(mx.io.DataIter):
    """Writes each batch into the same arrays; says more of a batch than most."""

    def __init__(self):
        super().__init__(4)
        self.provide_data = [mx.io.DataDesc("data", (4, 3))]
        self.provide_label = [mx.io.DataDesc("softmax_label", (4,))]
        self._data, self._label, self._index = mx.nd.zeros((4, 3)), mx.nd.zeros((4,)), np.zeros(4)
        self._at = 0

    def reset(self):
        self._at = 0

    def next(self):
        if self._at == 7:
            raise StopIteration
        self._at += 1
        for array in (self._data, self._label, self._index):
            array[:] = self._at
        own = mx.io.DataBatch([self._data], [self._label], self._at % 3, self._index, self._at % 2)
        own.provide_data, own.provide_label = self.provide_data, self.provide_label
        own.note = f"batch {self._at}"
        return own


class Bare:
    """No DataIter, and no iteration: `next` alone."""

    provide_data, provide_label = [("data", (4, 2))], []

    def __init__(self):
        self.at = 0

    def reset(self):
        self.at = 0

    def next(self):
        self.at += 1
        if self.at > 5:
            raise StopIteration
        return mx.io.DataBatch([mx.nd.full((4, 2), self.at)])


class Generating(Bare):
    """Gives a generator, as a loader does."""

    def __iter__(self):
        for i in range(6):
            yield mx.io.DataBatch([mx.nd.full((4, 2), i)], [])


def stock(**settings):
    return lambda folder: mx.io.NDArrayIter(X, Y, 8, **settings)


def csv(folder):
    path = folder / "rows.csv"
    np.savetxt(path, X, delimiter=",")
    settings = {"batch_size": 4, "round_batch": False, "prefetch_buffer": 1}
    return mx.io.CSVIter(data_csv=str(path), data_shape=(10,), **settings)


ITERATORS = {
    **{
        f"own_{last}": lambda folder, last=last: ArrayIter(X, Y, 8, True, last, seed=3)
        for last in ("keep", "pad", "discard", "roll_over")
    },
    "stock_pad": stock(shuffle=True),
    "stock_discard": stock(shuffle=True, last_batch_handle="discard"),
    "stock_roll_over": stock(last_batch_handle="roll_over"),
    "stock_resized": lambda folder: mx.io.ResizeIter(mx.io.NDArrayIter(X, Y, 8), 6, False),
    "csv": csv,
    "reusing": lambda folder: Reusing(),
    "bare": lambda folder: Bare(),
    "generating": lambda folder: Generating(),
}


SAID = ("pad", "index", "bucket_key", "provide_data", "provide_label", "note")


def plain(batch):
    """All that a batch says, as bytes and text."""
    told = {name: repr(getattr(batch, name, None)) for name in SAID}
    for name in ("data", "label"):
        told[name] = [array.asnumpy().tobytes() for array in getattr(batch, name) or []]
    return told


def read(iterator, lengths):
    """Passes of so many batches, None for all; each read to its end before any is looked at."""
    return [
        [plain(batch) for batch in list(itertools.islice(passes.one_pass(iterator), length))]
        for length in lengths
    ]


def read_one_by_one(iterator, lengths):
    return [
        [plain(batch) for batch in itertools.islice(passes.one_pass(iterator), length)]
        for length in lengths
    ]


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("name", ITERATORS)
def test_the_batches_are_the_iterators_own_over_several_epochs(tmp_path, name, depth):
    make = ITERATORS[name]
    np.random.seed(5)
    wanted = read_one_by_one(make(tmp_path), [None] * 4)
    np.random.seed(5)
    ahead = Prefetch(make(tmp_path), depth)
    assert read(ahead, [None] * 4) == wanted
    assert all(len(batches) > 2 for batches in wanted)


# These two must know, at reset(), how many batches were read: those read ahead count as well. And
# MXNet's CSVIter, with several threads, does not begin at one and the same place by itself.
@pytest.mark.parametrize("name", sorted({*ITERATORS} - {"stock_resized", "stock_roll_over", "csv"}))
def test_an_epoch_may_be_broken_off_anywhere(tmp_path, name):
    lengths = [1, 2, None, 3, 0, 0, None, 2, None]
    np.random.seed(5)
    wanted = read_one_by_one(ITERATORS[name](tmp_path), lengths)
    np.random.seed(5)
    assert read_one_by_one(Prefetch(ITERATORS[name](tmp_path)), lengths) == wanted


def test_an_iterator_whose_reset_depends_on_its_place_is_put_back_there():
    class Stream(ArrayIter):
        def reset(self):
            pass  # goes on where it stands

    lengths = [1, 2, 0, 1]
    wanted = read_one_by_one(Stream(X, Y, 4, seed=1), lengths)
    assert read_one_by_one(Prefetch(Stream(X, Y, 4, seed=1), 4), lengths) == wanted


def test_arrays_are_made_on_the_context_that_is_current_for_the_consumer():
    ahead = Prefetch(Bare())
    with mx.cpu(1):
        assert ahead.next().data[0].context == mx.cpu(1)


def test_descriptions_length_and_labels_are_the_iterators():
    own, stock_iter = ArrayIter(X, Y, 8), mx.io.NDArrayIter(X, Y, 8)
    ahead = Prefetch(own)
    assert (ahead.provide_data, ahead.provide_label) == (own.provide_data, own.provide_label)
    assert len(ahead) == len(own) == 4 and ahead.batch_size == 8
    assert all(a is b for a, b in zip(ahead.labels_at_hand, own.labels_at_hand))
    other = Prefetch(stock_iter)
    assert ahead and other and list(other)
    for name in ("__len__", "labels_at_hand", "default_bucket_key", "state_dict"):
        assert not hasattr(other, name)
    with pytest.raises(TypeError, match="NDArrayIter has no len"):
        len(other)


# --- Reading ahead ------------------------------------------------------------------------------


class Counting(ArrayIter):
    """Tells how many batches were asked for; a test may hold it in mid-batch."""

    def __init__(self, n=16):
        super().__init__(np.zeros((n, 2)), batch_size=1)
        self.asked, self.told, self.free = 0, threading.Condition(), threading.Event()
        self.free.set()
        self.wanted, self.ahead = 0, []

    def next(self):
        with self.told:
            self.asked += 1
            self.ahead.append(self.asked - self.wanted)
            self.told.notify_all()
        assert self.free.wait(60)
        return super().next()

    def wait_for(self, asked):
        with self.told:
            return self.told.wait_for(lambda: self.asked >= asked, 60)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_so_many_batches_are_read_while_the_consumer_works_and_no_more(depth):
    data = Counting()
    ahead = Prefetch(data, depth)
    assert data.asked == 0
    for _ in range(6):
        data.wanted += 1
        ahead.next()
        assert data.wait_for(data.wanted + depth)
    ahead.close()
    assert data.asked == 6 + depth and max(data.ahead) == depth


def test_a_batch_can_be_taken_while_the_next_is_read():
    data = Counting()
    ahead = Prefetch(data)
    ahead.next()
    assert data.wait_for(3)
    data.free.clear()
    ahead.next()
    assert data.wait_for(4)  # and held there
    ahead.next()
    data.free.set()
    ahead.close()


# --- Errors -------------------------------------------------------------------------------------


class Failing(Bare):
    """Fails at its fourth batch, each time anew; then goes on."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def next(self):
        batch = super().next()
        if self.at == 4:
            self.fail()
        return batch

    def fail(self):
        raise self.error("disk")


@pytest.mark.parametrize("error", [OSError, MXLoopError, KeyboardInterrupt, SystemExit])
def test_an_error_comes_at_its_batch_with_type_and_traceback(error):
    ahead = Prefetch(Failing(error), 5)
    for _ in range(2):
        ahead.reset()
        seen = [ahead.next().data[0].asnumpy()[0, 0] for _ in range(3)]
        with pytest.raises(error) as caught:
            ahead.next()
        frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert frames[-1] == "fail" and str(caught.value) == "disk"
        assert seen == [1, 2, 3]
    assert ahead.next().data[0].asnumpy()[0, 0] == 5  # as the iterator by itself
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.next()


def test_what_was_learned_before_an_error_is_kept():
    class Broken(ArrayIter):
        def next(self):
            if self.position == 2:
                raise OSError("disk")
            return super().next()

    models = []
    for wrap in (lambda data: data, Prefetch):
        models.append(model(2))
        with pytest.raises(OSError, match="disk"):
            models[-1].fit(wrap(Broken(X, Y, 8, seed=1)), seed=1)
    assert same(*models)


def no_thread():
    return not [t for t in threading.enumerate() if t.name == "mxloop.Prefetch" and t.is_alive()]


def test_the_thread_ends_with_the_pass_with_an_error_with_close_and_with_the_object():
    def ended():
        for thread in threading.enumerate():
            if thread.name == "mxloop.Prefetch":
                thread.join(60)
        return no_thread()

    ahead = Prefetch(ArrayIter(X, Y, 4))
    list(ahead)
    assert ended()
    failing = Prefetch(Failing(OSError))
    with pytest.raises(OSError):
        list(failing)
    assert ended()
    ahead.reset()
    ahead.next()
    assert not no_thread()
    ahead.close()
    assert no_thread()
    ahead.next(), ahead.next(), ahead.next()
    assert not no_thread()
    del ahead
    assert ended()


def test_close_loses_nothing():
    wanted = read(ArrayIter(X, Y, 4, True, seed=2), [None])[0]
    ahead, seen = Prefetch(ArrayIter(X, Y, 4, True, seed=2), 3), []
    for batch in ahead:
        seen.append(plain(batch))
        ahead.close()
    assert seen == wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_gone_is_one_line(monkeypatch):
    monkeypatch.setattr(prefetch, "LOOK_SECONDS", 0.01)
    ahead = Prefetch(ArrayIter(X, Y, 4))
    with monkeypatch.context() as patch:
        patch.setattr(prefetch._Reader, "_read", lambda self: sys.exit())
        with pytest.raises(StateError) as caught:
            ahead.next()
    assert "call reset()" in nets.one_line(caught)
    ahead.reset()
    assert len(list(ahead)) == 8


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((X,), ArgumentTypeError, "pass an iterator"),
        ((None,), ArgumentTypeError, "pass an iterator"),
        ((ArrayIter(X, Y, 4), 0), ArgumentError, "depth is 0"),
        ((ArrayIter(X, Y, 4), 1.5), ArgumentTypeError, "depth is 1.5"),
        ((ArrayIter(X, Y, 4), "two"), ArgumentTypeError, "depth is 'two'"),
    ],
)
def test_a_mistake_is_one_line(arguments, error, says):
    with pytest.raises(error) as caught:
        Prefetch(*arguments)
    assert says in nets.one_line(caught)


def test_an_odd_batch_gets_the_line_that_it_gets_without():
    class Odd(Bare):
        provide_label = [("softmax_label", (4,))]

        def next(self):
            return mx.io.DataBatch([np.zeros((4, 2))], [mx.nd.zeros((4,))])

    told = []
    for data in (Odd(), Prefetch(Odd())):
        with pytest.raises(MXLoopError) as caught:
            model(1, columns=2).fit(data)
        told.append(nets.one_line(caught))
    assert told[0] == told[1]


# --- Training, and resuming ---------------------------------------------------------------------


def model(epochs, columns=10, **settings):
    net = nets.mlp()
    args, _ = nets.params(net, data=(8, columns))
    settings = {"learning_rate": 0.1, "momentum": 0.9, **settings}
    return FeedForward(net, nets.CPUS[:2], epochs, arg_params=args, **settings)


def same(one, other):
    return all(
        np.array_equal(array.asnumpy(), other.arg_params[name].asnumpy())
        for name, array in one.arg_params.items()
    )


def test_a_checkpoint_tells_of_the_batch_that_was_taken_last():
    plainly, ahead = (wrap(ArrayIter(X, Y, 4, True, seed=1)) for wrap in (lambda d: d, Prefetch))
    for _ in range(2):
        for _ in range(8):
            assert ahead.state_dict() == plainly.state_dict()
            assert plain(ahead.next()) == plain(plainly.next())
        for iterator in (ahead, plainly):
            with pytest.raises(StopIteration):
                iterator.next()
        assert ahead.state_dict() == plainly.state_dict()
        ahead.reset(), plainly.reset()


def test_a_state_can_be_loaded_in_mid_pass():
    ahead = Prefetch(ArrayIter(X, Y, 4, True, seed=1), 3)
    ahead.next(), ahead.next()
    state = json.loads(json.dumps(ahead.state_dict()))
    wanted = [plain(batch) for batch in ahead]
    ahead.reset(), ahead.next()
    ahead.load_state_dict(state)
    assert [plain(batch) for batch in ahead] == wanted


class Live(ArrayIter):
    """Hands out the state that it works with, and changes it."""

    def __init__(self, *args, **kwargs):
        self._live = {}
        super().__init__(*args, **kwargs)

    def state_dict(self):
        self._live.update(super().state_dict())
        return self._live


def test_a_state_is_taken_down_not_referred_to():
    ahead = Prefetch(Live(X, Y, 4, seed=1))
    states = [copy.deepcopy(ahead.state_dict()) for _ in ahead]
    assert [state["position"] for state in states] == list(range(1, 9))


class Stop(Exception):
    pass


def stop_at(epoch, batch):
    def stop(param):
        if (param.epoch, param.nbatch) == (epoch, batch):
            raise Stop

    return stop


def shuffled_own():
    return ArrayIter(X, Y, 4, True, "roll_over", seed=3)


def shuffled_stock():
    return mx.io.NDArrayIter(X, Y, 4, shuffle=True)


@pytest.mark.parametrize("place", [(0, 1), (0, 5), (1, 3), (2, 6)])
@pytest.mark.parametrize(
    ("make", "epoch_size"),
    [(shuffled_own, None), (shuffled_own, 5), (shuffled_own, 11), (shuffled_stock, None)],
)
def test_a_resumed_run_equals_the_one_without_prefetch(tmp_path, caplog, make, epoch_size, place):
    def fit(data, **settings):
        np.random.seed(4)
        own = model(3, epoch_size=epoch_size)
        return own.fit(data(), eval_data=Prefetch(shuffled_own()), seed=1, **settings)

    def ahead():
        return Prefetch(make(), 3)

    caplog.set_level(logging.ERROR, "mxloop.training")  # replaying is told of
    keeper = Checkpoint(tmp_path / "m")
    place = place[0], min(place[1], epoch_size or 6)
    with pytest.raises(Stop):
        fit(ahead, checkpoint=keeper, batch_end_callback=stop_at(*place))
    wanted = fit(make)
    assert same(fit(ahead), wanted)
    resumed = fit(ahead, checkpoint=keeper, resume=True)
    assert same(resumed, wanted)
    for name in ("train_accuracy", "val_accuracy"):
        assert [row[name] for row in resumed.history] == [row[name] for row in wanted.history]


def test_predictions_and_scores_are_the_same():
    trained = model(1).fit(ArrayIter(X, Y, 8), seed=1)
    ahead, plainly = Prefetch(ArrayIter(X, Y, 8)), ArrayIter(X, Y, 8)
    assert trained.score(ahead) == trained.score(plainly)
    for settings in ({}, {"num_batch": 2}, {"num_batch": 1, "reset": False}):
        wanted = trained.predict(plainly, **settings)
        assert np.array_equal(trained.predict(ahead, **settings), wanted)


# --- The share of the time ----------------------------------------------------------------------


class Clock:
    """Stands still, but for what is said to take time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("mxloop.training.time.perf_counter", lambda: self.now)


def slow(kind, clock, seconds=3):
    class Slow(kind):
        def next(self):
            clock.now += seconds
            return super().next()

    return Slow


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "mxloop")
    return lambda: [text for text in caplog.messages if "Time cost" in text]


def fit_with(clock, data, step=1):
    def take_time(param):
        clock.now += step

    return model(2).fit(data, seed=1, batch_end_callback=take_time)


def test_an_epoch_tells_how_much_of_it_was_waiting_for_data(monkeypatch, lines):
    clock = Clock(monkeypatch)
    found = fit_with(clock, slow(Reading, clock)())
    assert [row["waiting"] for row in found.history] == [pytest.approx(12 / 15)] * 2
    assert [row["seconds"] for row in found.history] == [15] * 2
    hint = "\tWaited for data: 80% of the time; mxloop.data.Prefetch reads ahead"
    assert all(line.endswith(hint) for line in lines()) and len(lines()) == 2


class Reading(mx.io.DataIter):
    """Three batches, from somewhere."""

    def __init__(self):
        super().__init__(8)
        self._own = ArrayIter(X[:24], Y[:24], 8)
        self.provide_data, self.provide_label = self._own.provide_data, self._own.provide_label

    def reset(self):
        self._own.reset()

    def next(self):
        return self._own.next()


def test_little_waiting_has_no_word_nor_have_arrays(monkeypatch, lines):
    clock = Clock(monkeypatch)
    found = fit_with(clock, slow(Reading, clock)(), step=1000)
    assert 0 < found.history[0]["waiting"] < 0.1
    assert fit_with(clock, slow(ArrayIter, clock)(X, Y, 8)).history[0]["waiting"] > 0.5
    assert len(lines()) == 4 and not [line for line in lines() if "Waited" in line]


def test_who_reads_ahead_is_not_told_to(monkeypatch, lines):
    clock = Clock(monkeypatch)
    fit_with(clock, slow(Prefetch, clock)(Reading()))
    assert all(line.endswith("Waited for data: 80% of the time") for line in lines())


# --- Processes ----------------------------------------------------------------------------------

BEGIN = """
import os, sys, threading, time
import nets
from mxloop import mx, passes
from mxloop.data import ArrayIter, Prefetch
x, y = nets.samples(24)

class Slow(ArrayIter):
    begun = threading.Event()
    def next(self):
        mx.nd.ones((3,)).asnumpy()
        if self.position == 2:
            self.begun.set()
            time.sleep(SLEEP)
        return super().next()

def indices(data):
    return [batch.index.tolist() for batch in data]

wanted = indices(Slow(x, y, 4)) if not SLEEP else None
ahead = Prefetch(Slow(x, y, 4))
"""

EXIT = """
kept = ahead
ahead.next()
ahead.begun = Slow.begun.wait(60)
print("end")
"""

FORK = """
first = ahead.next().index.tolist()
child = os.fork()
if not child:
    rest, whole = indices(ahead), indices(passes.one_pass(ahead))
    os._exit(0 if [first, *rest] == wanted == whole else 3)
assert os.waitpid(child, 0)[1] == 0
assert [first, *indices(ahead)] == wanted
child = os.fork()  # no thread at present
if not child:
    sys.exit(0 if indices(passes.one_pass(ahead)) == wanted else 3)
assert os.waitpid(child, 0)[1] == 0
"""

POOL = """
import multiprocessing
for _ in range(20):
    ahead.reset()
    first = ahead.next().index.tolist()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, range(3)) == [0, 1, 2]
    assert [first, *indices(ahead)] == wanted
"""

TORN = """
from mxloop import prefetch
from mxloop.errors import StateError
prefetch.GRACE_SECONDS = 0.1
ahead.next(), ahead.next()
assert Slow.begun.wait(60)
child = os.fork()
if not child:
    try:
        ahead.next()
    except StateError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def run(code, sleep=0):
    code = BEGIN.replace("SLEEP", str(sleep)) + code
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("sleep", [0, 0.5], ids=["waiting for room", "in mid-batch"])
def test_a_process_ends_cleanly_while_the_thread_lives(sleep):
    done = run(EXIT, sleep)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("code", [FORK, POOL], ids=["fork", "pool"])
def test_a_forked_child_goes_on_by_itself(code):
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_child_forked_in_mid_batch_is_told_in_one_line():
    done = run(TORN, sleep=60)
    assert done.returncode == 0, done.stderr
    assert "call reset()" in done.stdout and done.stdout.count("\n") == 1
