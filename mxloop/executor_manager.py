"""Split a batch, bind one executor per device, run them: the devices' side of data parallelism.

A batch of any number of rows is cut into one slice a device. Executors are bound for the number of
rows that they get, so that no padding is ever computed; all of a device's executors share its
parameters, gradients, auxiliary states and working memory.
"""

import logging
import math
from typing import Any, Dict, List, Optional, Sequence

from mxloop import labels as label_rules
from mxloop import metric as metrics
from mxloop import monitor as monitors
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.validation import (
    check_known,
    check_shape,
    check_symbol,
    contexts,
    count,
    names,
    one_line,
    shown,
    work_loads,
)

GRAD_REQS = ("write", "add", "null")

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


# --- Batches ------------------------------------------------------------------------------------


def as_descs(provided: Any) -> List[mx.io.DataDesc]:
    """Descriptions of inputs as an iterator gives them (DataDesc or tuples) -> list of DataDesc."""
    return [
        desc if isinstance(desc, mx.io.DataDesc) else mx.io.DataDesc(*desc)
        for desc in provided or []
    ]


def batch_axis(desc: mx.io.DataDesc) -> int:
    """The axis of an input that counts the samples."""
    return max(mx.io.DataDesc.get_batch_axis(desc.layout), 0)


def real_rows(batch: mx.io.DataBatch, descs: Sequence[mx.io.DataDesc]) -> int:
    """Number of samples in a batch, rows that only pad it left out."""
    rows = batch.data[0].shape[batch_axis(descs[0])]
    pad = batch.pad or 0
    if not 0 <= pad < rows:
        raise DataError(
            f"a batch of {rows} rows says pad={pad}; it must have at least one row that is no "
            "padding: correct the iterator"
        )
    return rows - pad


def _resized(desc, shape, rows):
    """The description of an input with another number of rows."""
    axis = batch_axis(desc)
    return mx.io.DataDesc(
        desc.name, (*shape[:axis], rows, *shape[axis + 1 :]), desc.dtype, desc.layout
    )


def _rows_of(array, part, axis):
    if part == slice(0, array.shape[axis]):
        return array
    return array[part] if axis == 0 else array.slice_axis(axis, part.start, part.stop)


def _join(arrays, axis, ctx):
    """Arrays of several devices as one new array on `ctx`."""
    here = [array.as_in_context(ctx) for array in arrays]
    return here[0].copy() if len(here) == 1 else mx.nd.concat(*here, dim=axis)


def sum_arrays(arrays: Sequence[mx.nd.NDArray], out: mx.nd.NDArray) -> None:
    """Sum arrays of several devices, always in the same order, into `out`."""
    ctx = out.context
    # add_n reads other CPU contexts directly, but not other cards.
    here = arrays if ctx.device_type == "cpu" else [array.as_in_context(ctx) for array in arrays]
    mx.nd.add_n(*here, out=out)


# --- Executors ----------------------------------------------------------------------------------


