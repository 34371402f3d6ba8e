"""Checkpoints while training: every so many epochs and batches, and when training ends early."""

import logging
import math
import numbers
import os
from typing import Any, Callable, Dict, Optional, Tuple

from mxloop import checkpoint, resume
from mxloop.callback.base import Callback, State
from mxloop.callback.watch import Watch
from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DivergedError,
    EngineError,
    PeerError,
)
from mxloop.validation import check_known, count, path_of, shown

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
    mode : {'max', 'min'}, optional
        What is best; MXNet's own metrics tell by their names.

    Attributes
    ----------
    best_epoch : int or None
        Epochs done when `best` was best.
    """

    is_of_ranks = False  # whether several processes can use it together

    def __init__(
        self,
        prefix: Any,
        every_n_epochs: int = 1,
        every_n_batches: Optional[int] = None,
        keep: Optional[int] = None,
        best: Optional[str] = None,
        mode: Optional[str] = None,
    ):
        self.prefix = path_of(prefix)
        self.every_n_epochs = count("every_n_epochs", every_n_epochs)
        self.every_n_batches = _count_or_none("every_n_batches", every_n_batches)
        self.keep = _count_or_none("keep", keep)
        self.best = best
        if mode is not None:
            check_known(mode, ("max", "min"), "mode")
        self._watch = None if best is None else Watch(best, mode)
        self.best_epoch: Optional[int] = None
        self._written: Optional[Dict[Tuple[int, int], float]] = None  # when, by epoch and batch

    def reset(self) -> None:
        """Forget the best epoch of an earlier training."""
        self.load_state_dict({"best_value": None, "best_epoch": None})

    def on_train_begin(self, state: State) -> None:
        """Check that there is where to write, and that what is best will be measured."""
        self._written = None
        checkpoint.checked_prefix(self.prefix)
        if self._watch is not None:
            self._watch.check(state)

    def on_batch_end(self, state: State) -> None:
        """Write, every `every_n_batches` batches."""
        if self.every_n_batches and state.nbatch % self.every_n_batches == 0:
            self.write(state)

    def on_epoch_end(self, state: State) -> None:
        """Write, every `every_n_epochs` epochs and at the last."""
        done = state.epoch + 1
        if self._watch is not None and self._watch.is_better(state.history[-1]):
            self.best_epoch = done
        last = done == state.num_epoch or state.stop
        if done % self.every_n_epochs == 0 or last or done == self.best_epoch:
            self._write(state, _copied_now(state))

    def on_exception(self, state: State, error: BaseException) -> None:
        """Write what was learned, unless half a step was."""
        if isinstance(error, (DivergedError, EngineError, PeerError)) or state.position is None:
            return
        try:
            self.write(state)
        except Exception as failed:  # it must not hide what ended the training
            logger.warning("no checkpoint of the end: %s", shown(failed, 200))

    def write(self, state: State) -> None:
        """Write a checkpoint of the last mark between two steps, then remove what is not kept."""
        if state.guard is not None:
            state.guard.check()  # what diverged is not worth keeping
        self._write(state, _copied(state))

    def _write(self, state, params):
        epoch, batch = state.position
        states, training = resume.capture(state)
        arg_params, aux_params = params
        training["serial"] = self._next_serial()
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
        self._written[epoch, batch] = training["serial"]
        logger.info("Saved %s.params", checkpoint.stem(self.prefix, epoch, batch))
        self._prune()

    def _next_serial(self):
        """Count on from what is there, which is looked at once a training."""
        if self._written is None:
            there = checkpoint.serials(self.prefix)
            self._written = {at: n for at, n in there.items() if 0 < n < math.inf}
        return int(max(self._written.values(), default=0)) + 1

    def _prune(self):
        if self.keep is None:
            return
        oldest_first = sorted(self._written, key=self._written.get)
        for place in oldest_first[: -self.keep]:
            if place != (self.best_epoch, 0):
                checkpoint.remove(self.prefix, *place)
                del self._written[place]

    def newest(self) -> Optional[checkpoint.Generation]:
        """Read the newest valid checkpoint; None where there is none."""
        return checkpoint.newest(self.prefix)

    def load(self, epoch: int) -> checkpoint.Generation:
        """Read the checkpoint after so many epochs."""
        return checkpoint.load(self.prefix, epoch)

    def state_dict(self) -> dict:
        """The best value so far."""
        best = None if self._watch is None else self._watch.best
        return {"best_value": best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict) -> None:
        """Go on from the best value so far."""
        best, epoch = state["best_value"], state["best_epoch"]
        if not (best is None or isinstance(best, (int, float))):
            raise DataError(f"the best value is {shown(repr(best))}; it must be a number, or None")
        self.best_epoch = None if epoch is None else count("best_epoch", epoch, least=0)
        if self._watch is not None:
            self._watch.best = best


def _count_or_none(name, value):
    return None if value is None else count(name, value)


def _copied(state):
    params: tuple = ({}, {})
    state.manager.copy_to(*params)
    return params


def _copied_now(state):
    """The parameters at an epoch's end, where they have just been copied out already.

    A user's function may have changed them since, the copies or those on the devices.
    """
    own = [callback for callback in state.callbacks if _may_change(callback)]
    return _copied(state) if own else (state.arg_params, state.aux_params)


def _may_change(callback):
    acts = type(callback).on_epoch_end is not Callback.on_epoch_end
    known = type(callback).__module__.startswith("mxloop.callback.")
    return acts and (not known or hasattr(callback, "function"))


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
    if isinstance(given, (str, bytes, os.PathLike)):
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
    if isinstance(resume, numbers.Integral) and resume is not True:
        return keeper.load(count("resume", resume, least=0))
    if resume is not True and resume != "auto":
        raise ArgumentTypeError(
            f"resume is {shown(repr(resume))}; pass True, 'auto', or a number of epochs"
        )
    found = keeper.newest()
    if found is None and resume is True:
        raise DataError(
            f"there is no valid checkpoint {shown(keeper.prefix, 120)}-*; check the prefix, or "
            "pass resume='auto' to begin anew"
        )
    return found
