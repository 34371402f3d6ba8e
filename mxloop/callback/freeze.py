"""Leave some parameters as they are, for good or for the first epochs."""

from typing import Optional

from mxloop.callback.base import Callback, State
from mxloop.callback.patterns import matching
from mxloop.errors import StateError
from mxloop.validation import count


class Freeze(Callback):
    """Do not train parameters whose names match, so as to fine-tune the others.

    Their optimizer states stand still as well, momentum included. Gradients are computed all the
    same; running statistics (BatchNorm) go on moving.

    Parameters
    ----------
    *patterns : str
        Shell patterns of parameters' names, as 'conv*'.
    until : int, optional
        The first epoch, counted from 0, that trains them; by default none does.
    """

    def __init__(self, *patterns: str, until: Optional[int] = None):
        self.patterns = patterns
        self.until = until if until is None else count("until", until)

    def on_train_begin(self, state: State) -> None:
        """Freeze, for the first epoch at least."""
        if not hasattr(state.update, "freeze"):
            raise StateError("Freeze needs an update that can pass parameters over: a model.Update")
        frozen = [matching(pattern, state.manager.param_names) for pattern in self.patterns]
        state.update.freeze([name for names in frozen for name in names])

    def on_epoch_begin(self, state: State) -> None:
        """Thaw, if it is time to."""
        if self.until is not None and state.epoch >= self.until:
            state.update.freeze([])
