"""How fast the training goes, every so many batches."""

import logging
import time
from typing import Any, Optional

from mxloop.callback.base import Callback, State
from mxloop.log import say
from mxloop.validation import count

logger = logging.getLogger(__name__)


class Speedometer(Callback):
    """Log samples per second, of real samples, and the metric, every `frequent` batches.

    Stands where MXNet's does: ``batch_end_callback=Speedometer(128, 50)``; a loop of your own
    calls it with a BatchEndParam. It prints without logging being configured.

    Parameters
    ----------
    batch_size : int, optional
        Counted for a batch in loops that hand no manager over; `fit` counts the real samples.
    frequent : int
        Batches from line to line.
    auto_reset : bool
        Show the metric since the last line, instead of since the epoch began.
    """

    def __init__(
        self, batch_size: Optional[int] = None, frequent: int = 50, auto_reset: bool = True
    ):
        self.batch_size = batch_size
        self.frequent = count("frequent", frequent)
        self.auto_reset = auto_reset
        self._last = 0
        self._tic: Optional[float] = None

    resets_metric = True

    def on_epoch_begin(self, state: State) -> None:
        """Start the clock."""
        self._start(0)
        self._last = 0

    def on_batch_end(self, state: State) -> None:
        """Count a batch."""
        self(state.batch_end_param())

    def __call__(self, param: Any) -> None:
        """Count a batch; `param` is a BatchEndParam."""
        if self._tic is None or param.nbatch <= self._last:
            # When this batch began nobody told: its end starts the clock.
            self._start(0)
        else:
            self._samples += self._rows(param)
        self._last = param.nbatch
        if param.nbatch % self.frequent == 0 and self._samples:
            self._report(param)

    def _start(self, nbatch):
        self._from, self._samples, self._tic = nbatch, 0, time.perf_counter()

    def _rows(self, param):
        manager = (param.locals or {}).get("executor_manager")
        return self.batch_size or 0 if manager is None else manager.num_samples

    def _report(self, param):
        speed = self._samples / max(time.perf_counter() - self._tic, 1e-9)
        since = self._from if self.auto_reset else 0
        text = (
            f"Epoch[{param.epoch}] Batch [{since}-{param.nbatch}]\tSpeed: {speed:.2f} samples/sec"
        )
        if param.eval_metric is not None:
            values = param.eval_metric.get_name_value()
            text += "".join(f"\t{name}={value:f}" for name, value in values)
            if self.auto_reset:
                param.eval_metric.reset()
        say(logger, text)
        self._start(param.nbatch)
