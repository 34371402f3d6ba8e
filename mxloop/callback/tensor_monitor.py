"""Statistics of parameters and gradients, on every device, while training."""

import logging
from typing import Any, Dict, List

import numpy as np

from mxloop.callback.base import Callback, State
from mxloop.callback.patterns import matching
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)


class TensorMonitor(Callback):
    """Look at parameters and their gradients every so many batches, device by device.

    Each look copies them from the devices, and waits for those. On several devices without a
    kvstore, the first device's gradients are the sums of all. (What layers compute is seen by
    MXNet's own ``fit(monitor=mx.mon.Monitor(...))``, whose rows name their device as well.)

    Parameters
    ----------
    pattern : str
        Shell pattern of parameters' names, as ``'*_weight'``.
    every : int
        Batches from look to look.
    quiet : bool
        Whether nothing is logged.

    Attributes
    ----------
    rows : list of dict
        `epoch`, `batch`, `tensor` ('fc1_weight' or 'fc1_weight.grad'), `device`, `mean`, `std`,
        `least`, `most`, and `bad`, the number of values that are NaN or infinite; statistics are
        over the finite ones.
    """

    def __init__(self, pattern: str = "*", every: int = 100, quiet: bool = False):
        self.pattern = pattern
        self.every = count("every", every)
        self.quiet = quiet
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.rows: List[Dict[str, Any]] = []

    def on_train_begin(self, state: State) -> None:
        """Check the pattern."""
        matching(self.pattern, state.manager.param_names)

    def on_batch_end(self, state: State) -> None:
        """Look, if it is time to; waits for the devices."""
        if state.nbatch % self.every:
            return
        manager = state.manager
        for name in matching(self.pattern, manager.param_names):
            i = manager.param_names.index(name)
            for tensor, arrays in (
                (name, manager.param_arrays),
                (f"{name}.grad", manager.grad_arrays),
            ):
                for ctx, array in zip(manager.ctx, arrays[i]):
                    if array is not None:
                        self._note(state, tensor, ctx, array.asnumpy())

    def _note(self, state, tensor, ctx, values):
        place = {"epoch": state.epoch, "batch": state.nbatch, "tensor": tensor, "device": str(ctx)}
        row = {**place, **statistics(values)}
        self.rows.append(row)
        if not self.quiet:
            told = " ".join(f"{name}={row[name]:.4g}" for name in ("mean", "std", "least", "most"))
            say(
                logger,
                f"Epoch[{state.epoch}] Batch [{state.nbatch}] {tensor} [{ctx}] {told} "
                f"bad={row['bad']}",
            )

    def state_dict(self) -> dict:
        """The looks so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict) -> None:
        """Go on after them."""
        self.rows = list(state["rows"])


def statistics(values: np.ndarray) -> Dict[str, Any]:
    """Mean, standard deviation, least and most of the finite values, and how many are not."""
    finite = values[np.isfinite(values)].astype(np.float64)
    told = {"mean": 0.0, "std": 0.0, "least": 0.0, "most": 0.0}
    if finite.size:
        told = {
            "mean": float(finite.mean()),
            "std": float(finite.std()),
            "least": float(finite.min()),
            "most": float(finite.max()),
        }
    return {**told, "bad": int(values.size - finite.size)}
