"""MXNet's parameter server: workers that agree on every step, and never wait in vain."""

import atexit
import itertools
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, Sequence

from mxloop.compat import mx
from mxloop.errors import ArgumentError, DataError, PeerError, StateError
from mxloop.executor_manager import real_rows
from mxloop.validation import one_line, shown

NEEDED = (
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
)
COUNT_KEY = "mxloop_num_samples"

_stores: Dict[str, Any] = {}


def is_synchronous(kvstore: Any) -> bool:
    """Whether all workers of a store take each step together."""
    return is_distributed(kvstore) and "async" not in str(kvstore.type)


def is_distributed(kvstore: Any) -> bool:
    """Whether a store joins several processes."""
    kind = str(getattr(kvstore, "type", ""))
    return kind.startswith("dist") or kind == "mpi"


def workers_of(kvstore: Any) -> Any:
    """All workers of a synchronous store, which add up numbers by `total`; MPI's does so itself."""
    return kvstore if hasattr(kvstore, "total") else Workers(kvstore)


class Alone:
    """A process without peers, or with peers that keep metrics and statistics of their own."""

    def check_metric(self, metric: Any) -> None:
        """All metrics will do."""

    def merge(self, metric: Any) -> None:
        """Leave the counts of a metric as they are."""

    def average(self, arrays: Any) -> None:
        """Leave running statistics as they are."""


ALONE = Alone()


def peers_of(kvstore: Any) -> Any:
    """Whom an epoch's metrics and running statistics are shared with: 'mpi' does so itself."""
    return kvstore if hasattr(kvstore, "merge") else ALONE


def is_duplicate(error: BaseException) -> bool:
    """Whether a store refused a key because it has it already."""
    return "duplicate init" in str(error.__cause__)


# --- The store ----------------------------------------------------------------------------------


def create(name: str) -> Any:
    """Return the process's store of this name; there is one, as closing it ends the servers.

    Raises
    ------
    ArgumentError, StateError
        If the process has another one, lacks its environment, or finds no scheduler.
    """
    for other in _stores:
        if other != name:
            raise ArgumentError(
                f"this process has the kvstore {other!r} and cannot have {name!r} as well; "
                "use one of the two in all of it"
            )
    if not _stores:
        check_environment(name)
        with one_line(f"create the kvstore {name!r}"):
            _stores[name] = mx.kv.create(name)
        _close_at_exit(_stores[name])
    return _stores[name]


def _close_at_exit(store):
    """Leave the other processes before MXNet shuts down, whoever still holds the store."""
    seconds = _peer_seconds()
    closing, closed = threading.Event(), threading.Event()

    def watch():
        closing.wait()
        if not closed.wait(seconds):
            _say_and_end("the other workers did not end")

    def close():
        closing.set()
        mx.nd.waitall()
        mx.base._LIB.MXKVStoreFree(store.handle)
        store.handle = None
        closed.set()

    # Started here: while it ends, Python 3.12 starts no thread any more.
    threading.Thread(target=watch, daemon=True).start()
    atexit.register(close)


def _say_and_end(what):
    print(f"mxloop: {what} for {_peer_seconds():g} s; ending", file=sys.stderr)
    _end()


def _end():
    # MXNet would go on waiting for the lost process, and nothing can stop that but this.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _within(seconds: float, wait: Callable[[], Any]) -> bool:
    """Whether a call that may block for ever returns in time; MXNet's own waits have no end."""
    done = threading.Event()
    failed = []

    def run():
        try:
            wait()
        except BaseException as error:
            failed.append(error)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    in_time = done.wait(seconds)
    if failed:
        raise failed[0]
    return in_time


# --- The environment ----------------------------------------------------------------------------


def check_environment(name: str) -> None:
    """Raise StateError unless this process is a worker whose scheduler can be reached."""
    missing = [key for key in NEEDED if key not in os.environ]
    if missing:
        raise StateError(
            f"kvstore {name!r} needs {', '.join(missing)} in the environment of a scheduler, "
            "servers and workers; without them use 'local' or 'device'"
        )
    _wait_for_port(os.environ["DMLC_PS_ROOT_URI"], os.environ["DMLC_PS_ROOT_PORT"])


def _wait_for_port(host, port):
    seconds = seconds_of("MXLOOP_SCHEDULER_SECONDS", 15)
    deadline = time.monotonic() + seconds
    while not _answers(host, port):
        if time.monotonic() > deadline:
            raise StateError(
                f"no scheduler answered at {shown(host)}:{shown(port)} for {seconds:g} s; start "
                "the process with DMLC_ROLE=scheduler first, and check host and port"
            )
        time.sleep(0.1)


def _answers(host, port):
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _peer_seconds():
    return seconds_of("MXLOOP_PEER_SECONDS", 600)


def seconds_of(name: str, default: float) -> float:
    """A time to wait, as the environment says."""
    text = os.environ.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise ArgumentError(f"{name} is {shown(repr(text))}; it must be a number of seconds")
    return seconds


# --- Workers ------------------------------------------------------------------------------------


def refill(
    kvstore: Any, param_arrays: Sequence[Sequence[Any]], names: Sequence[str], served: bool
) -> None:
    """Give all workers rank 0's parameters again, through a store that has their keys.

    Where servers update (`served`), theirs are the parameters, and go to all workers.
    """
    for name, arrays in zip(names, param_arrays):
        if not served:
            # A push is a sum over the workers.
            own = arrays[0] if kvstore.rank == 0 else mx.nd.zeros_like(arrays[0])
            kvstore.push(name, own.copy())
        kvstore.pull(name, out=list(arrays))


class Workers:
    """All workers of a synchronous store: they add up each step's samples before they take it.

    So every step is the mean over the real samples of all workers, and an epoch ends for all at
    once, however many batches each has. The servers must have no optimizer.
    """

    def __init__(self, kvstore: Any):
        self._kvstore = kvstore
        self._count = mx.nd.zeros((1,))
        self._seconds = _peer_seconds()
        try:
            with one_line("join the other workers"):
                kvstore.init(COUNT_KEY, self._count)
        except DataError as error:
            if not is_duplicate(error):
                raise

    def total(self, samples: int) -> int:
        """Sum a number over all workers; this waits for them.

        Raises
        ------
        PeerError
            If one does not answer in time.
        """
        self._kvstore.push(COUNT_KEY, mx.nd.array([samples]))
        self._kvstore.pull(COUNT_KEY, out=self._count)
        if not _within(self._seconds, self._count.wait_to_read):
            atexit.register(_end)
            raise PeerError(
                f"not all workers came to this step in {self._seconds:g} s: one has ended or is "
                "slow; look at the others' output (MXLOOP_PEER_SECONDS waits longer)"
            )
        return int(self._count.asscalar())


def in_step(batches: Iterable, descs: Any, workers: Workers, update: Any) -> Iterator:
    """Yield a worker's batches; once they have run out, join in the others' steps with zeros."""
    for batch in itertools.chain(batches, itertools.repeat(None)):
        update.total = workers.total(0 if batch is None else real_rows(batch, descs))
        if not update.total:
            return
        if batch is None:
            update.with_zeros()
        else:
            yield batch
