"""End with the parameters of the best epoch."""

from typing import Dict, Optional

from mxloop.callback.base import Callback, State
from mxloop.callback.watch import Watch
from mxloop.compat import mx


class KeepBest(Callback):
    """Give the model, when the training ends, the parameters of its best epoch.

    After an interruption the model has the last ones; a resumed run goes on from those, and still
    knows the best.

    Parameters
    ----------
    monitor : str
        A name in the history.
    mode : {'max', 'min'}, optional
        What is better; MXNet's own metrics tell by their names.

    Attributes
    ----------
    best_epoch : int or None
    """

    def __init__(self, monitor: str = "val_accuracy", mode: Optional[str] = None):
        self._watch = Watch(monitor, mode)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._watch.best = None
        self.best_epoch: Optional[int] = None
        self._arg_params: Dict[str, mx.nd.NDArray] = {}
        self._aux_params: Dict[str, mx.nd.NDArray] = {}

    @property
    def best(self) -> Optional[float]:
        """The best value so far."""
        return self._watch.best

    def on_train_begin(self, state: State) -> None:
        """Check that the metric will be measured."""
        self._watch.check(state)

    def on_epoch_end(self, state: State) -> None:
        """Keep a copy of the parameters, if they are the best so far."""
        if self._watch.is_better(state.history[-1]):
            self.best_epoch = state.epoch
            self._arg_params = {name: array.copy() for name, array in state.arg_params.items()}
            self._aux_params = {name: array.copy() for name, array in state.aux_params.items()}

    def on_train_end(self, state: State) -> None:
        """Put the best parameters into the model."""
        if self.best_epoch is not None:
            state.arg_params.update(self._arg_params)
            state.aux_params.update(self._aux_params)

    def state_dict(self) -> dict:
        """The best value, and the parameters that gave it."""
        return {
            "best": self._watch.best,
            "best_epoch": self.best_epoch,
            "arg_params": self._arg_params,
            "aux_params": self._aux_params,
        }

    def load_state_dict(self, state: dict) -> None:
        """Take them back."""
        self._watch.best, self.best_epoch = state["best"], state["best_epoch"]
        self._arg_params, self._aux_params = state["arg_params"], state["aux_params"]
