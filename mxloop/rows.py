"""Batches that are known by the numbers of their rows, so that a device can take those itself."""

import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxloop import host
from mxloop.compat import mx

KINDS = ("data", "label")


class Tables:
    """The arrays of a data set, whose first axis counts the samples.

    Parameters
    ----------
    data, label : sequence of ndarray
        In C order; they must not change.
    """

    def __init__(self, data: Sequence[np.ndarray], label: Sequence[np.ndarray]):
        self._arrays = dict(zip(KINDS, (data, label)))
        self._shapes: Dict[int, Tuple] = {}

    def __reduce__(self) -> Tuple:
        """Copies and pickles hold the arrays once, and make MXNet's of them anew."""
        return Tables, tuple(map(list, self._arrays.values()))

    def shapes_of(self, rows: int) -> Tuple:
        """Shapes of a batch of so many rows: one tuple for the inputs, one for the labels."""
        if rows not in self._shapes:
            self._shapes[rows] = tuple(
                tuple((rows, *array.shape[1:]) for array in arrays)
                for arrays in self._arrays.values()
            )
        return self._shapes[rows]

    def gather(self, kind: str, rows: np.ndarray) -> List[mx.nd.NDArray]:
        """Copy rows of the inputs or of the labels into new arrays."""
        return [host.gather(array, rows) for array in self._arrays[kind]]

    @functools.cached_property
    def shared(self) -> Optional[Dict[str, List[mx.nd.NDArray]]]:
        """The arrays as MXNet's, without a copy; None where that cannot be."""
        found = {kind: [host.shared(a) for a in arrays] for kind, arrays in self._arrays.items()}
        return None if any(each is None for kind in KINDS for each in found[kind]) else found


class RowsBatch(mx.io.DataBatch):
    """A batch of the given rows; they are gathered when somebody looks at `data` or `label`.

    Parameters
    ----------
    tables : Tables
    index : ndarray of int64
        Numbers of the rows, padding included.
    numbers : NDArray of int64 or None
        Those that are no padding, for devices to take.
    pad : int
    """

    def __init__(
        self, tables: Tables, index: np.ndarray, numbers: Optional[mx.nd.NDArray], pad: int
    ):
        self.tables, self.index, self.numbers, self.pad = tables, index, numbers, pad
        self._given_pad = pad
        self.bucket_key = self.provide_data = self.provide_label = None
        self._gathered: Dict[str, Any] = {}

    @property
    def shapes(self) -> Tuple:
        """Shapes of the inputs and of the labels, without a look at them."""
        return self.tables.shapes_of(len(self.index))

    @property
    def is_unseen(self) -> bool:
        """Whether nobody has looked at the arrays, and so changed them, or said more of them."""
        described = self.provide_data or self.provide_label or self.bucket_key is not None
        return not (self._gathered or described) and self.pad == self._given_pad

    def _gather(self, kind):
        if kind not in self._gathered:
            self._gathered[kind] = self.tables.gather(kind, self.index)
        return self._gathered[kind]

    @property
    def data(self) -> List[mx.nd.NDArray]:
        """The inputs."""
        return self._gather("data")

    @data.setter
    def data(self, arrays: List[mx.nd.NDArray]) -> None:
        self._gathered["data"] = arrays

    @property
    def label(self) -> List[mx.nd.NDArray]:
        """The labels."""
        return self._gather("label")

    @label.setter
    def label(self, arrays: List[mx.nd.NDArray]) -> None:
        self._gathered["label"] = arrays

    def __reduce__(self) -> Tuple:
        """Copies and pickles are batches of arrays."""
        return mx.io.DataBatch, (self.data, self.label, self.pad, self.index)
