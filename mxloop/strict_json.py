"""JSON of a file that may be broken or hostile: bounded in memory, depth and size of numbers."""

import json
from typing import Any

LONGEST_NUMBER = 19  # digits
# Python's memory for one of these, at most; what is left goes to numbers and text.
BYTES_OF = {"[": 88, "{": 400, ",": 40}
MOST_BYTES = 120 * 2**20  # and twice the text


class Flaw(Exception):
    """What is wrong with a text; for a caller, who knows whose text it is, to make a message of."""


def loads(text: Any) -> Any:
    """Parse JSON.

    Parameters
    ----------
    text : str or bytes

    Raises
    ------
    Flaw
        If it is not JSON in UTF-8, gives a key twice, is nested too deeply, holds a number that no
        program counts up to, or would need far more memory than its size.
    """
    text = _text(text)
    need = sum(size * text.count(character) for character, size in BYTES_OF.items())
    if need > MOST_BYTES + 2 * len(text):
        raise Flaw("it would need far more memory than its size")
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_number
        )
    except RecursionError as error:
        raise Flaw("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise Flaw(f"it is not JSON ({error.msg} in line {error.lineno})") from error


def _text(text):
    if isinstance(text, str):
        decoded = text
    else:
        try:
            decoded = bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Flaw("it is not text in UTF-8") from error
    if not decoded.strip():
        raise Flaw("it is empty")
    return decoded


def _object(pairs):
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Flaw(f"it gives a key twice among {[key for key, _ in pairs][:6]}")
    return made


def _integer(digits):
    if len(digits) > LONGEST_NUMBER:
        raise Flaw(f"the number {digits[:24]}... is too large")
    return int(digits)


def _no_number(name):
    raise Flaw(f"{name} is no number of JSON")