class DataParallelExecutorGroup:
    """One executor per device, for batches of one shape.

    Parameters
    ----------
    symbol : Symbol
    ctx : list of Context
    slices : list of slice
        Each device's rows of the batch; a device without rows has nothing to run.
    inputs : list of DataDesc
        Data and labels that are fed, with the batch's own shapes.
    grad_req : dict of str to str
        'write', 'add' or 'null' for each argument.
    group2ctxs : list of dict, optional
        For each device, where the groups of a network that spans several contexts go.
    owner : DataParallelExecutorGroup, optional
        The group whose parameters, gradients, states and memory are shared.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        ctx: List[mx.Context],
        slices: List[slice],
        inputs: List[mx.io.DataDesc],
        grad_req: Dict[str, str],
        group2ctxs: Optional[List[dict]] = None,
        owner: Optional["DataParallelExecutorGroup"] = None,
    ):
        self.symbol = symbol
        self.ctx = ctx
        self.slices = slices
        self.inputs = inputs
        fed = {desc.name for desc in inputs}
        self._grad_req = _unfused(
            {name: grad_req.get(name, "null") for name in symbol.list_arguments()},
            {name for name in symbol.list_arguments() if not _is_input(name, fed)},
        )
        self._group2ctxs = group2ctxs or [None] * len(ctx)
        sizes = [part.stop - part.start for part in slices]
        self.active = [i for i, size in enumerate(sizes) if size]
        # The owner holds the parameters of all devices, so it binds those without rows as well.
        bound = self.active if owner else range(len(ctx))
        with one_line("bind the network"):
            self.execs = {i: self._bind(i, max(sizes[i], 1), owner) for i in bound}
        self.output_axes = [
            max(mx.io.DataDesc.get_batch_axis(symbol[i].attr("__layout__")), 0)
            for i in range(len(symbol.list_outputs()))
        ]

    def _bind(self, device, rows, owner):
        descs = [_resized(desc, desc.shape, rows) for desc in self.inputs]
        shapes = {desc.name: desc.shape for desc in descs}
        if owner is not None:
            return self._bind_shared(device, shapes, owner.execs[device])
        return self.symbol.simple_bind(
            self.ctx[device],
            grad_req=self._grad_req,
            type_dict={desc.name: desc.dtype for desc in descs},
            group2ctx=self._group2ctxs[device],
            **shapes,
        )

    def _bind_shared(self, device, shapes, owner):
        """Bind to the owner's arrays; only those with the batch's shape are new."""
        found, _, _ = self.symbol.infer_shape(**shapes)
        args, grads = {}, {}
        for name, shape in zip(self.symbol.list_arguments(), found):
            like = _owned(name, owner.arg_dict)
            if _is_input(name, shapes):
                # An input is written while another executor may still read its own.
                args[name] = mx.nd.zeros(shape, like.context, like.dtype)
            else:
                check_shape(name, like.shape, shape, "a batch of this shape")
                args[name] = like
            if self._grad_req[name] != "null":
                shared = None if _is_input(name, shapes) else owner.grad_dict.get(name)
                grads[name] = mx.nd.zeros_like(args[name]) if shared is None else shared
        aux = {name: _owned(name, owner.aux_dict) for name in self.symbol.list_auxiliary_states()}
        return self.symbol.bind(
            self.ctx[device],
            args,
            args_grad=grads,
            grad_req=self._grad_req,
            aux_states=aux,
            group2ctx=self._group2ctxs[device],
            shared_exec=owner,
        )

    def load(self, arrays: List[mx.nd.NDArray]) -> None:
        """Copy each device's rows of the inputs to it; asynchronous."""
        for desc, array in zip(self.inputs, arrays):
            for i in self.active:
                part = _rows_of(array, self.slices[i], batch_axis(desc))
                part.copyto(self.execs[i].arg_dict[desc.name])

    def forward(self, is_train: bool) -> None:
        """Run all devices that have rows; asynchronous."""
        for i in self.active:
            self.execs[i].forward(is_train=is_train)

    def backward(self, out_grads: Optional[List[mx.nd.NDArray]] = None) -> None:
        """Compute the gradients on all devices that have rows; asynchronous."""
        for i in self.active:
            self.execs[i].backward(self._head_grads(out_grads, i))

    def _head_grads(self, out_grads, device):
        if out_grads is None:
            return None
        return [
            _rows_of(grad, self.slices[device], axis).as_in_context(self.ctx[device])
            for grad, axis in zip(out_grads, self.output_axes)
        ]

    def outputs(self) -> List[mx.nd.NDArray]:
        """Outputs of all devices in sample order, as new arrays on the first device."""
        values = [self.execs[i].outputs for i in self.active]
        with one_line("run the network"):
            return [
                _join(list(parts), axis, self.ctx[0])
                for parts, axis in zip(zip(*values), self.output_axes)
            ]

    def input_grads(self, data_names: Sequence[str]) -> List[mx.nd.NDArray]:
        """Gradients of the inputs in sample order, as new arrays on the first device."""
        axes = {desc.name: batch_axis(desc) for desc in self.inputs}
        return [
            _join([self.execs[i].grad_dict[name] for i in self.active], axes[name], self.ctx[0])
            for name in data_names
        ]


def _is_input(name, fed):
    """Whether an argument has the batch's shape; a label that is not fed has it too."""
    return name in fed or name.endswith("label")


def _owned(name, arrays):
    if name not in arrays:
        raise ArgumentError(
            f"a bucket's network has the parameter {name!r}, which the default bucket's lacks; "
            "make the default bucket the one with all parameters"
        )
    return arrays[name]


