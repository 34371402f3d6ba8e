"""A watch over the gradients: which became NaN or infinite first, in which step, on which device.

Each step one more operator a block adds up short rows of the gradients, on the device. A sum is
finite if all its terms are (and below 1e36; for arrays of their own, whose squares are added,
below 1e18). The sums are read every so many steps, so that the device does not wait for the host.
"""

from typing import Any, List, Sequence, Tuple

import numpy as np

from mxloop.blocks import ROW, Block
from mxloop.compat import mx
from mxloop.errors import DivergedError
from mxloop.prepared import Prepared
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
        devices = range(len(manager.ctx))
        self._watches = [watch for i in devices for watch in _watches(manager.blocks, i)]
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


def _watches(blocks: Sequence[Block], device: int) -> List["_Watch"]:
    """One for each block, and one for all arrays of a dtype that lie alone."""
    watched = [block for block in blocks if _can_be_added(block)]
    alone = [block for block in watched if block.layout is None]
    kinds = dict.fromkeys(np.dtype(block.grads[device].dtype) for block in alone)
    return [
        *(_of_rows(block, device) for block in watched if block.layout is not None),
        *(_of_arrays([b for b in alone if b.grads[device].dtype == k], device) for k in kinds),
    ]


def _can_be_added(block):
    grad = block.grads[0]
    return grad.stype == "default" and np.dtype(grad.dtype) in (np.float32, np.float64)


def _of_rows(block, device):
    rows = block.grads[device].reshape((-1, ROW))
    ones = mx.nd.ones((1, ROW), rows.context, rows.dtype)
    first = [start // ROW for start in block.layout.starts]
    shape, settings = (rows.shape[0], 1), {"num_hidden": 1, "no_bias": True}
    # The quickest sum of rows. `dot` would go to OpenBLAS, which two contexts with several threads
    # each must not call at the same time: one of them may then wait forever.
    inputs = [rows, ones]
    return _Watch(shape, rows.dtype, block.names, first, "FullyConnected", inputs, **settings)


def _of_arrays(blocks, device):
    grads = [block.grads[device] for block in blocks]
    names, count = [block.names[0] for block in blocks], len(grads)
    shape, first = (count,), range(count)
    return _Watch(shape, np.float32, names, first, "multi_sum_sq", grads, num_arrays=count)


class _Watch:
    """Sums on one device: a row of sums each step, and the first sum of each parameter."""

    def __init__(self, shape, dtype, names, first, operator, arrays, **settings):
        self._names, self._first = names, first
        self._device = arrays[0].context
        self._sums = mx.nd.zeros((EVERY, *shape), self._device, dtype)
        self._looks = [Prepared(operator, arrays, [row], **settings) for row in self._sums]

    def look(self, slot):
        self._looks[slot]()

    def bad(self, steps):
        """(step, parameter, device) of the first step that has any, for each such parameter."""
        if not steps:
            return []
        sums = self._sums.asnumpy()[:steps]  # waits for the device
        finite = np.isfinite(sums).reshape((steps, -1))
        bad_steps = np.flatnonzero(~finite.all(axis=1))
        if not len(bad_steps):
            return []
        rows = np.flatnonzero(~finite[bad_steps[0]])
        places = np.searchsorted(self._first, rows, side="right") - 1
        return [(bad_steps[0], self._names[i], self._device) for i in set(places)]
