"""MXNet's parameter server: workers that agree on every step, and never wait in vain."""

import itertools
import os
import socket
import time
from typing import Any, Iterable, Iterator

from mxloop.compat import mx
from mxloop.errors import StateError
from mxloop.executor_manager import real_rows

NEEDED = (
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
)
COUNT_KEY = "mxloop_num_samples"
SCHEDULER_SECONDS = 15.0


def is_synchronous(kvstore: Any) -> bool:
    """Whether all workers of a store take each step together."""
    kind = str(getattr(kvstore, "type", ""))
    return kind.startswith("dist") and "async" not in kind


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
    deadline = time.monotonic() + SCHEDULER_SECONDS
    while not _answers(host, port):
        if time.monotonic() > deadline:
            raise StateError(
                f"no scheduler answered at {host}:{port} for {SCHEDULER_SECONDS:.0f} s; start the "
                "process with DMLC_ROLE=scheduler first, and check host and port"
            )
        time.sleep(0.1)


def _answers(host, port):
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


class Workers:
    """All workers of a synchronous store: they add up each step's samples before they take it.

    So every step is the mean over the real samples of all workers, and an epoch ends for all at
    once, however many batches each has.
    """

    def __init__(self, kvstore: Any):
        self._kvstore = kvstore
        self._count = mx.nd.zeros((1,))
        kvstore.init(COUNT_KEY, self._count)

    def total(self, samples: int) -> int:
        """Sum a number over all workers; this waits for them."""
        self._kvstore.push(COUNT_KEY, mx.nd.array([samples]))
        self._kvstore.pull(COUNT_KEY, out=self._count)
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
