"""End the training once it no longer gets better."""

import logging
from typing import Optional

from mxloop.callback.base import Callback, State
from mxloop.callback.watch import Watch
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """End the training after `patience` epochs in which a metric got no better.

    Parameters
    ----------
    monitor : str
        A name in the history.
    patience : int
        Epochs without a better value before the training ends.
    mode : {'max', 'min'}, optional
        What is better; MXNet's own metrics tell by their names.
    min_delta : float
        By how much a value has to be better to count as better.

    Attributes
    ----------
    stopped_epoch : int or None
        The epoch after which the training was ended.
    """

    def __init__(
        self,
        monitor: str = "val_accuracy",
        patience: int = 5,
        mode: Optional[str] = None,
        min_delta: float = 0.0,
    ):
        self._watch = Watch(monitor, mode, min_delta)
        self.patience = count("patience", patience)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._watch.best = None
        self._waited = 0
        self.stopped_epoch: Optional[int] = None

    def on_train_begin(self, state: State) -> None:
        """Check that the metric will be measured; a run that was ended stays so when resumed."""
        self._watch.check(state)
        state.stop = state.stop or self.stopped_epoch is not None

    def on_epoch_end(self, state: State) -> None:
        """Look at the epoch's value."""
        better = self._watch.is_better(state.history[-1])
        if better is None:
            return
        self._waited = 0 if better else self._waited + 1
        if self._waited >= self.patience:
            self.stopped_epoch = state.epoch
            state.stop = True
            say(
                logger,
                f"Epoch[{state.epoch}] Stopped: {self._watch.monitor} was no better than "
                f"{self._watch.best} for {self._waited} epochs",
            )

    def state_dict(self) -> dict:
        """The best value, and how long ago it was."""
        return {
            "best": self._watch.best,
            "waited": self._waited,
            "stopped_epoch": self.stopped_epoch,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on waiting."""
        self._watch.best = state["best"]
        self._waited = state["waited"]
        self.stopped_epoch = state["stopped_epoch"]
