"""Events of a training run, the state that callbacks read, MXNet's bare callables at the door."""

from typing import Any, Callable, Dict, Iterable, List, Optional

from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError
from mxloop.validation import shown


class State:
    """Where a training run stands; callbacks read it, and may set `stop`.

    Attributes
    ----------
    epoch : int
        The present epoch.
    nbatch : int
        Batches done in this epoch or evaluation; 1 at the end of the first.
    samples : int
        Real samples seen in this epoch.
    metric : EvalMetric
        Over the present epoch, or evaluation, so far. Read it; do not reset it.
    shown_metric : EvalMetric
        For loggers that reset what they have shown.
    manager : DataParallelExecutorManager
    data_batch : DataBatch
    optimizer : Optimizer or None
    arg_params, aux_params : dict of str to NDArray
        As of the last end of an epoch.
    history : list of dict
        One an epoch.
    begin_epoch, num_epoch : int
    num_batch : int or None
        Batches in an epoch, where the data tell.
    stop : bool
        Set it to end the training after this batch, or the one that completes its update.
    end_pass : bool
        Set it to end the present epoch, or evaluation, after this batch.
    evaluate : callable or None
        ``evaluate()`` evaluates now, after a batch, and returns a dict of `epoch`, `batch` and
        `val_<metric>`; None where there is no `eval_data`.
    updated : bool
        Whether all batches so far are in the parameters; not so where an update is made of several
        (``accumulate=``), and the last of them is still to come.
    """

    def __init__(self, manager: Any, begin_epoch: int, num_epoch: int, optimizer: Any = None):
        self.manager = manager
        self.begin_epoch = begin_epoch
        self.num_epoch = num_epoch
        self.optimizer = optimizer
        self.epoch = begin_epoch
        self.nbatch = 0
        self.samples = 0
        self.metric = self.shown_metric = None
        self.data_batch = None
        self.arg_params: Dict[str, mx.nd.NDArray] = {}
        self.aux_params: Dict[str, mx.nd.NDArray] = {}
        self.history: List[dict] = []
        self.num_batch: Optional[int] = None
        self.stop = self.end_pass = False
        self.evaluate: Optional[Callable[[], dict]] = None
        # What a checkpoint takes down, and nobody else needs.
        self.update = self.meter = self.train_data = self.eval_data = self.seed = None
        self.guard = None
        self.data_states: list = [None, None]
        self.callbacks: List[Callback] = []
        self.position = self.begun_with = None
        self.position_samples = 0

    @property
    def updated(self) -> bool:
        """Whether no batch waits for its update."""
        return not getattr(self.update, "waiting", 0)

    def batch_end_param(self) -> Any:
        """Return the state as MXNet's callbacks expect it."""
        shown_locals = {
            "executor_manager": self.manager,
            "data_batch": self.data_batch,
            "eval_metric": self.shown_metric,
            "epoch": self.epoch,
            "nbatch": self.nbatch,
            "symbol": self.manager.symbol,
            "optimizer": self.optimizer,
        }
        return mx.model.BatchEndParam(self.epoch, self.nbatch, self.shown_metric, shown_locals)


class Callback:
    """Something to do at events of a training run; override what you need.

    What a callback must remember over a restart goes through `state_dict` and `load_state_dict`.
    One that resets `State.shown_metric` says so with ``resets_metric = True``.
    """

    resets_metric = False

    def reset(self) -> None:
        """Forget an earlier training: another one begins, which is not a resumed one."""

    def on_train_begin(self, state: State) -> None:
        """Before the first batch."""

    def on_epoch_begin(self, state: State) -> None:
        """Before an epoch's first batch."""

    def on_batch_begin(self, state: State) -> None:
        """Before a training batch is run; another one in `State.data_batch` takes its place."""

    def on_batch_end(self, state: State) -> None:
        """After a training batch: its update, where it completes one, has been sent off."""

    def on_eval_begin(self, state: State) -> None:
        """Before an evaluation."""

    def on_eval_batch_end(self, state: State) -> None:
        """After a batch of an evaluation."""

    def on_eval_end(self, state: State) -> None:
        """After an evaluation."""

    def on_epoch_end(self, state: State) -> None:
        """After an epoch and its evaluation; `history` holds its values."""

    def on_train_end(self, state: State) -> None:
        """After the last epoch."""

    def on_exception(self, state: State, error: BaseException) -> None:
        """When an exception ends the training."""

    def state_dict(self) -> Dict[str, Any]:
        """What to remember over a restart: fit for JSON, but for dicts of NDArray in it."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class CallbackList:
    """Several callbacks as one: each event goes to all of them in their order.

    Also where one of them fails: a checkpoint of that place must find the others up to date. The
    first error is raised once all have been told.
    """

    def __init__(self, callbacks: Iterable[Callback]):
        self.callbacks = list(callbacks)

    def __call__(self, event: str, state: State, *args: Any) -> None:
        """Tell all of an event, as in ``callbacks('on_epoch_end', state)``."""
        failed = None
        for callback in self.callbacks:
            try:
                getattr(callback, event)(state, *args)
            except BaseException as error:
                failed = error if failed is None else failed
        if failed is not None:
            raise failed


class _Bare(Callback):
    """A callable in MXNet's style."""

    def __init__(self, function):
        self.function = function


class _BatchEnd(_Bare):
    resets_metric = True

    def on_batch_end(self, state):
        self.function(state.batch_end_param())


class _EvalBatchEnd(_Bare):
    resets_metric = True

    def on_eval_batch_end(self, state):
        self.function(state.batch_end_param())


class _EvalEnd(_Bare):
    def on_eval_end(self, state):
        self.function(state.batch_end_param())


class _EpochEnd(_Bare):
    def on_epoch_end(self, state):
        self.function(state.epoch, state.manager.symbol, state.arg_params, state.aux_params)


def as_callbacks(
    callbacks: Any = None,
    batch_end_callback: Any = None,
    epoch_end_callback: Any = None,
    eval_end_callback: Any = None,
    eval_batch_end_callback: Any = None,
) -> List[Callback]:
    """Make one list of all that a user wants called.

    Parameters
    ----------
    callbacks, batch_end_callback, epoch_end_callback, eval_end_callback, eval_batch_end_callback
        Each None, one, or a list or tuple; a `Callback` may stand at any of them.

    Raises
    ------
    ArgumentTypeError
        If one cannot be called.
    """
    doors = (
        (batch_end_callback, _BatchEnd, "batch_end_callback"),
        (callbacks, None, "callbacks"),
        (eval_batch_end_callback, _EvalBatchEnd, "eval_batch_end_callback"),
        (eval_end_callback, _EvalEnd, "eval_end_callback"),
        (epoch_end_callback, _EpochEnd, "epoch_end_callback"),
    )
    return [_wrapped(item, kind, name) for given, kind, name in doors for item in _listed(given)]


def _listed(given: Any) -> list:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _wrapped(item: Any, kind: Optional[type], name: str) -> Callback:
    if isinstance(item, type):
        raise ArgumentTypeError(
            f"{name} holds the class {item.__name__}; pass an object, {item.__name__}(...)"
        )
    if isinstance(item, Callback):
        return item
    if kind is not None and callable(item):
        return kind(item)
    wanted = "a mxloop.callback.Callback" if kind is None else "a callable"
    raise ArgumentTypeError(f"{name} holds {shown(repr(item))}; pass {wanted}, or a list of those")
