"""Optimizer states as named arrays in MXNet's ``.params`` format: no pickle, and exact.

Every array of the states is an array of the file. The entry `HEADER` holds JSON text that says how
they go together: ``{"version": 1, "states": {name: [number of updates, tree]}}``, where a tree is
null, ``{"array": key}``, ``{"tuple": [...]}``, ``{"list": [...]}`` or ``{"number": 1.5}``.
"""

import json
import math
from typing import Any, Dict, List, Tuple

import numpy as np

from mxloop import params_format, strict_json
from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError, DataError
from mxloop.params_format import ending
from mxloop.stock_states import convert_stock_states, is_pickle, read_stock_states
from mxloop.strict_json import Flaw
from mxloop.validation import shown

__all__ = [
    "convert_stock_states",
    "decode_states",
    "encode_states",
    "is_pickle",
    "read_stock_states",
]

States = Dict[str, Tuple[Any, int]]

HEADER = "mxloop.states"
VERSION = 1
MOST_DEPTH = 8  # of tuples within tuples
MOST_UPDATES = 2**53


def encode_states(states: States) -> bytes:
    """Write optimizer states.

    Parameters
    ----------
    states : dict of str to (state, int)
        By parameter: its state and how many times it was updated. A state is None, an NDArray, a
        number, or a tuple or list of states.

    Raises
    ------
    ArgumentTypeError
        If a state holds anything else.
    """
    return b"".join(chunks(states))


def chunks(states: States) -> List[Any]:
    """Give the buffers whose sum is `encode_states`."""
    arrays: Dict[str, Any] = {HEADER: None}
    trees = {
        name: [int(number), _tree(name, state, arrays, 0)]
        for name, (state, number) in states.items()
    }
    text = json.dumps({"version": VERSION, "states": trees}, allow_nan=False).encode()
    arrays[HEADER] = mx.nd.array(np.frombuffer(text, np.uint8), mx.cpu(), np.uint8)
    return list(params_format.chunks(arrays))


def _tree(name, state, arrays, depth):
    if isinstance(state, mx.nd.NDArray):
        key = f"{name}:{len(arrays)}"
        arrays[key] = state
        return {"array": key}
    if type(state) in (tuple, list) and depth < MOST_DEPTH:
        return {
            type(state).__name__: [_tree(name, part, arrays, depth + 1) for part in state],
        }
    if state is None:
        return None
    if type(state) in (bool, int, float) and math.isfinite(state):
        return {"number": state}
    raise ArgumentTypeError(
        f"the optimizer state of {shown(repr(name), 60)} holds {shown(repr(state), 60)}; a file of "
        "states holds None, NDArray, finite numbers, tuples and lists"
    )


def decode_states(data: Any, where: str = "the file") -> States:
    """Read what `encode_states` wrote.

    Raises
    ------
    DataError
        If the data are anything else; of a pickle, the text names what converts it.
    """
    if is_pickle(data):
        file = where if len(where) <= 60 else "FILE"
        raise DataError(
            f"{ending(where)} holds pickled states of MXNet, which can run code when they are "
            f"read; convert it with: python -m mxloop convert-states {file}"
        )
    arrays = params_format.decode(data, where)
    try:
        return _states(arrays)
    except Flaw as flaw:
        raise DataError(
            f"{ending(where)} holds no optimizer states of mxloop: {shown(flaw, 90)}; "
            "take another copy of it, or save it anew"
        ) from flaw


def _states(arrays):
    header = arrays.pop(HEADER, None)
    if header is None or header.dtype != np.uint8 or header.ndim != 1:
        raise Flaw(f"it has no text named {HEADER!r}, only {sorted(arrays)[:3]}")
    told = strict_json.loads(header.asnumpy().tobytes())
    if not isinstance(told, dict) or told.keys() != {"version", "states"}:
        raise Flaw("its header has other keys than 'version' and 'states'")
    if told["version"] != VERSION or not isinstance(told["states"], dict):
        raise Flaw(f"its header is of version {told['version']}, and {VERSION} can be read")
    states = {name: _state(name, entry, arrays) for name, entry in told["states"].items()}
    if arrays:
        raise Flaw(f"its header does not speak of {sorted(arrays)[:3]}")
    return states


def _state(name, entry, arrays):
    if not (isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int):
        raise Flaw(f"{name!r} is not a number of updates and a state")
    number, tree = entry
    if not 0 <= number <= MOST_UPDATES:
        raise Flaw(f"{name!r} was updated {number} times")
    return _grown(name, tree, arrays, 0), number


def _grown(name, tree, arrays, depth):
    if tree is None:
        return None
    if not isinstance(tree, dict) or len(tree) != 1 or depth > MOST_DEPTH:
        raise Flaw(f"the state of {name!r} holds {tree!r}")
    ((kind, value),) = tree.items()
    if kind == "array" and isinstance(value, str) and value in arrays:
        return arrays.pop(value)  # so that no array serves twice
    if kind in ("tuple", "list") and isinstance(value, list):
        parts: List[Any] = [_grown(name, part, arrays, depth + 1) for part in value]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "number" and type(value) in (bool, int, float):
        return value
    raise Flaw(f"the state of {name!r} holds {kind!r}: {value!r}")
