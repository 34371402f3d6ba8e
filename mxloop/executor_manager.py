"""Split a batch, bind one executor per device, run them: the devices' side of data parallelism.

A batch of any number of rows is cut into one slice a device. Executors are bound for the number of
rows that they get, so that no padding is ever computed; all of a device's executors share its
parameters, gradients, auxiliary states and working memory.
"""

import logging
import math
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxloop import amp as precision
from mxloop import labels as label_rules
from mxloop import metric as metrics
from mxloop import monitor as monitors
from mxloop import threads
from mxloop.batch import (
    as_descs,
    batch_axis,
    dense,
    describe,
    num_rows,
    real_rows,
    resized,
    rows_of,
    sum_arrays,
)
from mxloop.blocks import Block
from mxloop.compat import mx
from mxloop.errors import DataError, EngineError, StateError
from mxloop.executor_group import DataParallelExecutorGroup, grad_reqs, group_contexts
from mxloop.rows import RowsBatch
from mxloop.tray import Outcome, Tray, trays_for
from mxloop.validation import (
    check_arrays,
    check_known,
    check_shape,
    check_symbol,
    contexts,
    count,
    names,
    one_line,
    work_loads,
)

# --- Slices -------------------------------------------------------------------------------------


def split_input_slice(batch_size: int, work_load_list: Sequence[float]) -> List[slice]:
    """Cut a batch into one slice a device, by largest remainder.

    Parameters
    ----------
    batch_size : int
        Rows to share out, at least 1.
    work_load_list : sequence of float
        Each device's share in relation to the others'.

    Returns
    -------
    list of slice
        In order and without a gap; within one row of ``load * batch_size / sum(loads)``, so that
        equal loads differ by at most one row. Some are empty where rows are fewer than devices.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If there are no rows, or loads are not finite, negative, or all zero.
    """
    loads = work_loads(work_load_list)
    rows = count("batch_size", batch_size)
    largest = max(loads)
    # Scaled first: the sum of huge loads would overflow, and tiny ones would vanish.
    scaled = [load / largest for load in loads]
    shares = [rows * load / math.fsum(scaled) for load in scaled]
    sizes = [int(share) for share in shares]
    by_remainder = sorted(range(len(loads)), key=lambda i: (sizes[i] - shares[i], i))
    for i in by_remainder[: rows - sum(sizes)]:
        sizes[i] += 1
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes)]


# --- The manager --------------------------------------------------------------------------------


class _Bound(NamedTuple):
    """What is kept for batches of one shape."""

    group: DataParallelExecutorGroup
    pairs: List[Optional[str]]
    rules: label_rules.Rules
    lacks: List[str]


class _Plan(NamedTuple):
    """What becomes of batches that look alike."""

    bound: _Bound
    labels: List[mx.io.DataDesc]
    rows: int
    sources: List[Tuple[str, int]]


