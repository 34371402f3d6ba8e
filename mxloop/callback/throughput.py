"""How fast an epoch was, and how long it waited for its data."""

import time
from typing import Callable

from mxloop.callback.base import Callback, State


class Throughput(Callback):
    """Add to each epoch's history how long it waited for its data, and what a step took.

    `data_seconds` is the time in which the loop waited for the iterator's next batch,
    `waiting` its share of the epoch, `step_seconds` the mean time from batch to batch. What stands
    before this callback in the list counts as part of a step, what stands after it as waiting.

    Parameters
    ----------
    clock : callable() -> float
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock

    def on_epoch_begin(self, state: State) -> None:
        """Start the clock."""
        self._waited = 0.0
        self._begun = self._last = self._clock()
        self._batches = 0

    def on_batch_begin(self, state: State) -> None:
        """The batch has come."""
        self._waited += self._clock() - self._last

    def on_batch_end(self, state: State) -> None:
        """The wait for the next begins."""
        self._last = self._clock()
        self._batches += 1

    def on_epoch_end(self, state: State) -> None:
        """Write it down."""
        seconds = max(self._last - self._begun, 1e-9)
        state.history[-1].update(
            data_seconds=self._waited,
            waiting=self._waited / seconds,
            step_seconds=seconds / max(self._batches, 1),
        )
