"""Train on one batch over and over: a network that cannot learn it by heart has a defect."""

from typing import Any, Dict, Optional

from mxloop.callback.base import Callback, State
from mxloop.compat import mx


class OverfitBatch(Callback):
    """Put the first batch of the training in the place of every later one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, with another batch."""
        self._batch: Optional[mx.io.DataBatch] = None

    def on_batch_begin(self, state: State) -> None:
        """Keep the first batch, then put it in."""
        if self._batch is None:
            self._batch = _copied(state.data_batch)
        state.data_batch = self._batch

    def state_dict(self) -> Dict[str, Any]:
        """The batch."""
        batch = self._batch
        if batch is None:
            return {}
        return {
            "pad": batch.pad,
            "bucket_key": batch.bucket_key,
            "data": {str(i): array for i, array in enumerate(batch.data)},
            "label": {str(i): array for i, array in enumerate(batch.label)},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take the batch back."""
        if state:
            self._batch = mx.io.DataBatch(
                list(state["data"].values()),
                list(state["label"].values()),
                pad=state["pad"],
                bucket_key=state["bucket_key"],
            )


def _copied(batch):
    """A batch of its own: iterators may fill the same arrays again."""
    return mx.io.DataBatch(
        [array.copy() for array in batch.data],
        [array.copy() for array in batch.label or []],
        pad=batch.pad,
        bucket_key=getattr(batch, "bucket_key", None),
        provide_data=batch.provide_data,
        provide_label=batch.provide_label,
    )
