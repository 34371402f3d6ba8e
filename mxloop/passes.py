"""One pass over an iterator, where MXNet's own have rules of their own."""

import logging
import weakref
from typing import Any, Iterator

from mxloop.compat import mx
from mxloop.validation import shown

logger = logging.getLogger(__name__)

_filled_up: Any = weakref.WeakSet()
_warned: Any = weakref.WeakSet()


def one_pass(data: Any) -> Iterator:
    """Start an iterator over, and give its batches."""
    start_over(data)
    return batches(data)


def start_over(data: Any) -> None:
    """Reset an iterator; one of MXNet's C++ ones only where it is not at its start anyway.

    Those read ahead, and a reset after that begins behind the rows that filled the last batch.
    """
    if isinstance(data, mx.io.MXDataIter):
        if data.first_batch is not None:
            return
        _warn_of_skipped_rows(data)
    data.reset()


def _warn_of_skipped_rows(data):
    if data in _filled_up and data not in _warned:
        _warned.add(data)
        logger.warning(
            "%s starts over after a last batch that was filled up: MXNet skips rows then, unless "
            "it is a CSVIter with round_batch=False; use mxloop.data.record_iterator, or arrays",
            shown(type(data).__name__),
        )


def batches(data: Any) -> Iterator:
    """Give an iterator's batches, with `pad` as the number of rows that do not count."""
    if getattr(data, "last_batch_handle", None) == "roll_over":
        return map(_unpadded, data)
    return _noted(data) if isinstance(data, mx.io.MXDataIter) else _plain(data)


def _plain(data):
    return iter(data) if hasattr(data, "__iter__") else iter(data.next, None)


def _unpadded(batch):
    # NDArrayIter calls the rows that it carried over padding; nobody has seen them before.
    batch.pad = 0
    return batch


def _noted(data):
    for batch in data:
        if batch.pad:
            _filled_up.add(data)
        yield batch
