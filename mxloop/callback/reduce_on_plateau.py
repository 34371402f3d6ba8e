"""Lower the learning rate where the training no longer gets better."""

import logging
from typing import Optional

from mxloop.callback.base import Callback, State
from mxloop.callback.learning_rate import check_settable
from mxloop.callback.watch import Watch
from mxloop.errors import ArgumentError
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)


class ReduceOnPlateau(Callback):
    """Multiply the learning rate by `factor` after `patience` epochs without a better value.

    Parameters
    ----------
    monitor : str
        A name in the history.
    factor : float
        Between 0 and 1.
    patience : int
        Epochs without a better value before the rate is lowered.
    mode : {'max', 'min'}, optional
        What is better; MXNet's own metrics tell by their names.
    min_delta : float
        By how much a value has to be better to count as better.
    min_lr : float
        The rate is not lowered further than this.
    """

    def __init__(
        self,
        monitor: str = "val_accuracy",
        factor: float = 0.1,
        patience: int = 3,
        mode: Optional[str] = None,
        min_delta: float = 0.0,
        min_lr: float = 0.0,
    ):
        if not 0 < factor < 1:
            raise ArgumentError(f"factor is {factor}; it must be between 0 and 1")
        self._watch = Watch(monitor, mode, min_delta)
        self.factor = factor
        self.patience = count("patience", patience)
        self.min_lr = min_lr
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._watch.best = None
        self._waited = 0

    def on_train_begin(self, state: State) -> None:
        """Check that the metric will be measured, and that the rate can be set."""
        self._watch.check(state)
        check_settable(state, "ReduceOnPlateau")

    def on_epoch_end(self, state: State) -> None:
        """Look at the epoch's value."""
        better = self._watch.is_better(state.history[-1])
        if better is None:
            return
        self._waited = 0 if better else self._waited + 1
        if self._waited >= self.patience:
            self._waited = 0
            self._lower(state)

    def _lower(self, state):
        rate = max(state.optimizer.learning_rate * self.factor, self.min_lr)
        if rate < state.optimizer.learning_rate:
            state.optimizer.set_learning_rate(rate)
            say(logger, f"Epoch[{state.epoch}] Learning rate lowered to {rate:g}")

    def state_dict(self) -> dict:
        """The best value, and how long ago it was; the rate is in the optimizer's state."""
        return {"best": self._watch.best, "waited": self._waited}

    def load_state_dict(self, state: dict) -> None:
        """Go on waiting."""
        self._watch.best, self._waited = state["best"], state["waited"]
