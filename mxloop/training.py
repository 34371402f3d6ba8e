"""The loop: epochs of batches, evaluation after each, callbacks along the way.

One step is: load a batch, forward, backward, update, metric, callbacks. `run_epoch` reads as that
sentence; a loop of one's own is the same calls, written by hand.
"""

import collections
import copy
import functools
import itertools
import logging
import time
from typing import Any, Callable, Iterable, Optional, Sequence

from mxloop import distributed, passes, signals
from mxloop import labels as label_rules
from mxloop import metric as metrics
from mxloop import resume as resuming
from mxloop.callback import Callback, CallbackList, State
from mxloop.checkpoint import Generation
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, DivergedError, EngineError
from mxloop.executor_manager import DataParallelExecutorManager, as_descs
from mxloop.guard import Guard
from mxloop.meter import Meter
from mxloop.validation import count, not_finite, reason, shown

logger = logging.getLogger(__name__)


def run_epoch(
    manager: DataParallelExecutorManager,
    batches: Iterable,
    meter: Meter,
    state: State,
    before_batch: Callable[[], None],
    after_batch: Callable[[], None],
    update: Optional[Callable[[], None]] = None,
    check_labels: bool = True,
) -> None:
    """Run all batches: a training epoch with `update`, an evaluation without."""
    state.metric, state.shown_metric = meter.metric, meter.shown
    batches = iter(batches)
    while not state.end_pass:
        batch = next(batches, None)
        if batch is None:
            break
        state.data_batch = batch
        before_batch()
        batch = state.data_batch  # another one, where a callback wants it so
        manager.load_data_batch(batch)
        if check_labels:
            manager.check_label_values(batch.label)
        with _engine_errors:
            manager.forward(is_train=update is not None)
            if update is not None:
                manager.backward()
                update()
            state.nbatch += 1
            state.samples += manager.num_samples
            meter.update(manager, batch)
        after_batch()
        if state.stop and update is not None and state.updated:
            break  # of the training; an evaluation is over all its data
    state.end_pass = False


def labels_need_looks(manager: DataParallelExecutorManager, data: Any) -> bool:
    """Whether labels must be looked at batch by batch; those of arrays are, here and at once.

    To look at a batch's can mean to wait for the step before.
    """
    labels = label_rules.at_hand(data)
    if labels is not None:
        manager.check_all_labels(as_descs(data.provide_label), labels)
    return labels is None


def start_counting(meter: Meter, state: State) -> None:
    """Set metric and counts to zero, for a new epoch or evaluation."""
    meter.reset()
    state.samples = state.nbatch = 0


class _EngineErrors:
    """Tells failures of MXNet's engine, which leave half a step behind, from all others."""

    def __enter__(self):
        pass

    def __exit__(self, _, error, trace):
        if isinstance(error, mx.base.MXNetError):
            raise EngineError(f"a step failed inside MXNet: {reason(error)}") from error


_engine_errors = _EngineErrors()


def _clear_engine():
    """Take the other devices' failures, which would else strike whatever runs next."""
    for _ in range(100):
        try:
            mx.nd.waitall()
        except mx.base.MXNetError:
            continue  # each wait takes one
        break


