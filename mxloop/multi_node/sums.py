"""Sums over all ranks as tasks of MXNet's engine: made as soon as an array is ready.

So they overlap with whatever else is queued, as the rest of a backward pass, and whoever reads the
array afterwards waits for the sum as for any other operator.
"""

import ctypes
import itertools
from typing import Dict, NamedTuple, Optional

from mxloop import host
from mxloop.compat import mx
from mxloop.errors import MXLoopError, PeerError
from mxloop.multi_node import arrays as memory_of
from mxloop.multi_node import failures
from mxloop.multi_node.communicator import Communicator

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
# The engine has threads of their own for such tasks: the usual one goes on with the network.
PRIORITIZED = ctypes.c_int(3)


class _Place(ctypes.Structure):
    """MXNet's Context."""

    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


CPU = _Place(1, 0)


class QueuedSums:
    """Queue sums; all ranks must queue the same ones in the same order.

    Parameters
    ----------
    communicator : Communicator
        Nothing else may use it.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        # What all tasks write: so they run in the order in which they were queued.
        self._turn = mx.nd.zeros((1,))
        self._error: Optional[MXLoopError] = None

    def add(self, array: mx.nd.NDArray, mean: bool = False) -> None:
        """Replace an array by its sum (or mean) over all ranks; asynchronous.

        Raises
        ------
        PeerError
            If an earlier sum failed.
        """
        self.raise_error()
        if memory_of.is_on_cpu(array):
            self._queue(array)
        else:
            copy = array.as_in_context(mx.cpu())
            self._queue(copy)
            copy.copyto(array)
        if mean:
            array /= self._communicator.size

    def raise_error(self) -> None:
        """Raise what went wrong in a sum; the arrays hold nothing of use then."""
        if self._error is not None:
            failures.unraised.pop(id(self), None)
            raise PeerError(str(self._error)) from self._error

    def _queue(self, array):
        if self._communicator.size == 1:
            return
        number = next(_numbers)
        _tasks[number] = _Task(self, array)
        written = (ctypes.c_void_p * 2)(array.handle, self._turn.handle)
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                _run,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(CPU),
                None,
                0,
                written,
                2,
                ctypes.byref(PRIORITIZED),
                0,
                b"mxloop_sum",
            )
        )

    def run(self, array: mx.nd.NDArray) -> None:
        """Make one sum; in a thread of the engine's, which has the array to itself."""
        if self._error is None:
            try:
                self._communicator.sum_in_place([host.view(array)])
            except MXLoopError as error:
                self._error = error
                failures.unraised[id(self)] = error


class _Task(NamedTuple):
    sums: QueuedSums
    array: mx.nd.NDArray


_tasks: Dict[int, _Task] = {}
_numbers = itertools.count(1)


@_TASK
def _run(_, number):
    task = _tasks.pop(number)
    try:
        task.sums.run(task.array)
    except BaseException:
        failures.fail("a sum over all ranks")
