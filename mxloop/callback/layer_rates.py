"""Learning rates of single layers."""

from typing import Dict

from mxloop.callback.base import Callback, State
from mxloop.callback.learning_rate import check_served
from mxloop.callback.patterns import matching
from mxloop.errors import ArgumentError


class LayerRates(Callback):
    """Multiply the learning rate of parameters whose names match.

    Parameters
    ----------
    factors : dict of str to float
        By shell pattern of parameters' names, as ``{'conv*': 0.1}``; where several match, the last
        counts. They take the place of the `lr_mult` that a parameter has otherwise.
    """

    def __init__(self, factors: Dict[str, float]):
        for pattern, factor in factors.items():
            if not factor >= 0:
                raise ArgumentError(f"the factor of {pattern!r} is {factor}; it must not be < 0")
        self.factors = dict(factors)
        self._before: dict = {}

    def on_train_begin(self, state: State) -> None:
        """Set the multipliers."""
        check_served(state, "LayerRates")
        self._before = dict(state.optimizer.lr_mult)
        for pattern, factor in self.factors.items():
            for name in matching(pattern, state.manager.param_names):
                state.optimizer.lr_mult[name] = factor

    def on_train_end(self, state: State) -> None:
        """Give the optimizer its own multipliers back."""
        state.optimizer.lr_mult = self._before

    def on_exception(self, state: State, error: BaseException) -> None:
        """Give the optimizer its own multipliers back."""
        self.on_train_end(state)
