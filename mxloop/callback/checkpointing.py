"""Checkpoints while training: every so many epochs and batches, and when training ends early."""

import logging
import os
from typing import Any, Callable, Optional

from mxloop import checkpoint, resume
from mxloop.callback.base import Callback, State
from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DivergedError,
    EngineError,
    PeerError,
)
from mxloop.validation import count, shown

logger = logging.getLogger(__name__)


class Checkpoint(Callback):
    """Write checkpoints from which a run resumes to the bit; ``fit(checkpoint=...)`` takes one.

    Parameters
    ----------
    prefix : str or path-like
        Where: ``prefix-0003.params`` and its companions after three epochs.
    every_n_epochs : int
    every_n_batches : int, optional
        Within an epoch, in files named by epoch and batch.
    keep : int, optional
        How many to keep; older ones are removed once the next is safe. All by default.
    best : str, optional
        A name in the history, as 'val_accuracy': the best epoch's checkpoint is kept besides.
    mode : {'max', 'min'}
        What is best.

    Attributes
    ----------
    best_epoch : int or None
        Epochs done when `best` was best.
    """

    def __init__(
        self,
        prefix: Any,
        every_n_epochs: int = 1,
        every_n_batches: Optional[int] = None,
        keep: Optional[int] = None,
        best: Optional[str] = None,
        mode: str = "max",
    ):
        self.prefix = os.fspath(prefix)
        self.every_n_epochs = count("every_n_epochs", every_n_epochs)
        self.every_n_batches = every_n_batches and count("every_n_batches", every_n_batches)
        self.keep = keep and count("keep", keep)
        self.best = best
        self._sign = -1 if mode == "min" else 1
        self._best_value: Optional[float] = None
        self.best_epoch: Optional[int] = None

    def on_batch_end(self, state: State) -> None:
        """Write, every `every_n_batches` batches."""
        if self.every_n_batches and state.nbatch % self.every_n_batches == 0:
            self.write(state)

    def on_epoch_end(self, state: State) -> None:
        """Write, every `every_n_epochs` epochs and at the last."""
        self._judge(state)
        done = state.epoch + 1
        last = done == state.num_epoch or state.stop
        if done % self.every_n_epochs == 0 or last or done == self.best_epoch:
            self.write(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        """Write what was learned, unless half a step was."""
        if isinstance(error, (DivergedError, EngineError, PeerError)) or state.position is None:
            return
        try:
            self.write(state)
        except DataError as failed:  # it must not hide what ended the training
            logger.warning("no checkpoint of the end: %s", failed)

    def _judge(self, state):
        value = state.history[-1].get(self.best) if self.best else None
        if value is not None and (
            self._best_value is None or self._sign * value > self._sign * self._best_value
        ):
            self._best_value, self.best_epoch = float(value), state.epoch + 1

    def write(self, state: State) -> None:
        """Write a checkpoint of the last mark between two steps, then remove what is not kept."""
        epoch, batch = state.position
        states, training = resume.capture(state)
        arg_params: dict = {}
        aux_params: dict = {}
        state.manager.copy_to(arg_params, aux_params)
        checkpoint.save(
            self.prefix,
            epoch,
            state.manager.symbol,
            arg_params,
            aux_params,
            states,
            training,
            batch,
        )
        self._prune()

    def _prune(self):
        if not self.keep:
            return
        kept = checkpoint.generations(self.prefix)
        for epoch, batch in kept[self.keep :]:
            if (epoch, batch) != (self.best_epoch, 0):
                checkpoint.remove(self.prefix, epoch, batch)

    def state_dict(self) -> dict:
        """The best value so far."""
        return {"best_value": self._best_value, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict) -> None:
        """Go on from the best value so far."""
        self._best_value, self.best_epoch = state["best_value"], state["best_epoch"]


def do_checkpoint(prefix: Any, period: int = 1) -> Callable:
    """Make an ``epoch_end_callback`` that saves the model, as MXNet's does, with a manifest.

    Parameters
    ----------
    prefix : str or path-like
    period : int
        Epochs from one save to the next.
    """
    period = count("period", period)

    def save(epoch, symbol, arg_params, aux_params):
        if (epoch + 1) % period == 0:
            checkpoint.save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def as_checkpoint(given: Any) -> Optional[Checkpoint]:
    """Make a Checkpoint of a prefix; one, or None, stays as it is."""
    if given is None or isinstance(given, Checkpoint):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Checkpoint(given)
    raise ArgumentTypeError(
        f"checkpoint is {shown(repr(given))}; pass a prefix for files, or a callback.Checkpoint"
    )


def find(keeper: Optional[Checkpoint], resume: Any) -> Optional[checkpoint.Generation]:
    """The checkpoint to go on from.

    Parameters
    ----------
    keeper : Checkpoint or None
    resume : None, False, True, 'auto' or int
        True wants one, 'auto' takes one if there is any, a number is that of epochs done.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DataError
        If there is no such checkpoint, or nowhere to look for it.
    """
    if resume is None or resume is False:
        return None
    if keeper is None:
        raise ArgumentError("resume needs checkpoint=, the prefix under which to look")
    if isinstance(resume, int) and resume is not True:
        return checkpoint.load(keeper.prefix, count("resume", resume, least=0))
    if resume is not True and resume != "auto":
        raise ArgumentTypeError(
            f"resume is {shown(repr(resume))}; pass True, 'auto', or a number of epochs"
        )
    found = checkpoint.newest(keeper.prefix)
    if found is None and resume is True:
        raise DataError(
            f"there is no valid checkpoint {shown(keeper.prefix, 120)}-*; check the prefix, or "
            "pass resume='auto' to begin anew"
        )
    return found
