"""How far the training is: a bar on a terminal, lines elsewhere."""

import logging
import sys
import time
from typing import Any, Dict, Optional

from mxloop.callback.base import Callback, State
from mxloop.log import ROOT, say
from mxloop.metric import named_values
from mxloop.optional import need
from mxloop.validation import count

logger = logging.getLogger(__name__)

SECONDS = 0.5  # between two looks at the metric, each of which waits for the devices


class Progress(Callback):
    """Show a bar (tqdm) on a terminal, and in files a line every so many batches.

    Both tell epoch, batch, speed in real samples per second, and the metrics so far. Where logging
    of `mxloop` is set to WARNING or above, neither is shown.

    Parameters
    ----------
    frequent : int
        Batches from line to line.
    stream : file, optional
        Where the bar goes, if it is a terminal; stderr by default.
    """

    def __init__(self, frequent: int = 100, stream: Optional[Any] = None):
        self.frequent = count("frequent", frequent)
        self._stream = stream
        self._bar: Optional[Any] = None
        self._is_terminal = False

    def on_train_begin(self, state: State) -> None:
        """Look where the output goes."""
        stream = sys.stderr if self._stream is None else self._stream
        self._is_terminal = stream.isatty() and not _is_quiet()
        if self._is_terminal:
            self._tqdm = need("tqdm", "progress", "a progress bar").tqdm

    def on_epoch_begin(self, state: State) -> None:
        """Begin a bar, and start the clock."""
        self._begun = self._seen = time.perf_counter()
        self._samples = state.samples
        if self._is_terminal:
            self._bar = self._tqdm(
                desc=f"Epoch {state.epoch + 1}/{state.num_epoch}",
                total=state.num_batch,
                initial=state.nbatch,
                unit="batch",
                file=self._stream,
                dynamic_ncols=True,
                leave=True,
            )

    def on_batch_end(self, state: State) -> None:
        """Move the bar, or write a line if it is time to; then waits for the devices."""
        if self._bar is not None:
            self._bar.update()
            if time.perf_counter() - self._seen >= SECONDS:
                self._show(state)
        elif state.nbatch % self.frequent == 0 and not self._is_terminal:
            self._line(state)

    def on_eval_begin(self, state: State) -> None:
        """Show the whole epoch's values: the bar ends here."""
        self._end(state)

    def on_epoch_end(self, state: State) -> None:
        """End the bar, if no evaluation did."""
        self._end(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        """Leave the bar where it is, and the terminal in order."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _end(self, state):
        whole = state.history and state.history[-1]["epoch"] == state.epoch
        if self._bar is not None and whole:
            row = state.history[-1]
            self._bar.set_postfix(_texts(row["samples_per_second"], _trained(row)), refresh=False)
            self._bar.close()
            self._bar = None

    def _show(self, state):
        self._seen = time.perf_counter()
        self._bar.set_postfix(_texts(self._speed(state), _values(state)), refresh=False)

    def _line(self, state):
        total = "" if state.num_batch is None else f"/{state.num_batch}"
        told = _texts(self._speed(state), _values(state))
        text = "\t".join(f"{name}={value}" for name, value in told.items())
        say(logger, f"Epoch[{state.epoch}] Batch [{state.nbatch}{total}]\t{text}")

    def _speed(self, state):
        seconds = time.perf_counter() - self._begun
        return (state.samples - self._samples) / max(seconds, 1e-9)


def _values(state):
    return dict(named_values(state.metric))


def _trained(row):
    return {k[len("train_") :]: v for k, v in row.items() if k.startswith("train_")}


def _texts(speed: float, values: Dict[str, float]) -> Dict[str, str]:
    texts = {name: f"{value:.4f}" for name, value in values.items()}
    return {**texts, "samples/sec": f"{speed:.0f}"}


def _is_quiet():
    return logging.getLogger(ROOT).level > logging.INFO