def train(
    manager: DataParallelExecutorManager,
    update: Callable[[], None],
    train_data: Any,
    num_epoch: int,
    eval_data: Any = None,
    eval_metric: Any = "acc",
    begin_epoch: int = 0,
    epoch_size: Optional[int] = None,
    callbacks: Sequence[Any] = (),
    monitor: Optional[mx.monitor.Monitor] = None,
    state: Optional[State] = None,
    kvstore: Optional[Any] = None,
    resume: Optional[Generation] = None,
    guard: bool = True,
) -> State:
    """Train from `begin_epoch` up to `num_epoch`: epochs, evaluations, callbacks.

    Parameters
    ----------
    manager : DataParallelExecutorManager
        With its parameters set.
    update : callable()
        Makes one step of the parameters, as an `Update` does. With one that accumulates, an epoch's
        last step is that of the batches that are left.
    train_data, eval_data : DataIter
    num_epoch, begin_epoch : int
    eval_metric : str, callable, EvalMetric or list
        An object holds the last training epoch's value afterwards.
    epoch_size : int, optional
        Batches in an epoch; the data are wrapped around, or continued in the next epoch. By default
        an epoch is one pass.
    callbacks : list of Callback
        As `mxloop.callback.as_callbacks` makes them.
    monitor : Monitor, optional
    state : State, optional
        To be filled while training; a new one by default.
    kvstore : KVStore, optional
        One of several workers ('dist_sync') keeps them in step.
    resume : Generation, optional
        A checkpoint to go on from, whose parameters the manager has; see `mxloop.resume`.
    guard : bool
        Whether to look at every step's gradients, and end with a `DivergedError` that names step,
        parameter and device where one is NaN or infinite.

    Returns
    -------
    State
        Its `history` has an entry an epoch: `epoch`, `train_<metric>`, `val_<metric>`,
        `samples_per_second`, `seconds`, `waiting` (the share of these that it waited for data).

    Raises
    ------
    ArgumentError
        If `epoch_size` is set and `eval_data` is the iterator that is trained on.
    DataError
        If an epoch has no batches, or labels are missing.
    """
    if epoch_size is not None and eval_data is train_data:
        raise ArgumentError(
            "eval_data is the very iterator that is trained on, and with epoch_size an evaluation "
            "would lose the training's place in it; pass an iterator of its own for eval_data"
        )
    state = state or State(manager, begin_epoch, num_epoch)
    if monitor:
        manager.install_monitor(monitor)
        callbacks = [*callbacks, _Monitoring(monitor)]
    manager.check_labels()
    apart = any(callback.resets_metric for callback in callbacks)
    meter = Meter(metrics.create(eval_metric), apart)
    manager.check_metric(meter.metric)  # before a step is made
    peers = distributed.peers_of(kvstore)
    peers.check_metric(meter.metric)
    eval_meter = Meter(copy.deepcopy(meter.metric), apart)
    stream = _Epochs(train_data, epoch_size)
    state.update, state.meter = update, meter
    state.guard = Guard(manager) if guard else None
    state.train_data, state.eval_data = train_data, eval_data
    state.num_batch = _num_batches(train_data) if epoch_size is None else epoch_size
    state.callbacks = list(callbacks)
    start_counting(meter, state)
    if resume is None:
        for callback in callbacks:
            callback.reset()
    else:
        resuming.restore(state, resume)
        stream.go_on(resume, resume.epoch < num_epoch)
        resuming.restore_random(resume)
        begin_epoch = resume.epoch
    if distributed.is_synchronous(kvstore):
        stream = _InStep(stream, train_data, distributed.workers_of(kvstore), update)
    with signals.deferred() as interruption, meter, eval_meter:
        tell = CallbackList([*resuming.first_callbacks(state), *callbacks, interruption])
        try:
            if eval_data is not None:
                state.evaluate = functools.partial(
                    _evaluate_within, manager, eval_data, eval_meter, state, tell
                )
            tell("on_train_begin", state)
            for epoch in range(begin_epoch, num_epoch):
                if state.stop:
                    break
                state.epoch = epoch
                if resume is None or epoch > resume.epoch or not resume.batch:
                    start_counting(meter, state)
                _train_epoch(manager, stream, meter, state, tell, update, peers)
                if eval_data is not None:
                    row = state.history[-1]
                    _evaluate(manager, eval_data, eval_meter, state, tell, row, peers)
                _copy_finite(manager, state)
                tell("on_epoch_end", state)
            tell("on_train_end", state)
        except BaseException as error:
            if isinstance(error, EngineError) and not distributed.is_synchronous(kvstore):
                _clear_engine()
            tell("on_exception", state, error)
            raise
    return state


def _copy_finite(manager, state):
    """Copy the parameters out at an epoch's end; where they diverged, the last good ones stay."""
    new = ({}, {})
    manager.copy_to(*new)
    for old, values in zip((state.arg_params, state.aux_params), new):
        bad = not_finite(values)
        if bad is not None:
            state.history.pop()  # as if that epoch had not been
            raise DivergedError(
                f"{shown(repr(bad))} is NaN or infinite after epoch {state.epoch}; lower the "
                "learning rate, or look at the data; the model keeps the epoch before"
            )
        old.update(values)


def _train_epoch(manager, stream, meter, state, tell, update, peers):
    tell("on_epoch_begin", state)
    tic = time.perf_counter()
    run_epoch(
        manager,
        stream.epoch(),
        meter,
        state,
        lambda: tell("on_batch_begin", state),
        lambda: tell("on_batch_end", state),
        lambda: _update(state, update),
        labels_need_looks(manager, state.train_data),
    )
    if not state.nbatch:
        raise DataError(
            f"epoch {state.epoch} has no batches: the iterator gave none after reset(); it must be "
            "able to start over, and have at least one batch"
        )
    with _engine_errors:
        if not state.updated:
            update.finish()
        if state.guard is not None:
            state.guard.check()
        mx.nd.waitall()  # the time of an epoch is that of its work, not of its queueing
    peers.average([array for on_devices in manager.aux_arrays for array in on_devices])
    meter.flush()
    peers.merge(meter.metric)
    seconds = time.perf_counter() - tic
    row = {"epoch": state.epoch, "seconds": seconds, "samples_per_second": state.samples / seconds}
    row["waiting"] = stream.waited / seconds
    row.update((f"train_{name}", value) for name, value in metrics.named_values(meter.metric))
    state.history.append(row)


