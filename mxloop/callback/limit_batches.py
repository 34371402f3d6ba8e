"""Only the first batches of every epoch and evaluation."""

from typing import Optional

from mxloop.callback.base import Callback, State
from mxloop.validation import count


class LimitBatches(Callback):
    """End every epoch, and every evaluation, after so many batches.

    Unlike `epoch_size`, which goes on in the data where an epoch ended, each epoch starts over.

    Parameters
    ----------
    train, evaluation : int, optional
        Batches; all by default.
    """

    def __init__(self, train: Optional[int] = None, evaluation: Optional[int] = None):
        self.train = train if train is None else count("train", train)
        self.evaluation = evaluation if evaluation is None else count("evaluation", evaluation)

    def on_train_begin(self, state: State) -> None:
        """Tell how long an epoch is."""
        if self.train is not None:
            state.num_batch = min(state.num_batch or self.train, self.train)

    def on_epoch_begin(self, state: State) -> None:
        """End an epoch that was resumed where it ends."""
        self._limit(state, self.train)

    def on_batch_end(self, state: State) -> None:
        """End the epoch after its last batch."""
        self._limit(state, self.train)

    def on_eval_batch_end(self, state: State) -> None:
        """End the evaluation after its last batch."""
        self._limit(state, self.evaluation)

    def _limit(self, state, limit):
        if limit is not None and state.nbatch >= limit:
            state.end_pass = True
