"""One look at each epoch: its metrics, its speed, its validation."""

import logging
from typing import Optional

from mxloop.callback.base import Callback, State
from mxloop.data import ArrayIter
from mxloop.log import say
from mxloop.prefetch import Prefetch

# The least share of an epoch spent waiting for data that is worth a word; where they are arrays in
# memory, nothing can be done about it.
MUCH = 0.1


class EpochLog(Callback):
    """Log each epoch's metrics and speed, in the words of MXNet's own training logs.

    Parameters
    ----------
    logger : Logger, optional
        By default this module's, whose lines are printed where no logging is configured.
    """

    def __init__(self, logger: Optional[logging.Logger] = None):
        self._logger = logger or logging.getLogger(__name__)

    def on_epoch_end(self, state: State) -> None:
        """Log the last entry of the history."""
        row = state.history[-1]
        for prefix, title in (("train_", "Train"), ("val_", "Validation")):
            for key, value in row.items():
                if key.startswith(prefix):
                    name = key[len(prefix) :]
                    say(self._logger, f"Epoch[{row['epoch']}] {title}-{name}={value:f}")
        speed = row["samples_per_second"]
        say(
            self._logger,
            f"Epoch[{row['epoch']}] Time cost={row['seconds']:.3f}\tSpeed: {speed:.2f} samples/sec"
            + _waiting(row["waiting"], state.train_data),
        )


def _waiting(share, data):
    if share < MUCH or isinstance(data, ArrayIter):
        return ""
    hint = "" if isinstance(data, Prefetch) else "; mxloop.data.Prefetch reads ahead"
    return f"\tWaited for data: {share:.0%} of the time{hint}"
