"""What an object has counted: the numbers among its attributes, exactly, as JSON.

So metrics and schedules of learning rates are taken up again, those that mxloop does not know among
them. Text, functions and the like are settings, which the object of a new run has already.
"""

import itertools
from typing import Any, Dict

import numpy as np

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import shown

MANY = (list, tuple)


def get_state(counting: Any) -> Dict[str, Any]:
    """Take down the sums and counts of a metric or schedule, and of those in it; fit for JSON."""
    return {name: packed(value) for name, value in vars(counting).items() if _counts(value)}


def set_state(counting: Any, state: Dict[str, Any]) -> None:
    """Give an object of the same kind what `get_state` took down.

    Raises
    ------
    DataError
        If the state is that of another kind of object, or none at all.
    """
    if not isinstance(state, dict):
        raise _unfit(state, counting)
    for name, value in state.items():
        if name not in vars(counting) and hasattr(type(counting), name):
            raise _unfit(name, counting)  # it would hide a method
        setattr(counting, name, unpacked(value, vars(counting).get(name)))


def _counts(value):
    if isinstance(value, MANY):
        return all(_counts(item) for item in value)
    return isinstance(value, (int, float, np.ndarray, np.generic)) or _is_part(value)


def _is_part(value):
    """Whether a value is a metric or schedule inside one, or one of MXNet's tables behind it."""
    parts = (mx.metric.EvalMetric, mx.lr_scheduler.LRScheduler)
    return isinstance(value, parts) or type(value).__module__ == "mxnet.metric"


def packed(value: Any) -> Any:
    """A number, array, or list of those as JSON that `unpacked` reads."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {"dtype": value.dtype.name, "value": value.tolist()}
    if isinstance(value, MANY):
        return [packed(item) for item in value]
    return {"part": get_state(value)} if _is_part(value) else value


def unpacked(saved: Any, present: Any) -> Any:
    """What `packed` was given; `present` is the value that it replaces, None if there is none."""
    if isinstance(saved, list) and (present is None or isinstance(present, MANY)):
        kind = list if present is None else type(present)
        return kind(unpacked(item, old) for item, old in _beside(saved, present or ()))
    if present is not None and not _counts(present) or isinstance(present, MANY):
        raise _unfit(saved, present)
    if isinstance(saved, dict) and saved.keys() == {"part"} and _is_part(present):
        set_state(present, saved["part"])
        return present
    if _is_part(present):
        raise _unfit(saved, present)
    if isinstance(saved, (int, float)):
        return saved
    if isinstance(saved, dict) and saved.keys() == {"dtype", "value"}:
        return _array(saved, present)
    raise _unfit(saved, present)


def _beside(saved, present):
    return itertools.zip_longest(saved, present[: len(saved)])


def _array(saved, present):
    try:
        dtype = np.dtype(saved["dtype"])
        if dtype.kind in "biuf":
            return np.array(saved["value"], dtype)[()]
    except (TypeError, ValueError, OverflowError):
        pass
    raise _unfit(saved, present)


def _unfit(saved, present):
    return DataError(
        f"the checkpoint has {shown(repr(saved), 60)} where this run counts in "
        f"{shown(repr(present), 60)}; resume with the arguments of the run before"
    )
