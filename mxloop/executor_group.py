"""One executor per device, bound for batches of one shape, on parameters that all shapes share."""

import contextlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxloop import amp
from mxloop.batch import batch_axis, join, num_rows, resized, rows_of
from mxloop.blocks import Layout, is_dense, layouts
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, EngineError
from mxloop.labels import label_names
from mxloop.prepared import Prepared
from mxloop.rows import RowsBatch, Tables
from mxloop.validation import check_known, check_shape, names, one_dtype, one_line, shown

GRAD_REQS = ("write", "add", "null")
# Data sets whose operators are kept: a training has two, and loops may make one an epoch.
MAX_TABLES = 4


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
    precision : {None, 'bfloat16'}
        What layers compute in; see `mxloop.amp`.
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
        precision: Optional[str] = None,
    ):
        self.symbol = symbol
        self.output_names = symbol.list_outputs()
        self.ctx = ctx
        self.slices = slices
        self.inputs = inputs
        # What has the batch's shape; a label that is not fed has it too.
        self._of_batch = {*(desc.name for desc in inputs), *label_names(symbol)}
        self._grad_req = _unfused(
            {name: grad_req.get(name, "null") for name in symbol.list_arguments()},
            set(symbol.list_arguments()) - self._of_batch,
        )
        # Types are inferred from the network without casts, through which MXNet infers none.
        adding = [name for name, req in self._grad_req.items() if req == "add"]
        self._computed = amp.convert(symbol, precision, adding)
        self._group2ctxs = group2ctxs or [None] * len(ctx)
        self.layouts: List[Layout] = []
        self.arenas: Dict[Any, List[mx.nd.NDArray]] = {}
        sizes = [part.stop - part.start for part in slices]
        self.active = [i for i, size in enumerate(sizes) if size]
        # The owner holds the parameters of all devices, so it binds those without rows as well.
        bound = self.active if owner else range(len(ctx))
        with one_line("bind the network"), one_dtype(inputs):
            self.execs = {i: self._bind(i, max(sizes[i], 1), owner) for i in bound}
        self._places = [(batch_axis(d), self._copies_to(d.name)) for d in inputs]
        self._takes: Dict[Tables, Optional[List[Tuple[slice, Prepared]]]] = {}
        self.output_axes = [
            _axis_of(symbol[i].attr("__layout__"), axis)
            for i, axis in enumerate(_growing_axes(symbol, inputs))
        ]

    def _bind(self, device, rows, owner):
        descs = [resized(desc, rows) for desc in self.inputs]
        shapes = {desc.name: desc.shape for desc in descs}
        if owner is not None:
            return self._bind_shared(device, shapes, owner.execs[device])
        with _naming_unknown(self.symbol, shapes):
            ctx, groups = self.ctx[device], self._group2ctxs[device]
            # Blocks are measured to pay on the CPU; on a GPU nobody has measured.
            plain = ctx.device_type == "cpu" and not groups
            found = _arguments(self.symbol, descs) if plain else None
            if found is not None:
                return self._bind_blocks(device, *found)
            return self._computed.simple_bind(
                ctx,
                grad_req=self._grad_req,
                type_dict={desc.name: desc.dtype for desc in descs},
                group2ctx=groups,
                **shapes,
            )

    def _bind_blocks(self, device, shapes, dtypes, aux):
        """Bind to new arrays, with parameters side by side where they may be."""
        ctx = self.ctx[device]
        trained = [n for n, req in self._grad_req.items() if req != "null"]
        trained = {name: shapes[name] for name in trained if name not in self._of_batch}
        self.layouts = layouts(self.symbol, trained, dtypes)
        args, grads = {}, {}
        for number, layout in enumerate(self.layouts):
            block = [mx.nd.zeros((layout.size,), ctx, layout.dtype) for _ in range(2)]
            self.arenas[number, device] = block
            for arrays, array in zip((args, grads), block):
                arrays.update(layout.views(array))
        for name, shape in shapes.items():
            if name not in args:
                args[name] = mx.nd.zeros(shape, ctx, dtypes[name])
                if self._grad_req[name] != "null":
                    grads[name] = mx.nd.zeros(shape, ctx, dtypes[name])
        states = {name: mx.nd.zeros(shape, ctx, dtype) for name, (shape, dtype) in aux.items()}
        return self._computed.bind(ctx, args, grads, self._grad_req, states)

    def _bind_shared(self, device, shapes, owner):
        """Bind to the owner's arrays; only those with the batch's shape are new."""
        found, _, _ = self.symbol.infer_shape(**shapes)
        args, grads = {}, {}
        for name, shape in zip(self.symbol.list_arguments(), found):
            like = _owned(name, owner.arg_dict)
            if name in self._of_batch:
                # An input is written while another executor may still read its own.
                args[name] = mx.nd.zeros(shape, like.context, like.dtype)
            else:
                check_shape(name, like.shape, shape, "a batch of this shape")
                args[name] = like
            if self._grad_req[name] != "null":
                shared = None if name in self._of_batch else owner.grad_dict.get(name)
                grads[name] = mx.nd.zeros_like(args[name]) if shared is None else shared
        aux = {name: _owned(name, owner.aux_dict) for name in self.symbol.list_auxiliary_states()}
        return self._computed.bind(
            self.ctx[device],
            args,
            args_grad=grads,
            grad_req=self._grad_req,
            aux_states=aux,
            group2ctx=self._group2ctxs[device],
            shared_exec=owner,
        )

    def _copies_to(self, name):
        """For each device its rows of an input, and the copy that takes them there."""
        places = [(self.slices[i], self.execs[i].arg_dict[name]) for i in self.active]
        return [(part, Prepared("_copyto", [place], [place])) for part, place in places]

    def load(self, arrays: List[mx.nd.NDArray]) -> None:
        """Copy each device's rows of the inputs to it.

        Asynchronous, but for the batch before: as many batches as the queue takes would fill memory
        and caches.

        Raises
        ------
        EngineError
            If that one has failed.
        """
        with one_line("run the batch before", EngineError):
            for _, copies in self._places[:1]:
                for _, copy in copies:
                    copy.wait()
        for array, (axis, copies) in zip(arrays, self._places):
            for part, copy in copies:
                copy.on(rows_of(array, part, axis))

    def take(self, batch: RowsBatch, sources: Sequence[Tuple[str, int]]) -> bool:
        """Let the devices take their rows of the inputs themselves; asynchronous.

        Parameters
        ----------
        batch : RowsBatch
        sources : list of (str, int)
            For each input, 'data' or 'label' and its place among those of the batch.

        Returns
        -------
        bool
            Whether they can: devices other than CPUs cannot, nor any where a dtype has to change.
        """
        if batch.tables not in self._takes:
            if len(self._takes) == MAX_TABLES:
                self._takes.clear()
            self._takes[batch.tables] = self._takes_of(batch.tables.shared, sources)
        takes = self._takes[batch.tables]
        if takes is None:
            return False
        for part, take in takes:
            take.on(rows_of(batch.numbers, part, 0), 1)
        return True

    def _takes_of(self, shared, sources):
        """For each input and device its rows, and the operator that takes them."""
        if shared is None:
            return None
        takes = []
        for desc, (kind, i), (axis, copies) in zip(self.inputs, sources, self._places):
            table = shared[kind][i]
            places = [self.execs[d].arg_dict[desc.name] for d in self.active]
            if axis or not all(_can_take(table, place) for place in places):
                return None
            for (part, _), place in zip(copies, places):
                takes.append((part, Prepared("take", [table, table], [place])))
        return takes

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
            rows_of(grad, self.slices[device], axis).as_in_context(self.ctx[device])
            for grad, axis in zip(out_grads, self.output_axes)
        ]

    def outputs(self, ctx: mx.Context) -> List[mx.nd.NDArray]:
        """Outputs of all devices in sample order, as new arrays on `ctx`; asynchronous."""
        values = [self.execs[i].outputs for i in self.active]
        with one_line("run the network", EngineError):
            return [join(parts, axis, ctx) for parts, axis in zip(zip(*values), self.output_axes)]

    def picked(self, output: int, label: str, ctx: mx.Context) -> mx.nd.NDArray:
        """Of an output of shape (rows, classes), each row's value at its label, on `ctx`."""
        parts = [
            mx.nd.pick(self.execs[i].outputs[output], self.execs[i].arg_dict[label], mode="wrap")
            for i in self.active
        ]
        return join(parts, 0, ctx)

    def input_grads(self, data_names: Sequence[str]) -> List[mx.nd.NDArray]:
        """Gradients of the inputs in sample order, as new arrays on the first device."""
        axes = {desc.name: batch_axis(desc) for desc in self.inputs}
        return [
            join([self.execs[i].grad_dict[name] for i in self.active], axes[name], self.ctx[0])
            for name in data_names
        ]


