"""How fast an epoch was, and how long it waited for its data."""

from mxloop.callback.base import Callback, State


class Throughput(Callback):
    """Add to each epoch's history how long it waited for its data, and what a step took.

    `data_seconds` is the time in which the loop waited for the iterator's next batch, of which
    `waiting` is the share of the epoch; `step_seconds` is the mean time from batch to batch.
    """

    def on_epoch_begin(self, state: State) -> None:
        """Start counting."""
        self._batches = 0

    def on_batch_end(self, state: State) -> None:
        """Count a step."""
        self._batches += 1

    def on_epoch_end(self, state: State) -> None:
        """Write it down."""
        row = state.history[-1]
        row["data_seconds"] = row["waiting"] * row["seconds"]
        row["step_seconds"] = row["seconds"] / max(self._batches, 1)
