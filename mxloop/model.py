"""`FeedForward`, which puts the pieces of a training loop together; and those pieces by name.

They stand in initialisation.py (parameters to begin with), stores.py (kvstores, and one step with
them), update.py (the step that `fit` makes) and training.py (the loop itself).
"""

import contextlib
import itertools
import logging
import random
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from mxloop import amp as precision
from mxloop import checkpoint, passes, states_format
from mxloop import metric as metrics
from mxloop import optimizer as optimizers
from mxloop import resume as resuming
from mxloop.batch import sample_shapes
from mxloop.callback import CallbackList, EpochLog, State, as_callbacks
from mxloop.callback.checkpointing import as_checkpoint, find
from mxloop.compat import mx
from mxloop.data import as_iterator, is_iterator
from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DivergedError,
    EngineError,
    PeerError,
    StateError,
)
from mxloop.executor_manager import DataParallelExecutorManager, as_descs
from mxloop.from_gluon import convert
from mxloop.heads import predictions
from mxloop.initialisation import Params, init_params
from mxloop.labels import label_names
from mxloop.meter import Meter
from mxloop.stores import (
    KVSTORES,
    LARGE_PARAMETER,
    create_kvstore,
    initialize_kvstore,
    update_params,
    update_params_on_kvstore,
)
from mxloop.training import labels_need_looks, run_epoch, start_counting, train
from mxloop.update import Update
from mxloop.validation import (
    check_arrays,
    check_seed,
    check_symbol,
    check_watchers,
    contexts,
    count,
    names,
    not_finite,
    one_line,
    path_of,
    shown,
)

__all__ = [
    "KVSTORES",
    "LARGE_PARAMETER",
    "FeedForward",
    "Update",
    "create_kvstore",
    "init_params",
    "initialize_kvstore",
    "run_epoch",
    "train",
    "update_params",
    "update_params_on_kvstore",
]


def _check_keeper(keeper, store):
    if keeper is None or keeper.is_of_ranks or getattr(store, "type", None) != "mpi":
        return
    if store.num_workers > 1:
        raise ArgumentError(
            "all ranks would write the same checkpoint files; pass checkpoint="
            "mxloop.multi_node.create_multi_node_checkpointer(prefix, communicator)"
        )