def _can_take(table, place):
    return (
        place.context.device_type == "cpu"
        and place.dtype == table.dtype
        and place.shape[1:] == table.shape[1:]
    )


def _arguments(symbol, descs):
    """Shapes and dtypes of a network's arguments, and both of its states; None where MXNet must
    find out itself, as for sparse ones.
    """
    if not is_dense(symbol):
        return None
    try:
        shapes, _, aux_shapes = symbol.infer_shape_partial(**{d.name: d.shape for d in descs})
        types, _, aux_types = symbol.infer_type_partial(**{d.name: d.dtype for d in descs})
    except RuntimeError:
        return None  # binding will tell what is wrong
    if any(not shape or 0 in shape for shape in shapes) or None in types:
        return None
    arguments = symbol.list_arguments()
    aux = dict(zip(symbol.list_auxiliary_states(), zip(aux_shapes, aux_types)))
    return dict(zip(arguments, shapes)), dict(zip(arguments, types)), aux


def _axis_of(layout, otherwise):
    return otherwise if layout is None else max(mx.io.DataDesc.get_batch_axis(layout), 0)


def _growing_axes(symbol, inputs):
    """Each output's axis that grows with the batch; the first, where all inputs have theirs first.

    A network that is made for one number of rows does not tell, and counts as first.
    """
    first = [0] * len(symbol.list_outputs())
    if not any(batch_axis(desc) for desc in inputs):
        return first
    rows = num_rows(inputs)
    fewer, more = (_output_shapes(symbol, inputs, n) for n in (rows, rows + 1))
    return [_growing(*pair) for pair in zip(fewer, more)] or first


