"""Manifests: JSON that says what a checkpoint consists of, and where its training stood.

One key a line, sorted, and among them the checksum of the rest: there is one spelling of a content,
so that every bit counts. NaN and infinity, which JSON has not, are ``{"float": "nan"}``.
"""

import hashlib
import json
import math
from typing import Any, Callable, Dict

import numpy as np

from mxloop import strict_json
from mxloop.errors import ArgumentTypeError, DataError
from mxloop.params_format import ending
from mxloop.strict_json import Flaw
from mxloop.validation import shown

FORMAT = 1
MOST_BYTES = 64 * 2**20
MOST_COUNT = 2**53
NOT_FINITE = ("nan", "inf", "-inf")

Check = Callable[[Any], bool]


# --- Writing ------------------------------------------------------------------------------------


def encode(content: Dict[str, Any]) -> bytes:
    """Write a manifest; `decode` gives the same content, with lists for tuples.

    Raises
    ------
    ArgumentTypeError
        If the content holds what JSON cannot, or what `decode` would not take.
    """
    try:
        data = _spelt(json.loads(json.dumps(_without_nan(content), default=_plain)))
        _read(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(error) from error
    except Flaw as flaw:
        raise _unwritable(flaw) from flaw
    return data


def _unwritable(why):
    return ArgumentTypeError(
        f"a checkpoint's manifest cannot hold this: {shown(why, 130)}; state_dict() must give "
        "text, numbers, lists and dicts by text"
    )


def _plain(value):
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, (np.generic, np.ndarray)):
        return _without_nan(value.tolist())
    raise TypeError(f"{shown(repr(value), 60)} is no JSON")


def _spelt(content):
    body = _lines(content)
    return _lines({**content, "sha256": hashlib.sha256(body).hexdigest()})


def _lines(content):
    rows = [f"{json.dumps(key)}: {_line(content[key])}" for key in sorted(content)]
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode()


def _line(value):
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _without_nan(value):
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def _with_nan(value):
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in NOT_FINITE:
            return float(value["float"])
        return {key: _with_nan(item) for key, item in value.items()}
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


# --- Reading ------------------------------------------------------------------------------------


def decode(data: bytes, where: str = "the manifest") -> Dict[str, Any]:
    """Read a manifest.

    Raises
    ------
    DataError
        If the data are anything but a whole manifest of this version, all fields in range.
    """
    try:
        return _with_nan(_read(data))
    except Flaw as flaw:
        raise DataError(
            f"{ending(where)} is damaged, or no manifest of this version: {shown(flaw, 70)}; load "
            "another generation, or remove it to take the files as they are"
        ) from flaw


def _read(data):
    if len(data) > MOST_BYTES:
        raise Flaw(f"it has {len(data)} bytes, and {MOST_BYTES} are allowed")
    content = strict_json.loads(data)
    try:
        if not isinstance(content, dict) or not _text(content.pop("sha256", None)):
            raise Flaw("it has no checksum")
        if data != _spelt(content):
            raise Flaw("its checksum is that of another content")
    except (ValueError, RecursionError) as error:  # as a number beyond all floats is
        raise Flaw("it holds numbers that are none") from error
    _check(content, FIELDS)
    _check({**dict.fromkeys(OPTIONAL), **content}, OPTIONAL)
    if "random" in content:
        _check(content, TRAINING)
    return content


def _check(content, fields):
    for name, fits in fields.items():
        if name not in content:
            raise Flaw(f"it has no {name!r}")
        if not fits(content[name]):
            raise Flaw(f"{name!r} is {shown(json.dumps(content[name]), 30)}")


# --- What a field may be ------------------------------------------------------------------------


def _whole(value: Any, most: int = MOST_COUNT) -> bool:
    return type(value) is int and 0 <= value <= most


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _dict(value: Any) -> bool:
    return isinstance(value, dict)


def _either(*checks: Check) -> Check:
    return lambda value: value is None or any(fits(value) for fits in checks)


def _list_of(fits: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _dict_of(fits: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _row(*checks: Check) -> Check:
    """A list of so many values, each of its own kind."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(fits(item) for fits, item in zip(checks, value))
    )


def _with(**fields: Check) -> Check:
    """A dict of these keys, and no other."""
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == fields.keys()
        and all(fits(value[name]) for name, fits in fields.items())
    )


def _gathered(value):
    """How much waits for an update: fewer batches than one is made of, and samples in each."""
    numbers = _with(accumulate=_whole, batches=_whole, samples=_whole)
    return numbers(value) and (
        value["batches"] < value["accumulate"]
        and value["batches"] <= value["samples"]
        and bool(value["batches"]) == bool(value["samples"])
    )


def _word(value):
    return _whole(value, 2**32 - 1)


def _checksum(value):
    return _text(value) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _files(value):
    kinds = {"symbol", "params"}
    described = _dict_of(_with(name=_text, size=_whole, sha256=_checksum))
    return described(value) and kinds <= value.keys() <= kinds | {"states"}


def _numpy_keys(value):
    return _list_of(_word)(value) and len(value) == 624


def _python_keys(value):
    return _list_of(_word)(value) and len(value) == 625 and value[-1] <= 624


def _history(value):
    """Rows of epochs that grow."""
    if not _list_of(_dict)(value) or not all(_whole(row.get("epoch")) for row in value):
        return False
    epochs = [row["epoch"] for row in value]
    return epochs == sorted(set(epochs))


FIELDS: Dict[str, Check] = {
    "format": lambda value: _whole(value, FORMAT),
    "epoch": _whole,
    "batch": _whole,
    "files": _files,
    "versions": _dict_of(_text),
}
OPTIONAL: Dict[str, Check] = {
    "input_shapes": _either(_dict_of(_list_of(_whole))),
    "gathered": _either(_gathered),
}
# What `mxloop.resume` takes down, and when a Checkpoint wrote it.
TRAINING: Dict[str, Check] = {
    "serial": _whole,
    "num_update": _whole,
    "update_counts": _dict_of(_whole),
    "optimizer": _dict,
    "lr_scheduler": _dict,
    "optimizer_type": _text,
    "begun_with": _with(optimizer=_dict, lr_scheduler=_dict),
    "begin_epoch": _whole,
    "iterator": _either(_dict),
    "eval_iterator": _either(_dict),
    "samples": _whole,
    "input_shapes": _dict_of(_list_of(_whole)),
    "metrics": _list_of(_row(_list_of(_text), _dict)),
    "history": _history,
    "callbacks": _list_of(_row(_text, _dict)),
    "random": _with(
        seed=_either(_word),
        numpy=_row(
            lambda kind: kind == "MT19937",
            _numpy_keys,
            lambda place: _whole(place, 624),
            lambda has_gauss: _whole(has_gauss, 1),
            _number,
        ),
        python=_row(lambda version: version == 3, _python_keys, _either(_number)),
    ),
    "stepped": _list_of(_whole),
    "omp_threads": _either(_text),
    "devices": _list_of(_text),
}
