"""End the training in time."""

import logging
import time

from mxloop.callback.base import Callback, State
from mxloop.errors import ArgumentError
from mxloop.log import say

logger = logging.getLogger(__name__)


class TimeLimit(Callback):
    """End the training after the batch in which a time is up, or the last one of its update.

    A checkpoint, if there are any, is from that very batch: a resumed run goes on there, with the
    whole time before it, and equals one without a limit.

    Parameters
    ----------
    seconds : float
        From the beginning of this fit.
    """

    def __init__(self, seconds: float):
        if not seconds > 0:
            raise ArgumentError(f"seconds is {seconds}; it must be more than 0")
        self.seconds = seconds
        self._end = 0.0

    def on_train_begin(self, state: State) -> None:
        """Start the clock."""
        self._end = time.monotonic() + self.seconds

    def on_batch_end(self, state: State) -> None:
        """Look at the clock."""
        if not state.stop and time.monotonic() >= self._end:
            state.stop = True
            say(
                logger,
                f"Epoch[{state.epoch}] Batch [{state.nbatch}] Stopped: the {self.seconds:g} "
                "seconds are over",
            )