class DataParallelExecutorManager:
    """Run a network on several devices as if they were one.

    Parameters
    ----------
    symbol : Symbol
        The network; with `sym_gen`, may be None.
    ctx : Context or list of Context
    train_data : DataIter
        Or anything with `provide_data` and `provide_label` (lists of DataDesc or of (name, shape)).
    arg_names, param_names, aux_names : list of str, optional
        By default the network's; parameters are the arguments that are neither data nor labels.
    work_load_list : list of float, optional
        Each device's share; equal by default.
    logger : Logger, optional
    sym_gen : callable, optional
        Bucket key -> Symbol (or a tuple that begins with one), for batches with a `bucket_key`.
    grad_req : str, list or dict
        'write', 'add' or 'null': for all parameters, one a parameter, or by name ('write' for
        those that a dict does not name).
    fixed_param_names : list of str, optional
        Parameters that get no gradient.
    group2ctxs : dict or list of dict, optional
        Where the groups of a network that spans several contexts go; a list has one dict a device.
    inputs_need_grad : bool
        Whether `get_input_grads` shall work.
    amp : {None, 'bfloat16'}
        What matrix products and convolutions compute in; see `mxloop.amp`.

    Attributes
    ----------
    slices : list of slice
        The present batch's rows, one slice a device.
    num_samples : int
        Rows of the present batch that are no padding.
    ctx, symbol, arg_names, param_names, aux_names
    param_arrays, grad_arrays, aux_arrays : list of list of NDArray
        By parameter (or auxiliary state), then by device; None for a gradient that is not computed.
    blocks : list of Block
        The same parameters and gradients, those that lie side by side as one; see `mxloop.blocks`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DataError
        If devices, loads, names or shapes do not go together.
    """

    def __init__(
        self,
        symbol: Optional[mx.sym.Symbol],
        ctx: Any,
        train_data: Any,
        arg_names: Optional[List[str]] = None,
        param_names: Optional[List[str]] = None,
        aux_names: Optional[List[str]] = None,
        work_load_list: Optional[Sequence[float]] = None,
        logger: Optional[logging.Logger] = None,
        sym_gen: Any = None,
        grad_req: Any = "write",
        fixed_param_names: Optional[List[str]] = None,
        group2ctxs: Any = None,
        inputs_need_grad: bool = False,
        amp: Optional[str] = None,
    ):
        self.ctx = contexts(ctx)
        precision.check(amp, self.ctx, group2ctxs)
        self._amp = amp
        self._loads = work_loads(
            [1] * len(self.ctx) if work_load_list is None else work_load_list, len(self.ctx)
        )
        self._sym_gen = sym_gen
        self._default_key = getattr(train_data, "default_bucket_key", None)
        self._symbols = {} if sym_gen else {self._default_key: symbol}
        self.symbol = self._symbol_of(self._default_key)
        check_symbol(self.symbol)
        self.arg_names = arg_names or self.symbol.list_arguments()
        self.aux_names = aux_names or self.symbol.list_auxiliary_states()
        self._takes_rows = getattr(train_data, "gives_rows", False)
        self._data = as_descs(train_data.provide_data)
        self._labels = as_descs(train_data.provide_label)
        self._check_data_names()
        self._label_names = label_rules.label_names(self.symbol)
        self._wanted_labels = self._labels_nobody_feeds()
        self.param_names = param_names or self._parameters()
        self._check_given(param_names, aux_names)
        self._inputs_need_grad = inputs_need_grad
        self._group2ctxs = group_contexts(group2ctxs, len(self.ctx))
        reqs = grad_reqs(grad_req, self.param_names, fixed_param_names or [])
        if inputs_need_grad:
            reqs.update({desc.name: "write" for desc in self._data})
        self._grad_req = reqs
        self._bound: Dict[Tuple, _Bound] = {}
        self._plans: Dict[Tuple, _Plan] = {}
        self._monitor = None
        self._is_train: Optional[bool] = None
        self._ran: Optional[bool] = None  # the present batch's is_train, once it has run
        self._stepped = set()
        self._own_aux = None
        self._logger = logger or logging.getLogger(__name__)
        self._bind_owner()

    # Names

    def _symbol_of(self, key):
        """The network for a bucket, made once."""
        if key not in self._symbols:
            made = self._sym_gen(key)
            self._symbols[key] = made[0] if isinstance(made, (tuple, list)) else made
        return self._symbols[key]

    def _check_data_names(self):
        if not self._data:
            raise DataError("the data describe no input (provide_data is empty); nothing to run")
        known = self.symbol.list_arguments()
        for desc in self._data:
            if desc.name not in known:
                raise DataError(
                    f"the data bring {desc.name!r}, which is no input of the network; its "
                    f"arguments are {names(known)}: rename one of them"
                )

    def _check_given(self, param_names, aux_names):
        states = self.symbol.list_auxiliary_states()
        for given, known in ((param_names, self.arg_names), (aux_names, states)):
            for name in given or ():
                check_known(name, known, "parameter of the network")

    def _parameters(self):
        others = {desc.name for desc in self._data + self._labels} | set(self._label_names)
        return [name for name in self.arg_names if name not in others]

    def _labels_nobody_feeds(self):
        fed = {desc.name for desc in self._data + self._labels}
        return [name for name in self._label_names if name not in fed]

    def check_labels(self) -> None:
        """Raise DataError if the network wants labels that the data do not bring."""
        if self._wanted_labels:
            raise DataError(
                f"the network wants {names(self._wanted_labels)}, and the labels that came are "
                f"{names([desc.name for desc in self._labels])}; give them the network's names"
            )

    # Executors

    def _bind_owner(self):
        self._owner: Optional[DataParallelExecutorGroup] = None
        self._present = self._bound_for(self._default_key, self._data, self._labels)
        self._owner = group = self.group
        self._label_descs = self._labels
        self.num_samples = num_rows(self._data)
        execs = [group.execs[i] for i in range(len(self.ctx))]
        self.param_arrays = [[e.arg_dict[name] for e in execs] for name in self.param_names]
        self.grad_arrays = [
            [None if self._grad_req[name] == "null" else e.grad_dict[name] for e in execs]
            for name in self.param_names
        ]
        self.aux_arrays = [[e.aux_dict[name] for e in execs] for name in self.aux_names]
        self.blocks = self._blocks()
        rows = max(part.stop - part.start for part in self.slices)
        part = [resized(desc, rows) for desc in group.inputs]
        self._threads = threads.choose(self.symbol, part, self.ctx, self._takes_rows)

    def _blocks(self):
        """The parameters with gradients, those that lie side by side as one."""
        devices, arenas = range(len(self.ctx)), self._owner.arenas
        together = [
            Block(layout, layout.names, *map(list, zip(*(arenas[number, i] for i in devices))))
            for number, layout in enumerate(self._owner.layouts)
        ]
        placed = {name for block in together for name in block.names}
        rest = zip(self.param_names, self.param_arrays, self.grad_arrays)
        alone = [
            Block(None, [name], weights, grads)
            for name, weights, grads in rest
            if name not in placed and grads[0] is not None
        ]
        return [*together, *alone]

    def _bound_for(self, bucket_key, data, labels):
        """The executors for a batch of these shapes; bound at its first appearance, then kept."""
        key = (bucket_key, tuple((desc.name, tuple(desc.shape)) for desc in data + labels))
        if key not in self._bound:
            self._bound[key] = self._bind(self._symbol_of(bucket_key), data, labels)
        return self._bound[key]

    def _bind(self, symbol, data, labels):
        known = set(symbol.list_arguments())
        inputs = [desc for desc in data + labels if desc.name in known]
        shapes = {desc.name: tuple(desc.shape) for desc in inputs}
        label_rules.check_shapes(symbol, shapes)
        group = DataParallelExecutorGroup(
            symbol,
            self.ctx,
            split_input_slice(num_rows(data + labels), self._loads),
            inputs,
            self._grad_req,
            self._group2ctxs,
            self._owner,
            self._amp,
        )
        if self._monitor is not None:
            monitors.watch(self._monitor, group.execs, self.ctx)
        pairs = metrics.pair_labels(symbol, [desc.name for desc in labels])
        lacks = [name for name in self.param_names if name not in known]
        return _Bound(group, pairs, label_rules.class_rules(symbol, shapes), lacks)

    @property
    def group(self) -> DataParallelExecutorGroup:
        """The executors for the present batch's shape."""
        return self._present.group

    @property
    def slices(self) -> List[slice]:
        """The present batch's rows, one slice a device."""
        return self.group.slices

    # Parameters

    @property
    def adds_gradients(self) -> bool:
        """Whether `backward` adds to the gradients of the batches before (``grad_req='add'``)."""
        return "add" in self._grad_req.values()

    def set_params(
        self,
        arg_params: Dict[str, mx.nd.NDArray],
        aux_params: Dict[str, mx.nd.NDArray],
        allow_missing: bool = False,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy parameters and auxiliary states to all devices.

        Raises
        ------
        DataError
            If one is missing, unknown, or of another shape than the network's.
        """
        self._own_aux = None
        self._stepped.clear()
        check_arrays("arg_params", arg_params)
        check_arrays("aux_params", aux_params or {})
        for wanted, arrays, given in (
            (self.param_names, self.param_arrays, arg_params),
            (self.aux_names, self.aux_arrays, aux_params or {}),
        ):
            check_params(dict(zip(wanted, arrays)), given, allow_missing, allow_extra_params)
            for name, on_devices in zip(wanted, arrays):
                for array in on_devices if name in given else []:
                    array[:] = given[name]

    def copy_to(
        self, arg_params: Dict[str, mx.nd.NDArray], aux_params: Dict[str, mx.nd.NDArray]
    ) -> None:
        """Copy parameters, and auxiliary states averaged over the devices, into these dicts.

        Arrays that are there are written; missing ones are made on the CPU. Waits for the devices
        where there are auxiliary states.
        """
        self._await_aux()
        first = [arrays[0] for arrays in self.param_arrays]
        _write(arg_params, self.param_names, first)
        _write(aux_params, self.aux_names, self._mean_aux())

    def all_states(self, states: Any) -> Any:
        """The optimizer's states by name for the whole network, out of those kept here: the same.

        A manager that holds a part of the network only collects them, as `copy_to` does parameters.
        """
        return states

    def own_states(self, states: Any) -> Any:
        """Those states, of the whole network, that are kept here: all."""
        return states

    def _await_aux(self):
        # A backward pass writes them, of which the engine does not know: whoever only reads them
        # would not be made to wait.
        if self.aux_names:
            mx.nd.waitall()

    def _mean_aux(self):
        """Auxiliary states, averaged over the devices that have trained since they were equal."""
        return [self._mean(arrays) for arrays in self.aux_arrays]

    def _mean(self, arrays):
        trained = [arrays[i] for i in sorted(self._stepped)] or arrays[:1]
        if len(trained) == 1 or self._own_aux is not None:
            return trained[0]
        total = mx.nd.empty(trained[0].shape, trained[0].context, trained[0].dtype)
        sum_arrays(trained, total)
        return total / len(trained)

    def aux_state(self) -> Tuple[Dict[str, List[mx.nd.NDArray]], List[int]]:
        """Each device's own auxiliary states by name, and the devices that have moved theirs."""
        self._await_aux()
        own = self.aux_arrays if self._own_aux is None else self._own_aux
        return dict(zip(self.aux_names, own)), sorted(self._stepped)

    def load_aux_state(
        self, states: Dict[str, Sequence[mx.nd.NDArray]], stepped: Sequence[int]
    ) -> None:
        """Take back what `aux_state` gave; on another number of devices all keep the average."""
        if all(len(own) == len(self.ctx) for own in states.values()):
            _spread(self.aux_arrays, [states[name] for name in self.aux_names])
            self._stepped = set(stepped)

    # One batch

    def load_data_batch(self, data_batch: mx.io.DataBatch) -> None:
        """Copy a batch's real rows to the devices, each its slice.

        Asynchronous, but for the batch before, which is waited for where its arrays were copied.

        Raises
        ------
        DataError
            If arrays are missing, or their shapes do not fit the network.
        """
        plan = self._plan_of(data_batch)
        self._present, self._label_descs, self.num_samples, sources = plan
        self._ran = None
        with one_line("load a batch"):
            if not (_is_unseen(data_batch) and self.group.take(data_batch, sources)):
                self.group.load([dense(getattr(data_batch, kind)[i]) for kind, i in sources])

    def named(self, batches: Iterable, data: Any) -> Iterator:
        """Give an iterator's batches; where its inputs or labels are in another order, with names.

        Parameters
        ----------
        batches : iterable of DataBatch
            Arrays without names count as those of `train_data`, in its order.
        data : DataIter
            That gives them.
        """
        other = {
            kind: _reordered(getattr(data, kind, None), own)
            for kind, own in (("provide_data", self._data), ("provide_label", self._labels))
        }
        for batch in batches:
            for kind, descs in other.items():
                if descs and not getattr(batch, kind, None):
                    setattr(batch, kind, descs)
            yield batch

    def _plan_of(self, batch):
        """Where a batch's arrays go; found out at the first batch of its kind, then kept."""
        look = _look(batch)
        if look not in self._plans:
            plan = self._plan(batch)
            if look is None:
                return plan
            self._plans[look] = plan
        return self._plans[look]

    def _plan(self, batch):
        if not (hasattr(batch, "data") and hasattr(batch, "label")):
            raise DataError(f"a batch is of type {type(batch).__name__}; pass an mx.io.DataBatch")
        data = describe(batch.provide_data, self._data, batch.data, "inputs")
        labels = describe(batch.provide_label, self._labels, batch.label, "labels")
        num_rows(data + labels)
        rows = real_rows(batch, data)
        key = getattr(batch, "bucket_key", None) if self._sym_gen else self._default_key
        bound = self._bound_for(
            key, [resized(desc, rows) for desc in data], [resized(desc, rows) for desc in labels]
        )
        places = {desc.name: ("data", i) for i, desc in enumerate(data)}
        places.update({desc.name: ("label", i) for i, desc in enumerate(labels)})
        sources = [places[desc.name] for desc in bound.group.inputs]
        return _Plan(bound, labels, rows, sources)

    def forward(self, is_train: bool = False) -> None:
        """Run the network on the present batch; asynchronous.

        With ``is_train=False``, running statistics (BatchNorm) are the average over the devices;
        going on to train finds each device's own untouched.
        """
        if is_train:
            self.check_labels()
        with one_line("run the network", EngineError):
            threads.use(self.ctx, self._threads)
            if is_train != self._is_train:
                self._change_mode(is_train)
            if is_train:
                self._stepped.update(self.group.active)
            self.group.forward(is_train)
        self._ran = is_train

    def _change_mode(self, is_train):
        # Executors keep one flag for all their operators, and those that still wait in the engine's
        # queue read it when they run: a new mode has to wait for them.
        mx.nd.waitall()
        if is_train and self._own_aux is not None:
            _spread(self.aux_arrays, self._own_aux)
            self._own_aux = None
        elif not is_train and len(self._stepped) > 0 and len(self.ctx) > 1:
            mean = self._mean_aux()
            own = [[array.copy() for array in arrays] for arrays in self.aux_arrays]
            _spread(self.aux_arrays, [[array] * len(self.ctx) for array in mean])
            self._own_aux = own
        self._is_train = is_train

    def backward(self, out_grads: Optional[List[mx.nd.NDArray]] = None) -> None:
        """Compute the gradients of the present batch; asynchronous.

        A device's gradients are sums over its own rows; those of a device without rows are zero,
        and so are those of parameters that the present bucket's network lacks.

        Parameters
        ----------
        out_grads : list of NDArray, optional
            Gradients of the outputs, in sample order, for networks that do not end in a loss.
        """
        if not self._ran:
            raise StateError(
                "backward() needs forward(is_train=True) of the present batch before it"
            )
        with one_line("run the network backward", EngineError):
            self.group.backward(out_grads)
        self._zero_unwritten()

    def _zero_unwritten(self):
        """Zero what this batch did not write, lest an earlier gradient count again."""
        devices = range(len(self.ctx))
        idle = [i for i in devices if i not in self.group.active]
        if not idle and not self._present.lacks:
            return
        for name, grads in zip(self.param_names, self.grad_arrays):
            if self._grad_req[name] == "write":
                for i in devices if name in self._present.lacks else idle:
                    grads[i][:] = 0

    def get_outputs(self, ctx: Optional[mx.Context] = None) -> List[mx.nd.NDArray]:
        """Outputs for the present batch's real rows, in sample order, as new arrays; asynchronous.

        Parameters
        ----------
        ctx : Context, optional
            Where to, the first device by default.
        """
        if self._ran is None:
            raise StateError("the present batch has no outputs yet; call forward() before")
        return self.group.outputs(self.ctx[0] if ctx is None else ctx)

    def get_input_grads(self) -> List[mx.nd.NDArray]:
        """Gradients of the data, real rows in sample order, as new arrays (`inputs_need_grad`)."""
        if not self._inputs_need_grad:
            raise StateError(
                "gradients of the inputs need inputs_need_grad=True in the constructor"
            )
        return self.group.input_grads([desc.name for desc in self._data])

    def check_label_values(self, labels: Optional[Sequence[mx.nd.NDArray]]) -> None:
        """Raise DataError if a label of the present batch is NaN or no class of the network.

        Parameters
        ----------
        labels : list of NDArray
            The batch's labels as the iterator gave them; this waits for them, not for the devices.
        """
        label_rules.check(self._label_descs, self._real_labels(labels), self._present.rules)

    def check_all_labels(
        self, descs: Sequence[mx.io.DataDesc], labels: Sequence[np.ndarray]
    ) -> None:
        """Raise DataError if a label of a whole data set is NaN or no class of the network."""
        label_rules.check(descs, labels, self._present.rules)

    def check_metric(self, metric: mx.metric.EvalMetric) -> None:
        """Raise an error if a metric is no object, or wants class numbers and gets none."""
        metrics.check_object(metric)
        rules = self._present.rules
        soft = [desc for desc in self._label_descs if desc.name in rules and rules[desc.name].soft]
        metrics.check_labels(metric, {desc.name: tuple(desc.shape) for desc in soft})

    def _real_labels(self, labels):
        return [
            rows_of(array, slice(0, self.num_samples), batch_axis(desc))
            for desc, array in zip(self._label_descs, labels or [])
        ]

    def update_metric(
        self, metric: mx.metric.EvalMetric, labels: Optional[Sequence[mx.nd.NDArray]]
    ) -> None:
        """Count the present batch: real rows only, labels paired with outputs by name.

        This waits for the devices.

        Parameters
        ----------
        metric : EvalMetric
        labels : list of NDArray
            The batch's labels as the iterator gave them.
        """
        self.check_metric(metric)
        metrics.update(metric, *self.outcome(labels))

    def outcome(
        self, labels: Optional[Sequence[mx.nd.NDArray]], ctx: Optional[mx.Context] = None
    ) -> Outcome:
        """Take down what metrics read of the present batch; asynchronous.

        Parameters
        ----------
        labels : list of NDArray
            The batch's labels as the iterator gave them.
        ctx : Context, optional
            Where to, the first device by default.
        """
        self._check_counted(labels)
        came = [a if isinstance(a, mx.nd.NDArray) else mx.nd.array(a) for a in labels or []]
        real = dict(zip([desc.name for desc in self._label_descs], self._real_labels(came)))
        if ctx is not None:  # iterators may write their next labels into the same arrays
            real = {name: label.copyto(ctx) for name, label in real.items()}
        outputs = list(zip(self.group.output_names, self.get_outputs(ctx)))
        return Outcome(self._present.pairs, real, outputs)

    def new_trays(self, ctx: mx.Context) -> Optional[List[Tray]]:
        """Two trays on `ctx` for batches like the present one, which has run.

        None where a metric must see such batches one by one; see `mxloop.tray`.
        """
        return trays_for(self.group, self._present.pairs, ctx)

    def picked(self, ctx: mx.Context) -> Optional[Outcome]:
        """What is left of an `outcome` for metrics that read the true class's probability only.

        It is picked on the devices, as columns of its own, which all labels then number 0; None
        where outputs and labels are not of shapes (rows, classes) and (rows,).
        """
        group, pairs = self.group, self._present.pairs
        outputs = []
        for i, label in enumerate(pairs):
            out = group.execs[group.active[0]].outputs[i]
            if label not in {desc.name for desc in group.inputs} or out.ndim != 2:
                return None
            outputs.append(group.picked(i, label, ctx).reshape((-1, 1)))
        labels = {label: mx.nd.zeros((self.num_samples,), ctx) for label in pairs}
        return Outcome(pairs, labels, list(zip(group.output_names, outputs)))

    def _check_counted(self, labels):
        came, wanted = len(labels or ()), len(self._label_descs or self._label_names)
        if came < wanted:
            raise DataError(
                f"update_metric got {came} label arrays, and the network has {wanted} labels; "
                "pass the batch's, as update_metric(metric, batch.label)"
            )

    # Monitor

    def install_monitor(self, monitor: mx.monitor.Monitor) -> None:
        """Let a Monitor see all executors; its rows are named as in ``fc1_output [cpu(1)]``.

        A Monitor that watched another manager leaves that one.
        """
        self._monitor = monitor
        monitors.install(monitor, self._owner.execs, self.ctx)
        for bound in self._bound.values():
            monitors.watch(monitor, bound.group.execs, self.ctx)


def _reordered(descs, own):
    """An iterator's descriptions, if they are one's own in another order; else None."""
    descs = as_descs(descs)
    came, wanted = ([desc.name for desc in each] for each in (descs, own))
    return descs if came != wanted and sorted(came) == sorted(wanted) else None


def _is_unseen(batch):
    return isinstance(batch, RowsBatch) and batch.is_unseen


def _look(batch):
    """All that decides how a batch is loaded, or None for batches that must be looked into."""
    if _is_unseen(batch):
        return (None, batch.pad, batch.shapes)
    described = getattr(batch, "provide_data", None) or getattr(batch, "provide_label", None)
    arrays = (getattr(batch, "data", None), getattr(batch, "label", None))
    if described or not all(isinstance(part, list) for part in arrays):
        return None
    if not all(isinstance(array, mx.nd.NDArray) for part in arrays for array in part):
        return None
    shapes = tuple(tuple(array.shape for array in part) for part in arrays)
    return (getattr(batch, "bucket_key", None), batch.pad, shapes)


def check_params(
    arrays: Dict[str, Sequence[mx.nd.NDArray]],
    given: Dict[str, mx.nd.NDArray],
    allow_missing: bool,
    allow_extra: bool,
) -> None:
    """Raise DataError unless the given parameters are those of the network."""
    missing = [name for name in arrays if name not in given]
    extra = [name for name in given if name not in arrays]
    if missing and not allow_missing:
        raise DataError(f"no value for {names(missing, 150)}; pass all parameters of the network")
    if extra and not allow_extra:
        raise DataError(
            f"{names(extra, 120)} is no parameter of the network; leave it out, or pass "
            "allow_extra_params=True"
        )
    for name, on_devices in arrays.items():
        if name in given:
            check_shape(name, given[name].shape, on_devices[0].shape)


def _write(params, param_names, arrays):
    for name, array in zip(param_names, arrays):
        if name not in params:
            params[name] = mx.nd.empty(array.shape, mx.cpu(), array.dtype)
        array.copyto(params[name])


def _spread(arrays, values):
    for on_devices, own in zip(arrays, values):
        for array, value in zip(on_devices, own):
            value.copyto(array)
