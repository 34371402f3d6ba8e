"""A watch over the gradients: which became NaN or infinite first, in which step, on which device.

Each step one more operator a block adds up short rows of the gradients, on the device. A sum is
finite if all its terms are (and below 1e36; for arrays of their own, whose squares are added,
below 1e18). The sums are read every so many steps, so that the device does not wait for the host.
"""

from typing import Any, List, Tuple

import numpy as np

from mxloop.blocks import ROW, Block
from mxloop.compat import mx
from mxloop.errors import DivergedError
from mxloop.validation import shown

# Steps from one reading to the next.
EVERY = 32


class Guard:
    """Watches the gradients of a manager.

    Parameters
    ----------
    manager : DataParallelExecutorManager
    """

    def __init__(self, manager: Any):
        self._order = {name: i for i, name in enumerate(manager.param_names)}
        self._watches = [
            _watch(block, device)
            for block in manager.blocks
            for device in range(len(manager.ctx))
            if _can_be_added(block)
        ]
        self._steps: List[Tuple[int, int]] = []

    def look(self, epoch: int, batch: int) -> None:
        """Look at the gradients as they are now; asynchronous but for each 32nd time.

        Raises
        ------
        DivergedError
            If one was NaN or infinite since the last reading.
        """
        if len(self._steps) == EVERY:
            self.check()
        for watch in self._watches:
            watch.look(len(self._steps))
        self._steps.append((epoch, batch))

    def check(self) -> None:
        """Read what was seen; waits for the devices.

        Raises
        ------
        DivergedError
            If a gradient was NaN or infinite.
        """
        steps, self._steps = self._steps, []
        found = [bad for watch in self._watches for bad in watch.bad(len(steps))]
        if found:
            step, name, device = min(found, key=lambda bad: (bad[0], self._order[bad[1]]))
            epoch, batch = steps[step]
            raise DivergedError(
                f"the gradient of {shown(repr(name), 60)} on {device} is NaN or infinite in epoch "
                f"{epoch}, batch {batch}; lower the learning rate, or look at the data; the model "
                "keeps the epoch before"
            )


def _can_be_added(block):
    grad = block.grads[0]
    return grad.stype == "default" and np.dtype(grad.dtype) in (np.float32, np.float64)


def _watch(block: Block, device: int) -> "_Watch":
    grad = block.grads[device]
    if block.layout is None:
        return _Watch([grad], block.names, [0])
    rows = grad.reshape((-1, ROW))
    first = [start // ROW for start in block.layout.starts]
    return _Watch([rows, mx.nd.ones((ROW,), grad.context, grad.dtype)], block.names, first)


class _Watch:
    """Sums of one block on one device: a row of sums each step, and the parameter of each sum."""

    def __init__(self, arrays, names, first):
        self._arrays, self._names, self._first = arrays, names, first
        self._device = arrays[0].context
        size = 1 if len(arrays) == 1 else arrays[0].shape[0]
        dtype = "float32" if len(arrays) == 1 else arrays[0].dtype  # as multi_sum_sq gives
        self._sums = mx.nd.zeros((EVERY, size), self._device, dtype)
        self._slots = [self._sums[i] for i in range(EVERY)]

    def look(self, slot):
        if len(self._arrays) == 1:
            mx.nd.multi_sum_sq(self._arrays[0], num_arrays=1, out=self._slots[slot])
        else:
            mx.nd.dot(*self._arrays, out=self._slots[slot])

    def bad(self, steps):
        """(step, parameter, device) of the first step that has any, for each such parameter."""
        if not steps:
            return []
        finite = np.isfinite(self._sums.asnumpy()[:steps])  # waits for the device
        bad_steps = np.flatnonzero(~finite.all(axis=1))
        if not len(bad_steps):
            return []
        rows = np.flatnonzero(~finite[bad_steps[0]])
        places = np.searchsorted(self._first, rows, side="right") - 1
        return [(bad_steps[0], self._names[i], self._device) for i in set(places)]