class FeedForward:
    """A network with its parameters: trains, predicts, scores, saves and loads.

    Parameters
    ----------
    symbol : Symbol or callable
        The network, ending in a loss; or bucket key -> Symbol.
    ctx : Context or list of Context, optional
        Devices that share each batch; numbers do not depend on how many.
    num_epoch : int, optional
        Where `fit` ends.
    epoch_size : int, optional
        Batches in an epoch; by default one pass over the data.
    optimizer : str or Optimizer
    initializer : callable
        For parameters that are not given.
    numpy_batch_size : int
        Samples in a batch where arrays are passed.
    arg_params, aux_params : dict of str to NDArray, optional
        Parameters to begin with; the rest is initialised.
    allow_extra_params : bool
        Whether unknown names among those are left out without an error.
    begin_epoch : int
        Where `fit` begins to count.
    amp : {None, 'bfloat16'}
        What matrix products and convolutions compute in, on CPUs that have it; parameters, losses,
        predictions and files are float32 all the same. See `mxloop.amp`.
    **optimizer_kwargs
        For an optimizer by name, as `learning_rate`, `momentum`, `wd`. `rescale_grad` makes a step
        the sum over the samples times that, instead of their mean.

    Attributes
    ----------
    arg_params, aux_params : dict of str to NDArray or None
    history : list of dict
        One an epoch: `epoch`, `train_<metric>`, `val_<metric>`, `samples_per_second`, `seconds`,
        `waiting` (the share of these that it waited for data).
    input_shapes : dict of str to tuple
        Each input's shape of one sample; empty before the first fit.
    """

    def __init__(
        self,
        symbol: Any,
        ctx: Any = None,
        num_epoch: Optional[int] = None,
        epoch_size: Optional[int] = None,
        optimizer: Any = "sgd",
        initializer: Callable = mx.init.Uniform(0.01),  # noqa: B008
        numpy_batch_size: int = 128,
        arg_params: Optional[Params] = None,
        aux_params: Optional[Params] = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        amp: Optional[str] = None,
        **optimizer_kwargs: Any,
    ):
        own = {
            "symbol": symbol,
            "ctx": ctx,
            "num_epoch": num_epoch,
            "epoch_size": epoch_size,
            "optimizer": optimizer,
            "initializer": initializer,
            "numpy_batch_size": numpy_batch_size,
            "arg_params": arg_params,
            "aux_params": aux_params,
            "allow_extra_params": allow_extra_params,
            "begin_epoch": begin_epoch,
            "amp": amp,
        }
        self._set(own, optimizer_kwargs)

    # Settings

    def _set(self, own, keywords):
        if not callable(own["symbol"]) or isinstance(own["symbol"], mx.sym.Symbol):
            check_symbol(own["symbol"])
        precision.check(own["amp"], contexts(own["ctx"]))
        optimizers.check(own["optimizer"], keywords)
        _check_initializer(own["initializer"])
        for name in ("numpy_batch_size", "num_epoch", "epoch_size"):
            if own[name] is not None:
                count(name, own[name])
        count("begin_epoch", own["begin_epoch"], least=0)
        self._settings = dict(own)
        self.kwargs = dict(keywords)
        self.input_shapes: Dict[str, tuple] = {}
        self._seed: Optional[int] = None
        self._has_loaded = False
        for name, value in own.items():
            setattr(self, name, value)
        self._forget()

    def _forget(self):
        self.history: List[dict] = []
        self._epoch = self.begin_epoch
        self._optimizer = None
        if not self._has_loaded:
            self._states: optimizers.States = {}

    def get_params(self, deep: bool = True) -> Dict[str, Any]:
        """Return the constructor's arguments, optimizer keywords included; never trained values."""
        return {**self._settings, **self.kwargs}

    def set_params(self, **params: Any) -> "FeedForward":
        """Set the constructor's arguments anew; what was trained stays unless it is given."""
        own = {**self._settings, **{n: v for n, v in params.items() if n in self._settings}}
        kept = self.kwargs
        if "optimizer" in params:  # what only the old one took goes with it
            known = optimizers.keywords_for(own["optimizer"])
            kept = {name: value for name, value in kept.items() if name in known}
        keywords = {**kept, **{n: v for n, v in params.items() if n not in self._settings}}
        trained = {n: getattr(self, n) for n in ("arg_params", "aux_params") if n not in params}
        kept_names = ("history", "input_shapes", "_epoch", "_seed", "_optimizer", "_states")
        past = {n: getattr(self, n) for n in kept_names}
        if own["optimizer"] is not self.optimizer:
            past.update(_optimizer=None, _states={})
        elif keywords != self.kwargs:
            past.update(_optimizer=None)  # made anew, it goes on with the states
        self._set(own, keywords)
        self.__dict__.update({**trained, **past})
        return self

    @property
    def _sym_gen(self):
        return None if isinstance(self.symbol, mx.sym.Symbol) else self.symbol

    def _network(self, data=None):
        """The symbol; of a generator, the one for the data's default bucket."""
        if self._sym_gen is None:
            return self.symbol
        made = self._sym_gen(getattr(data, "default_bucket_key", None))
        return made[0] if isinstance(made, (list, tuple)) else made

    # Training

    def fit(
        self,
        X: Any,
        y: Any = None,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        logger: Optional[logging.Logger] = None,
        work_load_list: Optional[Sequence[float]] = None,
        monitor: Optional[mx.monitor.Monitor] = None,
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
        num_epoch: Optional[int] = None,
        callbacks: Any = None,
        seed: Optional[int] = None,
        checkpoint: Any = None,
        resume: Any = None,
        guard: bool = True,
        accumulate: int = 1,
    ) -> "FeedForward":
        """Train from `begin_epoch` to the constructor's `num_epoch`, or `num_epoch` epochs further.

        Whatever ends the training, the parameters learned so far are in the model.

        Parameters
        ----------
        X : DataIter, array or dict of str to array
            Arrays of shape (samples, ...) are shuffled every epoch and trained on in batches of
            `numpy_batch_size`.
        y : array, optional
            Labels for arrays.
        eval_data : DataIter or (X, y), optional
            Evaluated after every epoch.
        eval_metric : str, callable, EvalMetric or list
        epoch_end_callback, batch_end_callback, eval_end_callback, eval_batch_end_callback
            MXNet's callables: one, a list or a tuple.
        kvstore : None, str or KVStore
        logger : Logger, optional
            Takes the lines about epochs.
        work_load_list : list of float, optional
            Each device's share of a batch.
        monitor : Monitor, optional
        num_epoch : int, optional
            Train so many epochs further, with the optimizer's state kept.
        callbacks : Callback or list of Callback, optional
        seed : int, optional
            Makes initialisation, order of the samples and random operators repeatable.
        checkpoint : str, path-like or Checkpoint, optional
            Where to write checkpoints: after every epoch, and when training ends early; a
            `mxloop.callback.Checkpoint` says more.
        resume : {True, 'auto'} or int, optional
            Go on from the newest valid checkpoint; 'auto' begins anew where there is none, a number
            means the checkpoint after so many epochs. A finished run returns at once.
        guard : bool
            Whether to look at every step's gradients, and end with a `DivergedError` that names
            step, parameter and device where one is NaN or infinite.
        accumulate : int
            Batches to an update: their gradients are added up, for the update of a batch so many
            times as large. An epoch's last one is of what is left. The optimizer and its schedule
            count updates, callbacks batches (`State.updated` tells). BatchNorm normalises each
            batch by itself, and moves its statistics with each.

        Returns
        -------
        FeedForward
            The model itself.

        Raises
        ------
        MXLoopError
            One line, if arguments, data and network do not go together.
        """
        check_watchers(monitor, logger)
        seed = None if seed is None else check_seed(seed)
        accumulate = count("accumulate", accumulate)
        begin, end = self._span(num_epoch)
        keeper = as_checkpoint(checkpoint)
        found = find(keeper, resume)
        with self._unless_stepped():
            data = self._as_training_data(X, y, seed, begin, fresh=num_epoch is None)
            eval_data = self._as_eval_data(eval_data)
            metric = metrics.create(eval_metric)
            told = as_callbacks(
                callbacks,
                batch_end_callback,
                epoch_end_callback,
                eval_end_callback,
                eval_batch_end_callback,
            )
            manager = self._make_manager(data, work_load_list, logger)
            if found is not None:
                self.arg_params, self.aux_params = found.arg_params, found.aux_params
            self._initialise(manager, data, seed)
            store, on_store = create_kvstore(kvstore, len(manager.ctx), self.arg_params)
            _check_keeper(keeper, store)
            # A store of this very process, made here, could only do the same update by a detour.
            on_store = on_store and not (isinstance(kvstore, str) and "dist" not in kvstore)
            if num_epoch is None:
                self._forget()
            state = self._state(manager, begin, end)
            state.seed = self._seed if seed is not None or keeper else None
            told = [*told, EpochLog(logger), *([keeper] if keeper else [])]
            updating = self._updating(manager, store, on_store, accumulate)
            with updating as update, self._keeping(state, update):
                state.optimizer = self._optimizer
                update.fill(self.arg_params)
                train(
                    manager,
                    update,
                    data,
                    end,
                    eval_data,
                    metric,
                    begin,
                    self.epoch_size,
                    told,
                    monitor,
                    state,
                    store,
                    found,
                    guard,
                )
        return self

    def _make_manager(self, data, work_load_list, logger):
        return DataParallelExecutorManager(
            self._network(data),
            self.ctx,
            data,
            None,
            None,
            None,
            work_load_list,
            logger,
            self._sym_gen,
            amp=self.amp,
        )

    def _span(self, num_epoch):
        """First epoch, and the one after the last."""
        if num_epoch is not None:
            return self._epoch, self._epoch + count("num_epoch", num_epoch)
        if self.num_epoch is None:
            raise ArgumentError("num_epoch is not set; pass it to the constructor or to fit")
        if self.begin_epoch >= self.num_epoch:
            raise ArgumentError(
                f"begin_epoch={self.begin_epoch} leaves nothing to do up to num_epoch="
                f"{self.num_epoch}; raise num_epoch, or fit(num_epoch=n) for n epochs more"
            )
        return self.begin_epoch, self.num_epoch

    def _initialise(self, manager, data, seed):
        manager.check_labels()
        inputs = [*as_descs(data.provide_data), *as_descs(data.provide_label)]
        self.input_shapes = sample_shapes(data)
        with _seeded(seed):
            self.arg_params, self.aux_params = init_params(
                manager.symbol,
                inputs,
                self.initializer,
                self.arg_params,
                self.aux_params,
                self.allow_extra_params,
            )
        manager.set_params(self.arg_params, self.aux_params)

    def _state(self, manager, begin, end):
        state = State(manager, begin, end)
        state.arg_params, state.aux_params = self.arg_params, self.aux_params
        state.history = self.history
        return state

    @contextlib.contextmanager
    def _updating(self, manager, kvstore, on_kvstore, accumulate):
        """The update for one fit, going on with the states of the one before, if it has any."""
        if self._optimizer is None:
            self._optimizer = optimizers.create(self.optimizer, self.kwargs)
        optimizer = self._optimizer
        given = optimizer.rescale_grad
        mean = "rescale_grad" not in self.kwargs and given == 1.0
        try:
            update = Update(manager, optimizer, kvstore, on_kvstore, mean, accumulate)
            update.load_states(self._states)
            self._has_loaded = False
            yield update
        finally:
            optimizer.rescale_grad = given

    @contextlib.contextmanager
    def _unless_stepped(self):
        """Leave the model as it was where no step was made, as after a mistake in an argument."""
        before = dict(self.__dict__)
        self._stepped = False
        try:
            yield
        except BaseException:
            if not self._stepped:
                self.__dict__.update(before)
            raise

    @contextlib.contextmanager
    def _keeping(self, state, update):
        """Keep what was learned and counted, whatever ends the training."""
        try:
            yield
            self._states = update.states()
        except (DivergedError, EngineError, PeerError):
            raise  # half a step was made, or waits for a lost process: the last epoch's end stays
        except BaseException:
            with contextlib.suppress(mx.base.MXNetError):
                self._keep_now(state.manager, update)
            raise
        finally:
            done = [row["epoch"] + 1 for row in state.history[-1:]]
            self._epoch = done[0] if done else state.begin_epoch
            self._stepped = state.nbatch > 0 or state.position != (state.begin_epoch, 0)

    def _keep_now(self, manager, update):
        arg_params: Params = {}
        aux_params: Params = {}
        if update.is_alone:  # else the others need not be at this point
            update.finish()
        manager.copy_to(arg_params, aux_params)
        states = update.states()
        if not_finite(arg_params) is not None:
            return  # it diverged, and the guard has not looked yet: the last epoch's end stays
        for array in [*arg_params.values(), *aux_params.values()]:
            array.wait_to_read()  # raises what made it fail, before the model's own are replaced
        self.arg_params, self.aux_params, self._states = arg_params, aux_params, states

    # Data

    def _as_training_data(self, X, y, seed, begin, fresh):
        if seed is not None or fresh:
            self._seed = seed
        if not is_iterator(X) and y is None and label_names(self._network()):
            raise DataError(
                f"y is missing: the network wants {names(label_names(self._network()))}; "
                "pass labels, one a sample"
            )
        data = self._as_data(X, y, shuffle=True, seed=self._seed)
        if self._seed is None:
            self._seed = int(np.random.randint(2**31 - 1)) if is_iterator(X) else data.seed
        if not is_iterator(X):
            data.load_state_dict({**data.state_dict(), "epoch": begin, "position": 0})
        return data

    def _as_eval_data(self, eval_data):
        if eval_data is None or not isinstance(eval_data, (tuple, list)):
            arrays = eval_data is not None and not is_iterator(eval_data)
            if arrays and label_names(self._network()):
                raise DataError("eval_data has no labels; pass an iterator, or eval_data=(X, y)")
            return None if eval_data is None else self._as_data(eval_data)
        if len(eval_data) != 2:
            raise ArgumentError(
                f"eval_data has {len(eval_data)} parts; pass an iterator, or the pair (X, y)"
            )
        return self._as_data(*eval_data)

    def _as_data(self, X, y=None, shuffle=False, seed=None):
        if is_iterator(X):
            return as_iterator(X, y)
        labels = label_names(self._network())
        return as_iterator(
            X,
            y,
            batch_size=max(1, min(self.numpy_batch_size, _num_rows(X))),
            shuffle=shuffle,
            seed=seed,
            data_name=self._data_name(X),
            label_name=labels[0] if len(labels) == 1 else "softmax_label",
        )

    def _data_name(self, X):
        arguments = self._network().list_arguments()
        if not isinstance(X, dict) and "data" not in arguments:
            raise DataError(
                f"the network has no input 'data' for an array; its arguments are "
                f"{names(arguments)}: pass a dict of name to array"
            )
        return "data"

    # Using what was learned

    def predict(
        self,
        X: Any,
        num_batch: Optional[int] = None,
        return_data: bool = False,
        reset: bool = True,
    ) -> Any:
        """Compute the outputs for all samples, on all devices.

        Parameters
        ----------
        X : DataIter, array or dict of str to array
        num_batch : int, optional
            Batches to take; all by default.
        return_data : bool
            Whether to return the data and labels as well.
        reset : bool
            Whether an iterator starts over before.

        Returns
        -------
        ndarray, or list of ndarray for several outputs
            One row a sample, in order. Losses beside predictions, which need labels, are left out
            where the data bring none. With `return_data` the triple (outputs, data, label).
        """
        data = self._as_data(X)
        manager = self._predictor(data)
        parts: List[List[np.ndarray]] = []
        for batch in _some_batches(data, num_batch, reset):
            manager.load_data_batch(batch)
            with one_line("compute the outputs", EngineError):
                manager.forward(is_train=False)
                row = [[out.asnumpy() for out in manager.get_outputs()]]
            if return_data:
                row += [_real(arrays, manager.num_samples) for arrays in (batch.data, batch.label)]
            parts.append(row)
        joined = [_concatenated(column) for column in zip(*parts)]
        return tuple(joined) if return_data else joined[0]

    def score(
        self,
        X: Any,
        y: Any = None,
        eval_metric: Any = "acc",
        num_batch: Optional[int] = None,
        batch_end_callback: Any = None,
        reset: bool = True,
    ) -> Any:
        """Evaluate on all devices; every real sample counts once.

        Parameters
        ----------
        X : DataIter, array or dict of str to array
        y : array, optional
            Labels for arrays. A name, function or EvalMetric here is the metric, as in MXNet.
        eval_metric : str, callable, EvalMetric or list
        num_batch, reset
            As for `predict`.
        batch_end_callback : callable or list, optional
            Called with a BatchEndParam after each batch.

        Returns
        -------
        float, or list of float for several metrics
        """
        if y is not None and metrics.is_metric(y):
            y, eval_metric = None, y
        if not is_iterator(X) and y is None:
            raise DataError("y is missing: pass the labels of the array, as score(X, y)")
        data = self._as_data(X, y)
        manager = self._predictor(data)
        callbacks = as_callbacks(eval_batch_end_callback=batch_end_callback)
        meter = Meter(metrics.create(eval_metric), bool(callbacks))
        tell, state = CallbackList(callbacks), State(manager, 0, 0)
        batches = _some_batches(data, num_batch, reset)
        told = lambda: tell("on_eval_batch_end", state)  # noqa: E731
        start_counting(meter, state)
        looks = labels_need_looks(manager, data)
        with meter:
            run_epoch(manager, batches, meter, state, lambda: None, told, check_labels=looks)
            return meter.metric.get()[1]

    def _predictor(self, data):
        if self.arg_params is None:
            raise StateError("the model has no parameters yet; fit it, load it, or pass arg_params")
        check_arrays("arg_params", self.arg_params, finite=True)
        whole = symbol = self._network(data)
        if not data.provide_label and self._sym_gen is None:
            symbol = predictions(whole)
        described = SimpleNamespace(
            provide_data=data.provide_data,
            provide_label=data.provide_label,
            default_bucket_key=getattr(data, "default_bucket_key", None),
            gives_rows=getattr(data, "gives_rows", False),
        )
        manager = DataParallelExecutorManager(
            symbol, self.ctx, described, sym_gen=self._sym_gen, grad_req="null", amp=self.amp
        )
        extra = self.allow_extra_params or symbol is not whole
        manager.set_params(self.arg_params, self.aux_params or {}, allow_extra_params=extra)
        return manager

    # Files

    def save(
        self, prefix: Any, epoch: Optional[int] = None, save_optimizer_states: bool = False
    ) -> None:
        """Write ``prefix-symbol.json`` and ``prefix-0001.params`` (for epoch 1), as MXNet does.

        A manifest with checksums, ``prefix-0001.json``, goes with them.

        Parameters
        ----------
        prefix : str or path-like
        epoch : int, optional
            By default the number of epochs done.
        save_optimizer_states : bool
            Whether momentum and the like are saved as well, in ``prefix-0001.states``.

        Raises
        ------
        StateError
            If there are no parameters yet.
        DataError
            If a file cannot be written.
        """
        if self.arg_params is None:
            raise StateError("the model has no parameters to save yet; fit it or load it first")
        checkpoint.save(
            prefix,
            self._epoch if epoch is None else count("epoch", epoch, least=0),
            self._network(),
            self.arg_params,
            self.aux_params or {},
            states_format.encode_states(self._states) if save_optimizer_states else None,
            {
                "num_update": max([number for _, number in self._states.values()], default=0),
                "input_shapes": self.input_shapes,
            },
        )

    @staticmethod
    def load(
        prefix: Any,
        epoch: int,
        ctx: Any = None,
        load_optimizer_states: bool = False,
        allow_missing: bool = False,
        **kwargs: Any,
    ) -> "FeedForward":
        """Read a model that `save`, a `Checkpoint`, or MXNet wrote.

        Parameters
        ----------
        prefix : str or path-like
        epoch : int
        ctx : Context or list of Context, optional
        load_optimizer_states : bool
            Whether the next fit goes on with the optimizer's states.
        allow_missing : bool
            Whether parameters may be missing, which the next fit then initialises.
        **kwargs
            For the constructor, as `optimizer` and its keywords, which files do not hold;
            `begin_epoch` is `epoch` by default.

        Raises
        ------
        DataError
            If a file is missing or damaged, or parameters or states are missing or unknown.
        """
        found = checkpoint.load(prefix, count("epoch", epoch, least=0))
        extra = kwargs.get("allow_extra_params", False)
        checkpoint.check_names(found, allow_missing, extra)
        kwargs.setdefault("begin_epoch", epoch)
        model = FeedForward(
            found.symbol, ctx, arg_params=found.arg_params, aux_params=found.aux_params, **kwargs
        )
        shapes = found.manifest.get("input_shapes", {})
        model.input_shapes = {name: tuple(shape) for name, shape in shapes.items()}
        if load_optimizer_states:
            where = f"{checkpoint.stem(path_of(prefix), epoch)}.states"
            model._states = resuming.optimizer_states(found, where)
            model._has_loaded = True
        return model

    @staticmethod
    def from_gluon(block: mx.gluon.HybridBlock, loss: Callable, **kwargs: Any) -> "FeedForward":
        """Make a model of a Gluon block and a loss, with the parameters that the block has.

        Parameters
        ----------
        block : HybridBlock
        loss : mx.gluon.loss.Loss or callable
            (prediction, label) -> loss of each sample; see `mxloop.from_gluon.convert`.
        **kwargs
            For the constructor.
        """
        symbol, arg_params, aux_params = convert(block, loss)
        return FeedForward(symbol, arg_params=arg_params, aux_params=aux_params, **kwargs)

    @staticmethod
    def create(
        symbol: Any,
        X: Any,
        y: Any = None,
        ctx: Any = None,
        num_epoch: Optional[int] = None,
        epoch_size: Optional[int] = None,
        optimizer: Any = "sgd",
        initializer: Callable = mx.init.Uniform(0.01),  # noqa: B008
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        logger: Optional[logging.Logger] = None,
        work_load_list: Optional[Sequence[float]] = None,
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
        **kwargs: Any,
    ) -> "FeedForward":
        """Make a model and fit it: the constructor's and `fit`'s arguments in one call."""
        model = FeedForward(
            symbol,
            ctx=ctx,
            num_epoch=num_epoch,
            epoch_size=epoch_size,
            optimizer=optimizer,
            initializer=initializer,
            **kwargs,
        )
        return model.fit(
            X,
            y,
            eval_data=eval_data,
            eval_metric=eval_metric,
            epoch_end_callback=epoch_end_callback,
            batch_end_callback=batch_end_callback,
            kvstore=kvstore,
            logger=logger,
            work_load_list=work_load_list,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
        )


