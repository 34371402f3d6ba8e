"""A dry run: does everything run, from the first batch to the last callback?"""

import logging

from mxloop.callback.base import State
from mxloop.callback.limit_batches import LimitBatches
from mxloop.log import say

logger = logging.getLogger(__name__)


class FastDevRun(LimitBatches):
    """Run one epoch of a few batches, its evaluation and all callbacks, then end.

    Checkpoints are written as in any run: pass no prefix that holds some.

    Parameters
    ----------
    batches : int
        Of the training, and of the evaluation.
    """

    def __init__(self, batches: int = 1):
        super().__init__(batches, batches)

    def on_epoch_end(self, state: State) -> None:
        """End the training."""
        state.stop = True
        say(logger, f"Dry run: {self.train} batch(es) and an evaluation went through")