def _unfused(grad_req, param_names):
    """Ask for one small gradient in a network without any, though nobody reads it.

    Without gradients MXNet would fuse operators, and the fused ones keep copies of the weights that
    they saw first: later weights would be ignored. The last parameter's gradient is the cheapest.
    """
    last = [name for name in grad_req if name in param_names][-1:]
    if set(grad_req.values()) != {"null"}:
        return grad_req
    return {**grad_req, **dict.fromkeys(last, "write")}


# --- The manager --------------------------------------------------------------------------------


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

    Attributes
    ----------
    slices : list of slice
        The present batch's rows, one slice a device.
    num_samples : int
        Rows of the present batch that are no padding.
    ctx, symbol, arg_names, param_names, aux_names
    param_arrays, grad_arrays, aux_arrays : list of list of NDArray
        By parameter (or auxiliary state), then by device; None for a gradient that is not computed.

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
    ):
        self.ctx = contexts(ctx)
        self._loads = work_loads(work_load_list or [1] * len(self.ctx), len(self.ctx))
        self._sym_gen = sym_gen
        self._default_key = getattr(train_data, "default_bucket_key", None)
        self.symbol = symbol if sym_gen is None else self._symbol_of(self._default_key)
        check_symbol(self.symbol)
        self.arg_names = arg_names or self.symbol.list_arguments()
        self.aux_names = aux_names or self.symbol.list_auxiliary_states()
        self._data = as_descs(train_data.provide_data)
        self._labels = as_descs(train_data.provide_label)
        self._check_data_names()
        self.param_names = param_names or self._parameters()
        self._inputs_need_grad = inputs_need_grad
        self._group2ctxs = _one_a_device(group2ctxs, len(self.ctx))
        reqs = _grad_reqs(grad_req, self.param_names, fixed_param_names or [])
        if inputs_need_grad:
            reqs.update({desc.name: "write" for desc in self._data})
        self._grad_req = reqs
        self._groups: Dict[Any, DataParallelExecutorGroup] = {}
        self._pairs: Dict[Any, list] = {}
        self._label_rules: Dict[Any, label_rules.Rules] = {}
        self._monitor = None
        self._is_train: Optional[bool] = None
        self._stepped = set()
        self._own_aux = None
        self._logger = logger or logging.getLogger(__name__)
        self._bind_owner()

    # Names

    def _symbol_of(self, key):
        made = self._sym_gen(key)
        return made[0] if isinstance(made, (tuple, list)) else made

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

    def _parameters(self):
        fed = {desc.name for desc in self._data + self._labels}
        return [n for n in self.arg_names if n not in fed and not n.endswith("label")]

    @property
    def _wanted_labels(self):
        """Labels of the network that nobody feeds."""
        fed = {desc.name for desc in self._data + self._labels} | set(self.param_names)
        return [name for name in self.symbol.list_arguments() if name not in fed]

    def check_labels(self) -> None:
        """Raise DataError if the network wants labels that the data do not bring."""
        if self._wanted_labels:
            raise DataError(
                f"the network wants {names(self._wanted_labels)}, and the labels that came are "
                f"{names([desc.name for desc in self._labels])}; give them the network's names"
            )

    # Executors

    def _bind_owner(self):
        key, group = self._group_for(self._default_key, self._data, self._labels)
        self._owner = self._group = group
        self._current_key = key
        execs = [group.execs[i] for i in range(len(self.ctx))]
        self.param_arrays = [[e.arg_dict[name] for e in execs] for name in self.param_names]
        self.grad_arrays = [
            [None if self._grad_req[name] == "null" else e.grad_dict[name] for e in execs]
            for name in self.param_names
        ]
        self.aux_arrays = [[e.aux_dict[name] for e in execs] for name in self.aux_names]
        self.num_samples = self._data[0].shape[batch_axis(self._data[0])]

    def _group_for(self, bucket_key, data, labels):
        """The executors for a batch of these shapes; bound at its first appearance, then kept."""
        inputs = self._fed(bucket_key, data + labels)
        key = (bucket_key, tuple((desc.name, tuple(desc.shape)) for desc in inputs))
        if key not in self._groups:
            self._groups[key] = self._new_group(bucket_key, inputs)
            symbol = self._groups[key].symbol
            self._pairs[key] = metrics.pair_labels(symbol, [desc.name for desc in labels])
            shapes = {desc.name: tuple(desc.shape) for desc in inputs}
            self._label_rules[key] = label_rules.class_rules(symbol, shapes)
        return key, self._groups[key]

    def _fed(self, bucket_key, descs):
        symbol = self.symbol if bucket_key == self._default_key else self._symbol_of(bucket_key)
        known = set(symbol.list_arguments())
        return [desc for desc in descs if desc.name in known]

    def _new_group(self, bucket_key, inputs):
        symbol = self.symbol if bucket_key == self._default_key else self._symbol_of(bucket_key)
        rows = inputs[0].shape[batch_axis(inputs[0])]
        group = DataParallelExecutorGroup(
            symbol,
            self.ctx,
            split_input_slice(rows, self._loads),
            inputs,
            self._grad_req,
            self._group2ctxs,
            owner=getattr(self, "_owner", None),
        )
        if self._monitor is not None:
            monitors.watch(self._monitor, group.execs, self.ctx)
        return group

    @property
    def slices(self) -> List[slice]:
        """The present batch's rows, one slice a device."""
        return self._group.slices

    # Parameters

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
        for wanted, arrays, given in (
            (self.param_names, self.param_arrays, arg_params),
            (self.aux_names, self.aux_arrays, aux_params or {}),
        ):
            check_params(dict(zip(wanted, arrays)), given, allow_missing, allow_extra_params)
            for name, on_devices in zip(wanted, arrays):
                for array in on_devices if name in given else []:
                    given[name].copyto(array)

    def copy_to(
        self, arg_params: Dict[str, mx.nd.NDArray], aux_params: Dict[str, mx.nd.NDArray]
    ) -> None:
        """Copy parameters, and auxiliary states averaged over the devices, into these dicts.

        Arrays that are there are written; missing ones are made on the CPU.
        """
        first = [arrays[0] for arrays in self.param_arrays]
        _write(arg_params, self.param_names, first)
        _write(aux_params, self.aux_names, self._mean_aux())

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

    # One batch

    def load_data_batch(self, data_batch: mx.io.DataBatch) -> None:
        """Copy a batch's real rows to the devices, each its slice; asynchronous.

        Raises
        ------
        DataError
            If arrays are missing, or their shapes do not fit the network.
        """
        data = self._described(data_batch.provide_data, self._data, data_batch.data, "inputs")
        labels = self._described(data_batch.provide_label, self._labels, data_batch.label, "labels")
        rows = real_rows(data_batch, data)
        descs = (
            [_resized(desc, desc.shape, rows) for desc in data],
            [_resized(desc, desc.shape, rows) for desc in labels],
        )
        key = getattr(data_batch, "bucket_key", None) if self._sym_gen else self._default_key
        self._current_key, self._group = self._group_for(key, *descs)
        self._label_descs = labels
        self.num_samples = rows
        arrays = dict(
            zip(
                [desc.name for desc in data + labels],
                data_batch.data + list(data_batch.label or []),
            )
        )
        with one_line("load a batch"):
            self._group.load([_dense(arrays[desc.name]) for desc in self._group.inputs])

    def _described(self, own, promised, arrays, what):
        """Descriptions with the shapes that the batch really has."""
        descs = as_descs(own) or promised
        arrays = arrays or []
        if len(arrays) != len(descs):
            raise DataError(
                f"a batch brings {len(arrays)} {what}, and the iterator promised "
                f"{names([desc.name for desc in descs])}; correct the iterator"
            )
        return [
            mx.io.DataDesc(desc.name, array.shape, desc.dtype, desc.layout)
            for desc, array in zip(descs, arrays)
        ]

    def forward(self, is_train: bool = False) -> None:
        """Run the network on the present batch; asynchronous.

        With ``is_train=False``, running statistics (BatchNorm) are the average over the devices;
        going on to train finds each device's own untouched.
        """
        if is_train:
            self.check_labels()
        with one_line("run the network"):
            if is_train != self._is_train:
                self._change_mode(is_train)
            if is_train:
                self._stepped.update(self._group.active)
            self._group.forward(is_train)

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

        A device's gradients are sums over its own rows; those of a device without rows are zero.

        Parameters
        ----------
        out_grads : list of NDArray, optional
            Gradients of the outputs, in sample order, for networks that do not end in a loss.
        """
        if not self._is_train:
            raise StateError("backward() needs forward(is_train=True) before it")
        with one_line("run the network backward"):
            self._group.backward(out_grads)
        idle = set(range(len(self.ctx))) - set(self._group.active)
        for name, grads in zip(self.param_names, self.grad_arrays):
            for i in idle if self._grad_req[name] == "write" else ():
                grads[i][:] = 0

    def get_outputs(self) -> List[mx.nd.NDArray]:
        """Outputs for the present batch's real rows, in sample order, as new arrays."""
        return self._group.outputs()

    def get_input_grads(self) -> List[mx.nd.NDArray]:
        """Gradients of the data, real rows in sample order, as new arrays (`inputs_need_grad`)."""
        if not self._inputs_need_grad:
            raise StateError(
                "gradients of the inputs need inputs_need_grad=True in the constructor"
            )
        return self._group.input_grads([desc.name for desc in self._data])

    def check_label_values(self, labels: Optional[Sequence[mx.nd.NDArray]]) -> None:
        """Raise DataError if a label of the present batch is NaN or no class of the network.

        Parameters
        ----------
        labels : list of NDArray
            The batch's labels as the iterator gave them; this waits for them, not for the devices.
        """
        rules = self._label_rules[self._current_key]
        label_rules.check(self._label_descs, self._real_labels(labels), rules)

    def _real_labels(self, labels):
        return [
            _rows_of(array, slice(0, self.num_samples), batch_axis(desc))
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
        real = dict(zip([desc.name for desc in self._label_descs], self._real_labels(labels)))
        outputs = list(zip(self._group.symbol.list_outputs(), self.get_outputs()))
        metrics.update(metric, self._pairs[self._current_key], real, outputs)

    # Monitor

    def install_monitor(self, monitor: mx.monitor.Monitor) -> None:
        """Let a Monitor see all executors; its rows are named as in ``fc1_output [cpu(1)]``.

        A Monitor that watched another manager leaves that one.
        """
        self._monitor = monitor
        monitors.install(monitor, self._owner.execs, self.ctx)
        for group in self._groups.values():
            monitors.watch(monitor, group.execs, self.ctx)


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


def _one_a_device(group2ctxs, num_device):
    if group2ctxs is None:
        return None
    per_device = [group2ctxs] * num_device if isinstance(group2ctxs, dict) else list(group2ctxs)
    if len(per_device) != num_device:
        raise ArgumentError(
            f"group2ctxs has {len(per_device)} entries for {num_device} devices; pass one a device"
        )
    return [_pick(mapping, i) for i, mapping in enumerate(per_device)]


def _pick(mapping, i):
    """A dict of group to Context, where each value may be a list with one Context a device."""
    return {k: v[i] if isinstance(v, (list, tuple)) else v for k, v in mapping.items()}


def _grad_reqs(grad_req, param_names, fixed):
    """What becomes of each parameter's gradient, as a dict by name."""
    if isinstance(grad_req, str):
        reqs = dict.fromkeys(param_names, grad_req)
    elif isinstance(grad_req, dict):
        reqs = {**dict.fromkeys(param_names, "write"), **grad_req}
    elif not isinstance(grad_req, (list, tuple)):
        raise ArgumentTypeError(
            f"grad_req is {shown(repr(grad_req))}; pass 'write', 'add' or 'null', a list or a dict"
        )
    elif len(grad_req) == len(param_names):
        reqs = dict(zip(param_names, grad_req))
    else:
        raise ArgumentError(
            f"grad_req has {len(grad_req)} entries for {len(param_names)} parameters; pass one each"
        )
    for name in [*reqs, *fixed]:
        check_known(name, param_names, "parameter of the network")
    for req in reqs.values():
        check_known(req, GRAD_REQS, "grad_req")
    return {**reqs, **dict.fromkeys(fixed, "null")}


def _dense(array):
    return array if array.stype == "default" else array.tostype("default")


def _write(params, param_names, arrays):
    for name, array in zip(param_names, arrays):
        if name not in params:
            params[name] = mx.nd.empty(array.shape, mx.cpu(), array.dtype)
        array.copyto(params[name])


def _spread(arrays, values):
    for on_devices, own in zip(arrays, values):
        for array, value in zip(on_devices, own):
            value.copyto(array)
