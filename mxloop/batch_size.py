"""Find a batch size: the fastest that fits into the devices' memory."""

import logging
from typing import Any, List, NamedTuple, Optional

import numpy as np

from mxloop.errors import ArgumentError, MXLoopError, StateError
from mxloop.log import say
from mxloop.model import FeedForward
from mxloop.validation import count, shown

logger = logging.getLogger(__name__)

EPOCHS = 2  # the first one binds executors and makes optimizer states


class BatchSizes(NamedTuple):
    """What was found.

    Attributes
    ----------
    fastest, largest : int
        Of the sizes that fit: the one with most samples a second, and the largest.
    trials : list of (int, float)
        Batch size, and samples per second.
    """

    fastest: int
    largest: int
    trials: List[tuple]


def find_batch_size(
    model: FeedForward,
    X: Any,
    y: Optional[Any] = None,
    smallest: int = 8,
    largest: int = 4096,
    steps: int = 5,
) -> BatchSizes:
    """Train copies of a model on batches of doubling size, until one does not fit into memory.

    The model itself is left as it is. A machine that lends more memory than it has ends a process
    instead of telling it: on CPUs choose `largest` with care.

    Parameters
    ----------
    model : FeedForward
    X, y : array
        Some samples, repeated as far as needed.
    smallest, largest : int
        Where to begin, and not to go beyond.
    steps : int
        Batches that are timed of each size.

    Raises
    ------
    StateError
        If the smallest does not fit.
    """
    size, largest = count("smallest", smallest), count("largest", largest)
    if size > largest:
        raise ArgumentError(f"smallest is {size}, and largest {largest}; it must not be less")
    trials: List[tuple] = []
    while size <= largest:
        speed = _speed(model, X, y, size, count("steps", steps))
        if speed is None:
            say(logger, f"Batch size {size}: does not fit into memory")
            break
        say(logger, f"Batch size {size}: {speed:.0f} samples/sec")
        trials.append((size, speed))
        size *= 2
    if not trials:
        raise StateError(f"not even a batch of {smallest} fits into the devices' memory; lower it")
    return BatchSizes(max(trials, key=lambda trial: trial[1])[0], trials[-1][0], trials)


def _speed(model, X, y, size, steps):
    """Samples per second in batches of a size; None where memory does not suffice."""
    settings = {**model.get_params(), "numpy_batch_size": size, "epoch_size": steps}
    trial = FeedForward(**{**settings, "num_epoch": EPOCHS, "begin_epoch": 0})
    quiet = logging.getLogger(f"{__name__}.trial")
    quiet.setLevel(logging.WARNING)
    rows = np.arange(size * steps) % len(X)
    try:
        trial.fit(np.asarray(X)[rows], None if y is None else np.asarray(y)[rows], logger=quiet)
    except MXLoopError as error:
        if not _is_of_memory(error):
            raise
        return None
    return trial.history[-1]["samples_per_second"]


def _is_of_memory(error):
    told = shown(f"{error} {error.__cause__}", 2000).lower()
    return "out of memory" in told or "bad_alloc" in told or "failed to allocate" in told