def _output_shapes(symbol, inputs, rows):
    shapes = {desc.name: resized(desc, rows).shape for desc in inputs}
    try:
        return symbol.infer_shape_partial(**shapes)[1] or []
    except mx.base.MXNetError:
        return []


def _growing(fewer, more):
    axes = [i for i, (a, b) in enumerate(zip(fewer, more)) if a != b]
    return axes[0] if len(axes) == 1 else 0


@contextlib.contextmanager
def _naming_unknown(symbol, shapes):
    """Name the arguments whose shapes a network that cannot be bound leaves open."""
    try:
        yield
    except RuntimeError as error:
        unknown = _unknown(symbol, shapes)
        if not unknown:
            raise
        raise DataError(
            f"cannot bind the network: nothing says what shape {names(unknown)} has; the data "
            f"bring {names(shapes, 50)}: let them bring it too if it is an input or a label"
        ) from error


def _unknown(symbol, shapes):
    try:
        found = symbol.infer_shape_partial(**shapes)[0]
    except mx.base.MXNetError:
        return []  # the shapes contradict each other, which MXNet's own error says
    return [n for n, s in zip(symbol.list_arguments(), found or []) if not s or 0 in s or -1 in s]


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


# --- What a user says of the binding ---------------------------------------------------------


def group_contexts(group2ctxs: Any, num_device: int) -> Optional[List[dict]]:
    """Where each device's groups of a network go: what a user says -> one dict a device."""
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


def grad_reqs(grad_req: Any, param_names: Sequence[str], fixed: Sequence[str]) -> Dict[str, str]:
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
