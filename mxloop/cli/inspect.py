"""``mxloop inspect``: the checkpoints under a prefix, what they hold, and whether they are whole.

Exit code 1 where there is none, or one is damaged.
"""

import argparse
import json
import os
import re
import sys
from typing import Any, Dict, List, Tuple

from mxloop import checkpoint
from mxloop.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("prefix", metavar="PREFIX", help="as in PREFIX-0001.params")
    parser.add_argument("--json", action="store_true", help="one JSON object a checkpoint")


def run(args: argparse.Namespace) -> int:
    """Print a line a checkpoint, newest first."""
    found = [describe(args.prefix, *place) for place in places(args.prefix)]
    if not found:
        print(f"there is no checkpoint {args.prefix}-*", file=sys.stderr)
    for each in found:
        print(json.dumps(each) if args.json else _line(each))
    return 0 if found and all(each["valid"] for each in found) else 1


def places(prefix: str) -> List[Tuple[int, int]]:
    """(epoch, batch) of all checkpoints, also those that MXNet wrote, newest first."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"-(\d{4,})\.params")
    entries = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    stock = [(int(m[1]), 0) for m in map(pattern.fullmatch, entries) if m]
    return sorted({*checkpoint.generations(prefix), *stock}, reverse=True)


def describe(prefix: str, epoch: int, batch: int) -> Dict[str, Any]:
    """What one checkpoint holds, fit for JSON; where it is damaged, why."""
    told = {"epoch": epoch, "batch": batch}
    try:
        found = checkpoint.load(prefix, epoch, batch)
    except DataError as error:
        return {**told, "valid": False, "error": str(error)}
    arrays = [*found.arg_params.values(), *found.aux_params.values()]
    manifest = found.manifest
    return {
        **told,
        "valid": True,
        "parameters": sum(array.size for array in arrays),
        "arrays": len(arrays),
        "states": found.states is not None,
        "resumable": "random" in manifest and found.states is not None,
        "checksums": bool(manifest),
        "devices": manifest.get("devices"),
        "versions": manifest.get("versions"),
        "history": (manifest.get("history") or [])[-1:],
    }


def _line(told):
    place = f"epoch {told['epoch']}" + (f" batch {told['batch']}" if told["batch"] else "")
    if not told["valid"]:
        return f"{place}: DAMAGED: {told['error']}"
    parts = [
        "valid" if told["checksums"] else "readable (no manifest: no checksums)",
        f"{told['parameters']:,} numbers in {told['arrays']} arrays",
        "can be resumed"
        if told["resumable"]
        else ("with" if told["states"] else "without") + " optimizer states",
    ]
    if told["devices"]:
        parts.append("on " + ", ".join(told["devices"]))
    for row in told["history"]:
        parts.extend(f"{k} {v:.4g}" for k, v in row.items() if k.startswith(("train_", "val_")))
    return f"{place}: {'; '.join(parts)}"
