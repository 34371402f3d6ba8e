"""The history in TensorBoard, through tensorboardX."""

import os
from typing import Any, Dict

from mxloop.callback.base import Callback, State
from mxloop.optional import need

KINDS = ("train", "val")


class TensorBoard(Callback):
    """Write every epoch's values for TensorBoard; needs tensorboardX.

    Training and validation are runs of their own below `folder`, so that their curves of a metric
    share one picture; learning rate and speed go with the training. The step is the number of
    epochs done. A resumed run goes on where it was taken up.

    Parameters
    ----------
    folder : str or path-like
        For ``tensorboard --logdir FOLDER``.
    """

    def __init__(self, folder: Any):
        self.folder = os.fspath(folder)
        self._writers: Dict[str, Any] = {}

    def on_train_begin(self, state: State) -> None:
        """Open the files, for steps after those of the history."""
        writer = need("tensorboardX", "tensorboard", "the callback TensorBoard").SummaryWriter
        done = state.history[-1]["epoch"] + 1 if state.history else 0
        for kind in KINDS:
            self._writers[kind] = writer(
                os.path.join(self.folder, kind),
                purge_step=done + 1 if done else None,
                filename_suffix=f".{done}",  # two files begun in one second have else one name
            )

    def on_epoch_end(self, state: State) -> None:
        """Write the epoch's values."""
        row = state.history[-1]
        for name, value in row.items():
            kind, _, metric = name.partition("_")
            if kind in KINDS:
                self._writers[kind].add_scalar(metric, value, state.epoch + 1)
            elif name != "epoch":
                self._writers["train"].add_scalar(name, value, state.epoch + 1)
        if state.optimizer is not None and "learning_rate" not in row:
            rate = state.optimizer.learning_rate
            self._writers["train"].add_scalar("learning_rate", rate, state.epoch + 1)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, state: State) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def on_exception(self, state: State, error: BaseException) -> None:
        """Close the files."""
        self.on_train_end(state)
