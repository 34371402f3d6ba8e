"""Data sets shared out among ranks."""

import math
from typing import Any, List, Optional

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError
from mxloop.multi_node import arrays as memory_of
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.validation import check_seed, names, shown

Dataset = mx.gluon.data.Dataset


def create_empty_dataset(dataset: Any) -> Dataset:
    """Make as many empty tuples as a data set has samples, for a rank that gets its values by recv.

    Parameters
    ----------
    dataset : Dataset, list, array, tuple or dict of arrays, or DataIter that knows `num_data`

    Returns
    -------
    Dataset
    """
    return _Empty(_length(dataset))


class _Empty(Dataset):
    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        found = range(self._length)[index]
        return [()] * len(found) if isinstance(index, slice) else ()


def scatter_dataset(
    dataset: Any,
    communicator: Communicator,
    root: int = 0,
    shuffle: bool = False,
    seed: Optional[int] = None,
    force_equal_length: bool = True,
) -> Any:
    """Give each rank its part of the data set that rank `root` has.

    Arrays travel as buffers, and each rank gets its own rows only.

    Parameters
    ----------
    dataset : array, tuple or dict of arrays, `ArrayDataset`, or any sequence of samples
        On other ranks it is not looked at, and may be None.
    communicator : Communicator
    root : int
    shuffle : bool
        Whether samples are dealt out in random order.
    seed : int, optional
        Of that order; by default NumPy's global generator of rank `root` gives it.
    force_equal_length : bool
        Whether the first samples are dealt out once more, until all parts are equally long (which
        needs one sample). Otherwise lengths differ by at most one.

    Returns
    -------
    The part, of the data set's own kind; a sequence of samples comes as a list

    Raises
    ------
    ArgumentTypeError, DataError
        On all ranks, if rank `root` has no data set, or arrays of different lengths.
    """
    root = check_communicator(communicator).check_rank("root", root)
    rows, error = None, None
    if communicator.rank == root:
        try:
            order = _order(_length(dataset), shuffle, seed)
            rows = _dealt(order, communicator.size, force_equal_length)
            _check_rows(dataset, rows)
        except (ArgumentError, ArgumentTypeError, DataError) as caught:
            error = caught
    error = communicator.bcast_obj(error, root)  # else the others would wait
    if error is not None:
        raise error
    return _scatter(dataset, rows, communicator, root)


def _length(dataset):
    if isinstance(dataset, mx.io.DataIter):
        if not hasattr(dataset, "num_data"):
            raise ArgumentTypeError(
                f"{type(dataset).__name__} does not tell its number of samples; pass the arrays or "
                "the data set behind it"
            )
        return dataset.num_data
    columns = _columns(dataset)
    if columns is not None:
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            raise DataError(f"arrays of {names(sorted(lengths))} rows; pass one row a sample")
        return lengths.pop()
    if isinstance(dataset, dict) or not hasattr(dataset, "__len__"):
        raise ArgumentTypeError(
            f"the data set is {shown(repr(dataset))}; pass an array, a tuple or dict of arrays, or "
            "a sequence of samples"
        )
    return len(dataset)


def _columns(dataset) -> Optional[List[Any]]:
    """The arrays of a data set that is made of some."""
    if memory_of.is_array(dataset):
        return [dataset]
    if isinstance(dataset, mx.gluon.data.ArrayDataset):
        columns = dataset._data
    elif isinstance(dataset, dict):
        columns = list(dataset.values())
    else:
        columns = list(dataset) if isinstance(dataset, tuple) else []
    return columns if columns and all(memory_of.is_array(each) for each in columns) else None


def _order(length, shuffle, seed):
    if not shuffle:
        return np.arange(length)
    random = np.random if seed is None else np.random.RandomState(check_seed(seed))
    return random.permutation(length)


def _dealt(order, size, force_equal_length):
    """Each rank's rows; the first ranks get one more where they do not come out even."""
    if force_equal_length and len(order):
        order = np.resize(order, math.ceil(len(order) / size) * size)
    return np.array_split(order, size)


def _check_rows(dataset, rows):
    is_mxnet = any(isinstance(column, mx.nd.NDArray) for column in _columns(dataset) or ())
    if is_mxnet and not all(map(len, rows)):
        raise DataError("a rank gets no row of an NDArray, and MXNet has none without; pass NumPy")


def _scatter(dataset, rows, communicator, root):
    columns = None if rows is None else _columns(dataset)
    kind, number, keys = communicator.bcast_obj(
        None if rows is None else _kind(dataset, columns), root
    )
    if kind == "samples":
        parts = None if rows is None else [[dataset[int(i)] for i in part] for part in rows]
        return communicator.scatter_obj(parts, root)
    found = [
        _scatter_column(None if rows is None else columns[i], rows, communicator, root)
        for i in range(number)
    ]
    return _together(kind, keys, found)


def _kind(dataset, columns):
    if columns is None:
        return "samples", 0, None
    keys = list(dataset) if isinstance(dataset, dict) else None
    for kind, klass in (("dict", dict), ("tuple", tuple), ("dataset", Dataset)):
        if isinstance(dataset, klass):
            return kind, len(columns), keys
    return "array", 1, None


def _together(kind, keys: Optional[List[str]], found: List[Any]):
    if kind == "array":
        return found[0]
    if kind == "dict":
        return dict(zip(keys, found))
    return tuple(found) if kind == "tuple" else mx.gluon.data.ArrayDataset(*found)


def _scatter_column(column, rows, communicator, root):
    """Scatter an array as buffers, or, where its values are of another kind, as objects."""
    plain = rows is not None and np.dtype(column.dtype).name in memory_of.DTYPES
    plain = communicator.bcast_obj(plain, root)
    parts: Any = None
    if rows is not None:
        is_mxnet = isinstance(column, mx.nd.NDArray)
        parts = [_rows_of(column, part, is_mxnet) for part in rows]
    return (communicator.scatter if plain else communicator.scatter_obj)(parts, root)


def _rows_of(column, rows, is_mxnet):
    if not is_mxnet:
        return column[rows]
    return column[mx.nd.array(rows, dtype="int64", ctx=column.context)]
