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
    if type(value) is dict:
        return all(type(key) in (int, str) and _counts(item) for key, item in value.items())
    return isinstance(value, (int, float, np.ndarray, np.generic)) or _is_part(value)


def _is_part(value):
    """Whether a value is a metric or schedule inside one, or one of MXNet's tables behind it."""
    parts = (mx.metric.EvalMetric, mx.lr_scheduler.LRScheduler)
    return isinstance(value, parts) or type(value).__module__ == "mxnet.metric"


def packed(value: Any) -> Any:
    """A number, array, or list or dict of those as JSON that `unpacked` reads."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {"dtype": value.dtype.name, "value": value.tolist()}
    if isinstance(value, MANY):
        return [packed(item) for item in value]
    if type(value) is dict:  # JSON would make text of a number as a key
        return {"items": [[key, packed(item)] for key, item in value.items()]}
    return {"part": get_state(value)} if _is_part(value) else value


def unpacked(saved: Any, present: Any) -> Any:
    """What `packed` was given; `present` is the value that it replaces, None if there is none.

    Raises
    ------
    DataError
        If the two are of different kinds.
    """
    kind = _kind(saved)
    if kind not in _kinds_for(present):
        raise _unfit(saved, present)
    try:
        return _UNPACKED[kind](saved, present)
    except DataError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise _unfit(saved, present) from error


def _kind(saved):
    if isinstance(saved, dict):
        return " ".join(sorted(saved))
    return "list" if isinstance(saved, list) else type(saved).__name__


NUMBERS = {"int", "float", "bool", "dtype value"}


def _kinds_for(present):
    """What may take the place of a value."""
    if present is None:
        return {*NUMBERS, "list", "items"}
    if isinstance(present, MANY):
        return {"list"}
    if isinstance(present, dict):
        return {"items"}
    if _is_part(present):
        return {"part"}
    return NUMBERS if _counts(present) else set()


def _list(saved, present):
    kind = list if present is None else type(present)
    beside = itertools.zip_longest(saved, (present or ())[: len(saved)])
    return kind(unpacked(item, old) for item, old in beside)


def _dict(saved, present):
    present = present or {}
    return {key: unpacked(item, present.get(key)) for key, item in saved["items"]}


def _array(saved, present):
    dtype = np.dtype(saved["dtype"])
    if dtype.kind not in "biuf":
        raise _unfit(saved, present)
    return np.array(saved["value"], dtype)[()]


def _part(saved, present):
    set_state(present, saved["part"])
    return present


_UNPACKED = {
    **dict.fromkeys(("int", "float", "bool"), lambda saved, _: saved),
    "dtype value": _array,
    "list": _list,
    "items": _dict,
    "part": _part,
}


def _unfit(saved, present):
    return DataError(
        f"the checkpoint has {shown(repr(saved), 60)} where this run counts in "
        f"{shown(repr(present), 60)}; resume with the arguments of the run before"
    )
