"""The learning rate as a function of the epoch: warm-up, cosine, steps."""

import math
from typing import Callable, Optional, Sequence

from mxloop.callback.base import Callback, State
from mxloop.callback.learning_rate import check_settable
from mxloop.errors import ArgumentError, ArgumentTypeError
from mxloop.validation import shown

Shape = Callable[[float], float]


def cosine(epochs: float, least: float = 0.0) -> Shape:
    """Fall from 1 to `least` along half a cosine over so many epochs (SGDR, arXiv:1608.03983)."""
    _check_positive("epochs", epochs)

    def factor(epoch: float) -> float:
        return least + (1 - least) * (1 + math.cos(math.pi * min(epoch / epochs, 1))) / 2

    return factor


def steps(epochs: Sequence[float], factor: float = 0.1) -> Shape:
    """Multiply by `factor` after each of these numbers of epochs."""
    ends = list(epochs)
    if ends != sorted(ends):
        raise ArgumentError(f"epochs is {shown(ends)}; pass numbers of epochs that grow")

    def product(epoch: float) -> float:
        return factor ** sum(epoch > end for end in ends)

    return product


def warm_up(epochs: float, then: Optional[Shape] = None) -> Shape:
    """Rise in a line over so many epochs to where `then` begins, 1 by default (arXiv:1706.02677).

    Epochs count on: ``warm_up(5, cosine(90))`` has risen at 5, and fallen at 90.
    """
    _check_positive("epochs", epochs)

    def factor(epoch: float) -> float:
        goal = 1.0 if then is None else then(max(epoch, epochs))
        return goal * min(epoch / epochs, 1.0)

    return factor


def _check_positive(name, value):
    if not 0 < value < math.inf:
        raise ArgumentError(f"{name} is {value}; it must be more than 0")


class Schedule(Callback):
    """Set the learning rate before every batch: the optimizer's, times a function of the epoch.

    Parameters
    ----------
    shape : callable(float) -> float
        As `cosine`, `steps` and `warm_up` make them. Called with the epochs done when the batch is
        over, as 2.25 after a quarter of the third epoch, so that a warm-up does not begin at zero;
        with the middle of the epoch, as 2.5, where the data do not tell how many batches it has.
    """

    def __init__(self, shape: Shape):
        if not callable(shape):
            raise ArgumentTypeError(
                f"shape is {shown(repr(shape))}; pass a function of the epoch, as cosine(10)"
            )
        self._shape = shape
        self.reset()

    def reset(self) -> None:
        """Begin anew, with the rate that the optimizer then has."""
        self._base: Optional[float] = None

    def on_train_begin(self, state: State) -> None:
        """Take the optimizer's rate as what the function multiplies."""
        check_settable(state, "Schedule")
        if self._base is None:
            self._base = state.optimizer.learning_rate

    def on_batch_begin(self, state: State) -> None:
        """Set the rate of the step that comes."""
        within = (state.nbatch + 1) / state.num_batch if state.num_batch else 0.5
        rate = self._base * self._shape(state.epoch + min(within, 1))
        state.optimizer.set_learning_rate(rate)

    def on_train_end(self, state: State) -> None:
        """Give the optimizer its own rate back."""
        if self._base is not None:
            state.optimizer.set_learning_rate(self._base)

    def on_exception(self, state: State, error: BaseException) -> None:
        """Give the optimizer its own rate back."""
        self.on_train_end(state)

    def state_dict(self) -> dict:
        """The rate that the function multiplies."""
        return {"base": self._base}

    def load_state_dict(self, state: dict) -> None:
        """Go on from that rate."""
        self._base = state["base"]
