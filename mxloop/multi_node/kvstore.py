"""The kvstore 'mpi': data parallelism over processes, each with one device or several."""

import functools
from typing import Any, List

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError
from mxloop.multi_node.communicator import create_communicator
from mxloop.multi_node.evaluator import check_sums, merge
from mxloop.multi_node.sums import QueuedSums
from mxloop.validation import check_shape


@mx.kvstore.KVStoreBase.register
class MPI(mx.kvstore.KVStoreBase):
    """Adds up gradients over all devices of all ranks; every rank updates its own parameters.

    ``mx.kv.create('mpi')`` makes one, once mxloop.multi_node has been imported; all ranks must do
    so together, and push the same keys in the same order. A Gluon Trainer wants the store itself,
    since it takes a name for nothing where there is one device: ``Trainer(params, 'sgd',
    kvstore=mx.kv.create('mpi'))``, and `step` the batch size of all ranks together.
    """

    def __init__(self) -> None:
        self._communicator = create_communicator()
        # Sums are made in another thread, so they have a communicator of their own.
        self._sums = QueuedSums(self._communicator.split(0, self._communicator.rank))

    @property
    def type(self) -> str:
        """The name, 'mpi'."""
        return "mpi"

    @property
    def rank(self) -> int:
        """This process's number."""
        return self._communicator.rank

    @property
    def num_workers(self) -> int:
        """Number of processes."""
        return self._communicator.size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store can update parameters by an optimizer ('optimizer'): no."""
        return False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Write rank 0's value to `out` on all ranks; this waits for them."""
        (value,) = _dense(key, value)
        found = self._communicator.bcast(None if self.rank else value)
        check_shape(key, value.shape, found.shape, "rank 0")
        for each in _dense(key, out):
            found.copyto(each)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Write the sum of all devices' values on all ranks to `out`; asynchronous.

        Raises
        ------
        PeerError
            If an earlier sum failed, since a rank has ended or did not come.
        """
        values = _dense(key, value)
        outs = values if out is None else _dense(key, out)
        total = outs[0]
        if len(values) > 1:
            mx.nd.add_n(*values, out=total)
        elif values[0] is not total:
            values[0].copyto(total)
        self._sums.add(total)
        for each in outs[1:]:
            total.copyto(each)

    def total(self, number: int) -> int:
        """Add up a number over all ranks; this waits for them.

        Raises
        ------
        PeerError
            If one does not come in time, or an earlier sum failed.
        """
        self._sums.raise_error()
        count = np.array([number], np.int64)
        self._communicator.sum_in_place([count])
        return int(count[0])

    def check_metric(self, metric: mx.metric.EvalMetric) -> None:
        """Raise ArgumentError if a metric's counts do not add up over ranks."""
        check_sums(metric)

    def merge(self, metric: mx.metric.EvalMetric) -> None:
        """Replace a metric's counts by their sums over all ranks."""
        merge(metric, self._communicator)

    def average(self, arrays: List[mx.nd.NDArray]) -> None:
        """Replace arrays, as running statistics, by their means over all ranks."""
        self._communicator.average(arrays)


@functools.lru_cache(maxsize=None)
def shared() -> MPI:
    """The store for all trainings of this process: MPI's communicators are not without number."""
    return MPI()


def _dense(key, arrays):
    listed = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
    for array in listed:
        if array.stype != "default":
            raise ArgumentTypeError(
                f"{str(key)[:60]!r} is {array.stype}, and kvstore 'mpi' adds up dense arrays only; "
                "use 'dist_sync', or dense gradients"
            )
    return listed
