"""Batches read ahead by a thread of its own, while the devices work on those before.

The thread reads, copies and takes down the iterator's state; whoever consumes the batches sees
them, and the state, as if the iterator had been read just now.
"""

import atexit
import collections
import copy
import os
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, NamedTuple, Optional

import numpy as np

from mxloop import host, passes
from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError, StateError
from mxloop.validation import count, shown

# How often whoever waits for a batch looks whether the thread still lives.
LOOK_SECONDS = 1.0
# How long a fork, or the end of the process, waits for the batch that is being read.
GRACE_SECONDS = 10.0


class Prefetch(mx.io.DataIter):
    """An iterator, read ahead in a background thread: its reading overlaps with the training.

    The batches are the iterator's own, in its order, and so are its errors, each at its place. An
    iterator with `state_dict` and `load_state_dict` has them here, too: a checkpoint tells of the
    batch that was trained on, not of those read ahead. `provide_data` and `provide_label` are those
    of before the present pass; `len()`, `labels_at_hand` and `default_bucket_key` are there where
    the iterator has them. Of the iterator's arrays each batch has copies, as some iterators write
    their next batch into the same arrays.

    The first batch of a pass starts the thread, and the end of the pass, `close` or the end of the
    object's life ends it. Between two batches the iterator must be left alone by all others.

    Random numbers are drawn in the thread, ahead of the training: an iterator that draws from
    NumPy's or MXNet's global generator for each batch is not resumed to the bit. One without
    `state_dict` must not care, at `reset()`, how many batches were read: where a pass is broken
    off, up to `depth` more were.

    Parameters
    ----------
    data : DataIter
        Anything with ``provide_data``, ``provide_label``, ``reset`` and ``next`` or iteration.
    depth : int
        Batches to read ahead, at least 1; so many are held in memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        In one line, if `data` is no iterator or `depth` no such number.
    """

    def __init__(self, data: Any, depth: int = 2):
        if not (hasattr(data, "provide_data") and hasattr(data, "reset")):
            raise ArgumentTypeError(
                f"data is {shown(repr(data))}; pass an iterator, which has provide_data and "
                "reset(), as mxloop.data.ArrayIter"
            )
        super().__init__(getattr(data, "batch_size", 0))
        self._data = data
        self._reader = _Reader(data, count("depth", depth))
        self._describe()

    def _describe(self):
        self.provide_data, self.provide_label = self._data.provide_data, self._data.provide_label

    def next(self) -> mx.io.DataBatch:
        """Return the next DataBatch; waits until it has been read.

        Raises
        ------
        StateError
            If the thread is gone without having told why, as after a fork in mid-batch.
        """
        return self._reader.take()

    def reset(self) -> None:
        """Reset the iterator, from the place of the batch that was taken last."""
        ahead, seen = self._reader.is_ahead, self._reader.seen
        self._reader.drop()
        if ahead and seen is not None and hasattr(self._data, "load_state_dict"):
            self._data.load_state_dict(seen)
        passes.start_over(self._data)
        self._describe()

    def close(self) -> None:
        """End the thread, once it has read the present batch; nothing that was read is lost.

        The next batch that is wanted and not there starts another one.
        """
        self._reader.stop()

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.tell_to_end()

    def __bool__(self) -> bool:
        return True

    # What only some iterators have are properties here, so that `hasattr` tells of this iterator.

    @property
    def __len__(self) -> Callable[[], int]:
        if not hasattr(self._data, "__len__"):
            raise _NoLengthError(f"{shown(type(self._data).__name__)} has no len()")
        return self._data.__len__

    @property
    def labels_at_hand(self) -> Any:
        """The iterator's."""
        return self._data.labels_at_hand

    @property
    def default_bucket_key(self) -> Any:
        """The iterator's."""
        return self._data.default_bucket_key

    @property
    def state_dict(self) -> Callable[[], Dict[str, Any]]:
        """``state_dict()`` is the iterator's, as it was after the batch that was taken last."""
        own = self._data.state_dict
        return lambda: copy.copy(self._reader.seen) if self._reader.is_ahead else own()

    @property
    def load_state_dict(self) -> Callable[[Dict[str, Any]], None]:
        """``load_state_dict(state)`` goes on where the iterator stood that gave `state`."""
        own = self._data.load_state_dict

        def load(state):
            self._reader.drop()
            own(state)
            self._describe()

        return load


class _NoLengthError(AttributeError, TypeError):
    """Both `hasattr` and `len` take it for what they expect."""


class _Item(NamedTuple):
    """What one reading gave: a batch and the state after it, or an error."""

    batch: Any
    state: Any
    error: Optional[BaseException]