def _num_batches(data):
    return len(data) if hasattr(data, "__len__") else None


def _update(state, update):
    if state.guard is not None:
        state.guard.look(state.epoch, state.nbatch + 1)
    update()


def _evaluate(manager, eval_data, meter, state, tell, row, peers=distributed.ALONE):
    tell("on_eval_begin", state)
    batches = manager.named(passes.one_pass(eval_data), eval_data)
    start_counting(meter, state)
    told = lambda: tell("on_eval_batch_end", state)  # noqa: E731
    looks = labels_need_looks(manager, eval_data)
    run_epoch(manager, batches, meter, state, lambda: None, told, check_labels=looks)
    if not state.nbatch:
        raise DataError("eval_data gave no batch after reset(); it must have at least one")
    meter.flush()
    peers.merge(meter.metric)
    values = metrics.named_values(meter.metric)
    row.update((f"val_{name}", value) for name, value in values)
    tell("on_eval_end", state)


def _evaluate_within(manager, eval_data, meter, state, tell):
    """Evaluate between two batches of an epoch, which then goes on where it stood."""
    names = ("nbatch", "samples", "metric", "shown_metric", "data_batch", "end_pass")
    kept = {name: getattr(state, name) for name in names}
    row = {"epoch": state.epoch, "batch": state.nbatch}
    state.end_pass = False
    try:
        _evaluate(manager, eval_data, meter, state, tell, row)
    finally:
        vars(state).update(kept)
    # A checkpoint of this place was marked before, and is written after.
    state.data_states[1] = resuming.state_of(eval_data)
    return row


class _Monitoring(Callback):
    """A Monitor, told when batches begin and end."""

    def __init__(self, monitor):
        self._monitor = monitor

    def on_batch_begin(self, state):
        self._monitor.tic()

    def on_batch_end(self, state):
        self._monitor.toc_print()


class _Epochs:
    """An iterator's batches, cut into epochs."""

    def __init__(self, data, epoch_size):
        self._data = data
        self._size = None if epoch_size is None else count("epoch_size", epoch_size)
        self._pass = iter(())
        self._begun = None
        self.waited = 0.0

    def epoch(self):
        """Yield one epoch's batches, or the rest of one that was taken up within.

        The seconds in which they were waited for add up in `waited`.
        """
        tic = time.perf_counter()
        begun, self._begun = self._begun, None
        batches = self._whole() if begun is None else begun
        self.waited = time.perf_counter() - tic
        return self._timed(batches)

    def _timed(self, batches):
        while True:
            tic = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - tic
            if batch is None:
                return
            yield batch

    def _whole(self):
        if self._size is None:
            return self._one_pass()
        return itertools.islice(self._endless(), self._size)

    def go_on(self, found, unfinished):
        """Go to the place of a checkpoint."""
        if self._size is not None and found.batch > self._size:
            raise ArgumentError(
                f"epoch_size is {self._size}, and the checkpoint is from batch {found.batch} of an "
                "epoch; resume with the epoch_size of the run before"
            )
        if resuming.restore_iterator(self._data, found.manifest["iterator"]):
            self._pass = passes.batches(self._data)
            if found.batch:
                left = None if self._size is None else self._size - found.batch
                batches = self._pass if self._size is None else self._endless()
                self._begun = itertools.islice(batches, left)
        elif unfinished:
            self._replay(found.epoch - found.manifest["begin_epoch"], found.batch)

    def _replay(self, epochs, batches):
        logger.warning(
            "%s has no state_dict(): %d epochs and %d batches are read again to find the place",
            type(self._data).__name__,
            epochs,
            batches,
        )
        for _ in range(epochs):
            collections.deque(self._whole(), maxlen=0)
        if batches:
            self._begun = self._whole()
            collections.deque(itertools.islice(self._begun, batches), maxlen=0)

    def _one_pass(self):
        return passes.one_pass(self._data)

    def _endless(self):
        while True:
            batch = next(self._pass, None)
            if batch is None:
                batch = self._first_after_reset()
            yield batch

    def _first_after_reset(self):
        self._pass = self._one_pass()
        batch = next(self._pass, None)
        if batch is None:
            raise DataError("the iterator gave no batch after reset(); it must have at least one")
        return batch


class _InStep:
    """Epochs of one of several workers."""

    def __init__(self, stream, data, workers, update):
        self._stream, self._workers, self._update = stream, workers, update
        self._descs = as_descs(data.provide_data)
        if not hasattr(update, "with_zeros"):
            raise ArgumentTypeError(
                f"update is {shown(repr(update))}, and workers in step need an "
                "mxloop.model.Update, which knows the samples of all; pass one"
            )

    @property
    def waited(self):
        return self._stream.waited

    def epoch(self):
        batches = self._stream.epoch()
        return distributed.in_step(batches, self._descs, self._workers, self._update)
