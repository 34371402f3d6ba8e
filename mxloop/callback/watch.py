"""Which of two values of a watched metric is the better one."""

import math
from typing import Any, Dict, Optional

from mxloop.callback.base import State
from mxloop.errors import ArgumentError, StateError
from mxloop.metric import named_values
from mxloop.validation import check_known, did_you_mean, names, shown

# What MXNet calls its metrics that are better when larger, and its errors.
LARGER = ("accuracy", "top_k_accuracy", "f1", "mcc", "pcc", "pearsonr")
SMALLER = ("cross-entropy", "nll-loss", "perplexity", "mse", "mae", "rmse", "loss")


class Watch:
    """Compares a metric of each epoch with the best one so far.

    Parameters
    ----------
    monitor : str
        A name in the history, as 'val_accuracy'.
    mode : {'max', 'min'}, optional
        What is better; MXNet's own metrics tell by their names.
    min_delta : float
        By how much a value has to be better to count as better.

    Attributes
    ----------
    best : float or None

    Raises
    ------
    ArgumentError
        If the name does not tell what is better, and `mode` neither.
    """

    def __init__(self, monitor: str, mode: Optional[str] = None, min_delta: float = 0.0):
        self.monitor = monitor
        self.best: Optional[float] = None
        self._sign = {"max": 1, "min": -1}[_mode(monitor, mode)]
        self._min_delta = min_delta
        if not 0 <= min_delta < math.inf:
            raise ArgumentError(f"min_delta is {min_delta}; it must be at least 0, and finite")

    def check(self, state: State) -> None:
        """Raise StateError unless the training will measure what is watched."""
        measured = [f"train_{name}" for name, _ in named_values(state.meter.metric)]
        if state.eval_data is not None:
            measured += [name.replace("train_", "val_", 1) for name in measured]
        elif self.monitor.startswith("val_"):
            raise StateError(
                f"{shown(repr(self.monitor), 60)} is not measured without eval_data; pass "
                f"fit(eval_data=...), or watch one of {names(measured)}"
            )
        if self.monitor not in [*measured, "samples_per_second"]:
            raise StateError(
                f"{shown(repr(self.monitor), 60)} is not measured; "
                f"{did_you_mean(self.monitor, measured)}"
            )

    def is_better(self, row: Dict[str, Any]) -> Optional[bool]:
        """Whether an epoch's value is the best so far, which it then becomes; None without one."""
        value = row.get(self.monitor)
        if value is None:
            return None
        least = None if self.best is None else self._sign * self.best + self._min_delta
        if math.isnan(value) or (least is not None and self._sign * value <= least):
            return False
        self.best = float(value)
        return True


def _mode(monitor, mode):
    if not isinstance(monitor, str):
        raise ArgumentError(f"monitor is {shown(repr(monitor))}; pass a name, as 'val_accuracy'")
    if mode is not None:
        check_known(mode, ("max", "min"), "mode")
        return mode
    name = monitor.partition("_")[2]
    for known, found in ((LARGER, "max"), (SMALLER, "min")):
        if any(name == one or name.startswith(f"{one}_") for one in known):
            return found
    raise ArgumentError(
        f"{shown(repr(monitor), 60)} does not tell whether larger is better; pass mode='max' or "
        "mode='min'"
    )