class _Reader:
    """Reads an iterator ahead of whoever takes the batches; knows nothing of that one.

    The thread refers to this object alone, so that a `Prefetch` that nobody needs can go.
    """

    def __init__(self, data, depth):
        self._data, self._depth = data, depth
        self._items: Deque[_Item] = collections.deque()
        self._source = self._thread = self.seen = None
        self._ending = self._is_torn = False
        self._make_locks()

    def _make_locks(self):
        self._changed = threading.Condition()
        self.reading = threading.RLock()  # held from the start of a reading until it is an item

    # The consumer's side

    @property
    def is_ahead(self):
        """Whether the iterator may be further than what was taken."""
        return self._thread is not None or bool(self._items)

    def take(self):
        """The next batch, or the error in its place."""
        if self._is_torn:
            raise StateError(
                "the process was forked while a batch was being read, and the thread that read it "
                "is not here; call reset(), or make the Prefetch in the child"
            )
        if not self.is_ahead:
            self._start()
        item = self._wait()
        if item.error is not None:
            self._thread = None  # it has ended; the next call tries again, as without it
            try:
                raise item.error
            finally:
                del item  # the error refers to this frame, and must not be referred to by it
        self.seen = item.state
        return item.batch

    def _start(self):
        if self._source is None:
            self._source = passes.batches(self._data)
        self.seen = self._state()
        self._ending = False
        here = mx.current_context()  # MXNet keeps one a thread
        thread = threading.Thread(
            target=self._run, args=(here,), name="mxloop.Prefetch", daemon=True
        )
        _readers.add(self)
        thread.start()
        self._thread = thread

    def _wait(self):
        with self._changed:
            while not self._items:
                if not self._thread.is_alive():
                    raise StateError(
                        "the thread that reads ahead has ended without a batch or an error; "
                        "call reset() to start over"
                    )
                self._changed.wait(LOOK_SECONDS)
            self._changed.notify_all()
            return self._items.popleft()

    def drop(self):
        """Stop, and forget what was read and not taken."""
        self.stop()
        self._items.clear()
        self._source, self._is_torn = None, False

    def stop(self):
        """End the thread; what it has read can still be taken."""
        self.tell_to_end()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
        self._thread = None

    def tell_to_end(self):
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def wait_for_end(self, seconds):
        if self._thread is not None:
            self._thread.join(seconds)

    def go_on_in_child(self, is_whole):
        """Of a forked process: the thread, and whatever it holds, stayed in the parent."""
        self._thread = None
        self._is_torn = not is_whole
        self._make_locks()

    # The thread's side

    def _run(self, ctx):
        with ctx:
            while self._may_read() and self._read():
                pass

    def _may_read(self):
        with self._changed:
            self._changed.wait_for(lambda: self._ending or len(self._items) < self._depth)
            return not self._ending

    def _read(self):
        """Read a batch, or the error in its place; whether there may be more."""
        with self.reading:
            return self._put(self._next_item())

    # An error refers to the frame that caught it, and to those above, which therefore must not
    # refer to its item: such a ring would keep the consumer, and so the thread, alive.

    def _next_item(self):
        try:
            return _Item(_own_batch(next(self._source)), self._state(), None)
        except BaseException as error:
            return _Item(None, None, error)

    def _put(self, item):
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
        return item.error is None

    def _state(self):
        """The iterator's state, if it tells any, apart from what it does next."""
        return copy.deepcopy(self._data.state_dict()) if hasattr(self._data, "state_dict") else None


# --- Batches of one's own -----------------------------------------------------------------------


def _own_batch(batch):
    """The batch with copies of its arrays: the next one may be written into them."""
    own = copy.copy(batch)
    for name in ("data", "label", "index"):
        if hasattr(batch, name):
            setattr(own, name, _own(getattr(batch, name)))
    return own


def _own(value):
    if isinstance(value, (list, tuple)):
        return [_own(part) for part in value]
    if isinstance(value, mx.nd.NDArray):
        return _copied(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _copied(array):
    array.wait_to_read()  # an error of the engine's belongs to this batch
    if type(array) is mx.nd.NDArray and array.context.device_type == "cpu":
        own = mx.nd.empty(array.shape, array.context, array.dtype)
        # By this thread: an operator would wait behind the steps that are queued for the device.
        np.copyto(host.view(own), host.view(array))
    else:
        own = array.copy()
        own.wait_to_read()
    return own


# --- Forks, and the end -------------------------------------------------------------------------


_readers: Any = weakref.WeakSet()
_forking = threading.local()


def _before_fork():
    """Let no thread be in the midst of a batch, with locks that nobody in the child would open."""
    deadline = time.monotonic() + GRACE_SECONDS
    _forking.held = [
        reader
        for reader in list(_readers)
        if reader.reading.acquire(timeout=max(deadline - time.monotonic(), 0))
    ]


def _after_in_parent():
    for reader in _forking.held:
        reader.reading.release()
    _forking.held = []


def _after_in_child():
    for reader in list(_readers):
        reader.go_on_in_child(reader in _forking.held)
    _forking.held = []


@atexit.register
def _end_all():
    """End the threads before MXNet ends, which they may be in."""
    readers, deadline = list(_readers), time.monotonic() + GRACE_SECONDS
    for reader in readers:
        reader.tell_to_end()
    for reader in readers:
        reader.wait_for_end(max(deadline - time.monotonic(), 0))


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