def _check_initializer(initializer):
    if not callable(initializer) or isinstance(initializer, type):
        raise ArgumentTypeError(
            f"initializer is {shown(repr(initializer))}; pass one of mx.init, as mx.init.Xavier()"
        )


def _num_rows(X):
    value = next(iter(X.values()), ()) if isinstance(X, dict) else X
    shape = getattr(value, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) else 0
    return len(value) if hasattr(value, "__len__") else 0


def _some_batches(data: Any, num_batch: Optional[int], reset: bool) -> Iterator:
    if reset:
        passes.start_over(data)
    limit = None if num_batch is None else count("num_batch", num_batch)
    batch = None
    for batch in itertools.islice(passes.batches(data), limit):
        yield batch
    if batch is None:
        raise DataError(
            "the iterator gave no batch: it is empty, or at its end; pass one that has at least "
            "one batch, or reset=True"
        )


def _real(arrays, rows):
    return [array[:rows].asnumpy() for array in arrays or []]


def _concatenated(parts):
    """Batches of several arrays each -> one array, or a list where there are several."""
    whole = [np.concatenate(column) for column in zip(*parts)]
    return whole[0] if len(whole) == 1 else whole


@contextlib.contextmanager
def _seeded(seed: Optional[int]) -> Iterator[None]:
    """Seed MXNet for good; NumPy and Python, which some initialisers use, for this block only."""
    if seed is None:
        yield
        return
    numpy_state, python_state = np.random.get_state(), random.getstate()
    mx.random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
