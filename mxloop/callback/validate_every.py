"""Evaluate within the epochs, every so many batches."""

import logging
from typing import Any, Dict, List

from mxloop.callback.base import Callback, State
from mxloop.errors import StateError
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)


class ValidateEvery(Callback):
    """Evaluate on `eval_data` every so many batches, besides after each epoch.

    Parameters
    ----------
    batches : int

    Attributes
    ----------
    rows : list of dict
        One an evaluation: `epoch`, `batch`, `val_<metric>`.
    """

    def __init__(self, batches: int):
        self.batches = count("batches", batches)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.rows: List[Dict[str, Any]] = []

    def on_train_begin(self, state: State) -> None:
        """Check that there is something to evaluate on."""
        if state.evaluate is None:
            raise StateError("ValidateEvery needs data to evaluate on; pass fit(eval_data=...)")

    def on_batch_end(self, state: State) -> None:
        """Evaluate, if it is time to; waits for the devices."""
        if state.nbatch % self.batches:
            return
        row = state.evaluate()
        self.rows.append(row)
        for name, value in row.items():
            if name.startswith("val_"):
                title = f"Validation-{name[len('val_') :]}"
                say(logger, f"Epoch[{row['epoch']}] Batch [{row['batch']}] {title}={value:f}")

    def state_dict(self) -> dict:
        """The evaluations so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict) -> None:
        """Go on after them."""
        self.rows = list(state["rows"])
