"""What a run was: its network, settings and surroundings, for whoever looks at it later."""

import json
import os
import platform
import sys
from typing import Any, Dict, Optional

import numpy as np

from mxloop import storage
from mxloop.batch import as_descs
from mxloop.callback.base import State
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.summary import summarize
from mxloop.validation import shown
from mxloop.version import __version__

PLAIN = (bool, int, float, str)
OWN = "num_update"  # of an optimizer: where it stands, not how it was set


def path_beside(path: str) -> str:
    """The file that goes with a history: 'run.about.json' with 'run.jsonl'."""
    return os.path.splitext(path)[0] + ".about.json"


def describe(state: State) -> Dict[str, Any]:
    """Describe a run that begins; fit for JSON.

    Returns
    -------
    dict
        `settings` and `environment` (name -> text or number), `network` (rows of text, the titles
        first) and `total` (text).
    """
    descs = as_descs(state.train_data.provide_data)
    summary = summarize(state.manager.symbol, {desc.name: tuple(desc.shape) for desc in descs})
    return {
        "settings": {**_loop(state, descs), **_optimizer(state.optimizer)},
        "environment": environment(),
        "network": summary.table(),
        "total": summary.total(),
    }


def write(path: str, told: Dict[str, Any]) -> None:
    """Write what `describe` told."""
    storage.write_all({path: json.dumps(told, indent=1).encode() + b"\n"})


def read(path: str) -> Optional[Dict[str, Any]]:
    """Read it; None where there is no such file.

    Raises
    ------
    DataError
    """
    if not os.path.isfile(path):
        return None
    try:
        told = json.loads(storage.read(path).decode())
        if not all(isinstance(told[key], dict) for key in ("settings", "environment")):
            raise ValueError("no settings")
        return told
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{shown(path, 120)} does not describe a run; remove it, or write it anew by a run"
        ) from error


def _loop(state, descs):
    return {
        "inputs": ", ".join(f"{desc.name} {tuple(desc.shape)}" for desc in descs),
        "batches in an epoch": state.num_batch,
        "epochs": f"{state.begin_epoch} to {state.num_epoch}",
        "devices": ", ".join(map(str, state.manager.ctx)),
        "seed": state.seed,
        "callbacks": ", ".join(type(each).__name__ for each in state.callbacks),
    }


def _optimizer(optimizer):
    if optimizer is None:
        return {}
    told = {f"optimizer.{n}": v for n, v in vars(optimizer).items() if _is_setting(n, v)}
    return {"optimizer": type(optimizer).__name__, **told}


def _is_setting(name, value):
    return isinstance(value, PLAIN) and not name.startswith("_") and OWN not in name


def environment() -> Dict[str, Any]:
    """Versions, machine and command line."""
    return {
        "command": " ".join(sys.argv),
        "mxloop": __version__,
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
