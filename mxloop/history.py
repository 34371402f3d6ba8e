"""The epochs of a run in a file: JSON lines or CSV."""

import csv
import io
import json
import math
import os
from typing import Any, Dict, List

from mxloop import storage
from mxloop.errors import ArgumentError, DataError
from mxloop.validation import path_of, shown

Rows = List[Dict[str, Any]]

WHOLE = ("epoch",)


def write(path: Any, rows: Rows) -> None:
    """Write one line an epoch; the file is there whole or not at all.

    Parameters
    ----------
    path : str or path-like
        Ends in '.jsonl' (one JSON object a line) or '.csv' (a column for each name that any epoch
        has, empty where one has not).
    rows : list of dict

    Raises
    ------
    ArgumentError
        If the path ends otherwise.
    DataError
        If it cannot be written.
    """
    path = path_of(path)
    data = FORMATS[suffix(path)][0](rows).encode()
    try:
        # Not forced to the disk, as checkpoints are: that takes milliseconds, every epoch.
        with open(path + storage.PARTIAL, "wb") as stream:
            stream.write(data)
        os.replace(path + storage.PARTIAL, path)
    except OSError as error:
        raise DataError(f"cannot write {shown(path, 150)}: {error.strerror}") from error


def read(path: Any) -> Rows:
    """Read what `write` wrote.

    Raises
    ------
    ArgumentError, DataError
    """
    path = path_of(path)
    parse = FORMATS[suffix(path)][1]
    try:
        rows = parse(storage.read(path).decode())
        if not rows or not all(isinstance(row["epoch"], int) for row in rows):
            raise ValueError("no epochs")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{shown(path, 120)} is no history of a run ({shown(error, 60)}); pass a file that "
            "callback.HistoryFile wrote"
        ) from error
    return rows


def suffix(path: str) -> str:
    """The kind of a history file, by its name's end.

    Raises
    ------
    ArgumentError
    """
    ending = os.path.splitext(path)[1]
    if ending not in FORMATS:
        raise ArgumentError(
            f"{shown(repr(path), 120)} does not tell the format of a history; end it in "
            f"{' or '.join(FORMATS)}"
        )
    return ending


def _as_lines(rows):
    return "".join(json.dumps({n: _finite(row[n]) for n in _order(row)}) + "\n" for row in rows)


def _order(names):
    """The epoch first, the others by name: as they are after a restart, too."""
    return sorted(names, key=lambda name: (name not in WHOLE, name))


def _finite(value):
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _from_lines(text):
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]


def _as_csv(rows):
    out = io.StringIO()
    names = _order({name for row in rows for name in row})
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _from_csv(text):
    return [
        {k: int(v) if k in WHOLE else float(v) for k, v in row.items() if v not in ("", None)}
        for row in csv.DictReader(io.StringIO(text))
    ]


FORMATS = {".jsonl": (_as_lines, _from_lines), ".csv": (_as_csv, _from_csv)}
