"""Find a learning rate: raise it from step to step until the loss explodes."""

import logging
import math
from typing import Any, List, NamedTuple, Optional

from mxloop import metric as metrics
from mxloop.callback.base import Callback, State
from mxloop.callback.learning_rate import check_settable
from mxloop.compat import mx
from mxloop.errors import ArgumentError, StateError
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)

SMOOTHING = 0.9  # of the losses, so that one odd batch does not count
EXPLODED = 4  # times the smallest loss


class Trial(NamedTuple):
    """One update: the rate, the loss of its batches, and the smoothed loss."""

    rate: float
    loss: float
    smooth: float


class LRFinder(Callback):
    """Try learning rates, from small to large, one an update (Smith, arXiv:1506.01186).

    ``finder = LRFinder(); model.fit(x, y, callbacks=finder); finder.suggestion``. The training ends
    after `steps` updates, or once the loss has grown to four times its smallest; the model then has
    the parameters that it had before, so that the next fit begins as if there had been none.

    Parameters
    ----------
    smallest, largest : float
        First rate and last.
    steps : int
        Rates to try, in equal ratios; the model's `num_epoch` must allow for as many updates.
    loss : str or EvalMetric
        What is computed of each update's batches; this waits for the devices.

    Attributes
    ----------
    trials : list of Trial
    """

    def __init__(
        self,
        smallest: float = 1e-5,
        largest: float = 10.0,
        steps: int = 100,
        loss: Any = "ce",
    ):
        if not 0 < smallest < largest < math.inf:
            raise ArgumentError(
                f"the rates go from {smallest} to {largest}; they must be more than 0, and grow"
            )
        self.smallest, self.largest = smallest, largest
        self.steps = count("steps", steps, least=2)
        self._loss = metrics.create(loss)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.trials: List[Trial] = []
        self._before: Optional[tuple] = None

    def on_train_begin(self, state: State) -> None:
        """Keep the parameters."""
        check_settable(state, "LRFinder")
        args: dict = {}
        aux: dict = {}
        state.manager.copy_to(args, aux)
        self._before = (args, aux, state.optimizer.learning_rate)

    def on_epoch_begin(self, state: State) -> None:
        """Leave the losses of an update at the end of an epoch behind."""
        self._loss.reset()

    def on_batch_begin(self, state: State) -> None:
        """Set the rate of the step that comes."""
        done = len(self.trials) / (self.steps - 1)
        state.optimizer.set_learning_rate(self.smallest * (self.largest / self.smallest) ** done)

    def on_batch_end(self, state: State) -> None:
        """Compute the loss of the update's batches; waits for the devices."""
        state.manager.update_metric(self._loss, state.data_batch.label)
        if not state.updated:
            return
        loss = float(self._loss.get()[1])
        self._loss.reset()
        self.trials.append(Trial(state.optimizer.learning_rate, loss, self._smooth(loss)))
        if self._exploded() or len(self.trials) == self.steps:
            state.stop = True
            self._put_back(state)

    def _smooth(self, loss):
        before = self.trials[-1].smooth if self.trials else loss
        return SMOOTHING * before + (1 - SMOOTHING) * loss

    def _exploded(self):
        smooth = self.trials[-1].smooth
        return not smooth <= EXPLODED * min(trial.smooth for trial in self.trials)  # NaN as well

    def _put_back(self, state):
        # At once: an epoch that ends with NaN parameters is an error.
        mx.nd.waitall()
        state.manager.set_params(*self._before[:2])

    def on_train_end(self, state: State) -> None:
        """Give the model its parameters back."""
        args, aux, rate = self._before
        self._put_back(state)
        state.arg_params.update(args)
        state.aux_params.update(aux)
        state.optimizer.set_learning_rate(rate)
        say(logger, f"Learning rate: {len(self.trials)} tried, {self.suggestion:.3g} suggested")

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest, by the logarithm of the rate."""
        best = min((trial.smooth for trial in self.trials), default=math.nan)
        if len(self.trials) < 2 or math.isnan(best):
            raise StateError("LRFinder has tried fewer than two rates; fit a model with it")
        falling = self.trials[: [trial.smooth for trial in self.trials].index(best) + 1]
        pairs = list(zip(falling, falling[1:])) or [(self.trials[0], self.trials[1])]
        before, after = min(pairs, key=lambda pair: pair[1].smooth - pair[0].smooth)
        return math.sqrt(before.rate * after.rate)

    def plot(self, path: Any) -> None:
        """Draw the losses over the rates, and the suggestion, into a PNG, SVG or PDF file."""
        from mxloop import plotting  # matplotlib is needed for this alone

        plotting.draw_rates(self.trials, self.suggestion, path)
