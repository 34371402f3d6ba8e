"""Iterators that give all ranks the same batches, or the same order."""

from typing import Any, Iterator, List

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError, DataError
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.validation import shown


def create_multi_node_iterator(
    actual_iterator: Any, communicator: Communicator, rank_master: int = 0
) -> mx.io.DataIter:
    """Give all ranks the batches of one rank's iterator, as model parallelism needs them.

    Parameters
    ----------
    actual_iterator : DataIter
        Not looked at on other ranks than `rank_master`; None will do.
    communicator : Communicator
    rank_master : int

    Returns
    -------
    DataIter
        All ranks must step and reset it together.
    """
    root = check_communicator(communicator).check_rank("rank_master", rank_master)
    return _MultiNodeIterator(actual_iterator, communicator, root)


class _MultiNodeIterator(mx.io.DataIter):
    def __init__(self, actual, communicator, root):
        self._is_master = communicator.rank == root
        kind = None
        if self._is_master and not isinstance(actual, mx.io.DataIter):
            kind = shown(repr(actual))
        self._communicator, self._root, self._actual = communicator, root, actual
        kind = communicator.bcast_obj(kind, root)
        if kind is not None:
            raise ArgumentTypeError(f"rank {root} passed {kind}; pass an mx.io.DataIter there")
        described = None
        if self._is_master:
            described = (actual.batch_size, actual.provide_data, actual.provide_label)
        size, self.provide_data, self.provide_label = communicator.bcast_obj(described, root)
        super().__init__(size)

    def reset(self):
        if self._is_master:
            self._actual.reset()

    def next(self):
        batch = next(self._actual, None) if self._is_master else None
        described = None
        if batch is not None:
            described = {
                "pad": batch.pad,
                "index": batch.index,
                "bucket_key": batch.bucket_key,
                "provide_data": batch.provide_data,
                "provide_label": batch.provide_label,
                "num_data": len(batch.data),
            }
        described = self._communicator.bcast_obj(described, self._root)
        if described is None:
            raise StopIteration
        own = None if batch is None else (*batch.data, *(batch.label or ()))
        arrays = list(self._communicator.bcast(own, self._root))
        num_data = described.pop("num_data")
        return mx.io.DataBatch(arrays[:num_data], arrays[num_data:], **described)


def create_synchronized_iterator(actual_iterator: Any, communicator: Communicator) -> Any:
    """Let all ranks go through their own data in one order, that of rank 0.

    Parameters
    ----------
    actual_iterator : mxloop.data.ArrayIter, or an iterable that shuffles with NumPy's generator
        As a Gluon `DataLoader`. Each rank has one, over as many samples.
    communicator : Communicator

    Returns
    -------
    The same iterator; or, for a `DataLoader`, an iterable around it that all ranks must start
    together

    Raises
    ------
    DataError
        If the iterators of two ranks cannot have one order: lengths or batch sizes differ.
    ArgumentTypeError
        If the iterator shuffles when it is made, as `NDArrayIter`: use `mxloop.data.ArrayIter`.
    """
    check_communicator(communicator)
    if hasattr(actual_iterator, "load_state_dict"):
        _take_state(actual_iterator, communicator)
        return actual_iterator
    if isinstance(actual_iterator, mx.io.DataIter) or not hasattr(actual_iterator, "__iter__"):
        raise ArgumentTypeError(
            f"the order of {type(actual_iterator).__name__} cannot be set; pass an "
            "mxloop.data.ArrayIter or a Gluon DataLoader"
        )
    return _Synchronized(actual_iterator, communicator)


def _take_state(iterator, communicator):
    states: List[dict] = communicator.allgather_obj(iterator.state_dict())
    shapes = [{k: v for k, v in s.items() if k not in ("seed", "position")} for s in states]
    if any(shape != shapes[0] for shape in shapes):
        raise DataError(
            f"ranks have iterators that differ: {shown(shapes, 120)}; give all the same length, "
            "batch_size and shuffle"
        )
    iterator.load_state_dict(states[0])


class _Synchronized:
    def __init__(self, actual, communicator):
        self._actual, self._communicator = actual, communicator

    def __len__(self):
        return len(self._actual)

    def __iter__(self) -> Iterator:
        own = np.random.get_state()
        np.random.set_state(self._communicator.bcast_obj(own))
        return iter(self._actual)
