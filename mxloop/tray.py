"""Outputs and labels of many batches, side by side, for metrics that may count them at one go."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxloop.compat import mx
from mxloop.executor_group import DataParallelExecutorGroup
from mxloop.prepared import Prepared

MANY = 16  # batches
LARGE = 1 << 18  # bytes: larger outputs would only be kept, and copied, for nothing


class Outcome(NamedTuple):
    """What a metric reads of one batch: real rows only, in sample order.

    Attributes
    ----------
    pairs : list of str or None
        The label of each output, as `mxloop.metric.pair_labels` finds it.
    labels : dict of str to NDArray
    outputs : list of (str, NDArray)
    """

    pairs: Sequence[Optional[str]]
    labels: Dict[str, mx.nd.NDArray]
    outputs: List[Tuple[str, mx.nd.NDArray]]


class _Place(NamedTuple):
    """Where one output or label goes."""

    name: str
    room: mx.nd.NDArray
    parts: List[Any]  # (rows of the batch, the array that holds them) of each device


class Tray:
    """Room for what metrics read of so many batches of one shape.

    Parameters
    ----------
    group : DataParallelExecutorGroup
        That runs the batches.
    pairs : list of str
        The label of each output.
    ctx : Context
        Where the room is.
    many : int
        Batches.
    """

    def __init__(
        self, group: DataParallelExecutorGroup, pairs: Sequence[str], ctx: mx.Context, many: int
    ):
        self._many, self._pairs, self._taken = many, pairs, 0
        self._rows = max(part.stop for part in group.slices)
        self._outputs = [
            self._place(group, name, [group.execs[d].outputs[i] for d in group.active], ctx)
            for i, name in enumerate(group.output_names)
        ]
        self._labels = [
            self._place(group, name, [group.execs[d].arg_dict[name] for d in group.active], ctx)
            for name in dict.fromkeys(pairs)
        ]
        self._copies: List[List[Prepared]] = []

    def _place(self, group, name, arrays, ctx):
        first = arrays[0]
        shape = (self._many * self._rows, *first.shape[1:])
        room = mx.nd.empty(shape, ctx, first.dtype)
        return _Place(name, room, list(zip([group.slices[i] for i in group.active], arrays)))

    @property
    def is_full(self) -> bool:
        """Whether there is no room left."""
        return self._taken == self._many

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._taken

    def take(self) -> None:
        """Take the batch that was run last; asynchronous."""
        if self._taken == len(self._copies):
            self._copies.append(self._copies_to(self._taken * self._rows))
        for copy in self._copies[self._taken]:
            copy()
        self._taken += 1

    def _copies_to(self, start):
        return [
            Prepared("_copyto", [array], [place.room[start + part.start : start + part.stop]])
            for place in [*self._outputs, *self._labels]
            for part, array in place.parts
        ]

    def empty(self) -> Outcome:
        """Give what was taken, as if it were one batch, and have room again."""
        rows, self._taken = self._taken * self._rows, 0
        labels = {place.name: place.room[:rows] for place in self._labels}
        outputs = [(place.name, place.room[:rows]) for place in self._outputs]
        return Outcome(self._pairs, labels, outputs)


def trays_for(
    group: DataParallelExecutorGroup, pairs: Sequence[Optional[str]], ctx: mx.Context
) -> Optional[List[Tray]]:
    """Two trays: one takes batches while the other is counted.

    None where outputs are not of shape (rows, classes) and their labels of (rows,), or are large.
    """
    if not group.active:
        return None
    executor, fed = group.execs[group.active[0]], {desc.name for desc in group.inputs}
    if not all(pair in fed and executor.arg_dict[pair].ndim == 1 for pair in pairs):
        return None
    if not all(output.ndim == 2 for output in executor.outputs):
        return None
    rows = max(part.stop for part in group.slices)
    widths = [output.shape[1] * np.dtype(output.dtype).itemsize for output in executor.outputs]
    many = min(MANY, LARGE // (rows * sum(widths)))
    return [Tray(group, pairs, ctx, many) for _ in range(2)] if many > 1 else None
