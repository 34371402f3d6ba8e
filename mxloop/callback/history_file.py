"""The history in a file, epoch by epoch."""

from typing import Any

from mxloop import about, history
from mxloop.callback.base import Callback, State
from mxloop.validation import path_of


class HistoryFile(Callback):
    """Write the history after every epoch, and what the run is when it begins.

    Each epoch's row gets the `learning_rate` of its last step. ``mxloop plot`` and ``mxloop
    report`` read the file; a resumed run goes on in it.

    Parameters
    ----------
    path : str or path-like
        'run.jsonl' for a JSON object an epoch, 'run.csv' for a table. 'run.about.json' beside it
        holds network, settings and environment.
    """

    def __init__(self, path: Any):
        self.path = path_of(path)
        history.suffix(self.path)

    def on_train_begin(self, state: State) -> None:
        """Write down what the run is."""
        about.write(about.path_beside(self.path), about.describe(state))

    def on_epoch_end(self, state: State) -> None:
        """Write all epochs, in place of the file before."""
        if state.optimizer is not None:
            state.history[-1]["learning_rate"] = float(state.optimizer.learning_rate)
        history.write(self.path, state.history)
