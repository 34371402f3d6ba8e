"""One network over several devices or processes, each of which holds a stage of it.

The stages are bound executors, and communication happens between them: no operator of the network
knows of it. A batch goes through in micro-batches, so that stages work at the same time.
"""

import inspect
import zlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxloop import amp, states_format, threads
from mxloop import labels as label_rules
from mxloop import metric as metrics
from mxloop import optimizer as optimizers
from mxloop.batch import as_descs, num_rows, resized, rows_of
from mxloop.blocks import Block
from mxloop.compat import mx
from mxloop.errors import ArgumentError, StateError
from mxloop.executor_manager import DataParallelExecutorManager, _Bound, split_input_slice
from mxloop.model import FeedForward
from mxloop.multi_node.checkpointer import MultiNodeCheckpoint
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.multi_node.cutting import Part, cut
from mxloop.multi_node.mail import Channel
from mxloop.multi_node.schedules import Task, forward_only, in_flight, schedule
from mxloop.validation import contexts, count, names, one_line, shown

NDArray = mx.nd.NDArray
_FIT = inspect.signature(FeedForward.fit)


class PipelineStage:
    """One stage on one device: executors for micro-batches, which share parameters and gradients.

    Parameters
    ----------
    part : Part
        As `mxloop.multi_node.cutting.cut` makes them.
    ctx : Context
    grad_req : dict of str to str
        Of the network's parameters.
    adds_up : bool
        Whether a step's gradients are those of several micro-batches.
    precision : {None, 'bfloat16'}
        What layers compute in; see `mxloop.amp`.
    """

    def __init__(
        self,
        part: Part,
        ctx: mx.Context,
        grad_req: Dict[str, str],
        adds_up: bool,
        precision: Optional[str] = None,
    ):
        self.symbol, self.sources = part
        self.ctx = ctx
        self._adds_up = adds_up
        self._precision = precision
        self._grad_req = grad_req
        self.args: Dict[str, NDArray] = {}
        self.grads: Dict[str, NDArray] = {}
        self.aux: Dict[str, NDArray] = {}
        self._executors: Dict[Any, Any] = {}

    def bind(self, slot: int, shapes: Dict[str, tuple], dtypes: Dict[str, Any]) -> Any:
        """Return the executor for the micro-batch in a slot; made once for each shape.

        Parameters
        ----------
        slot : int
            Which of the micro-batches that are held at the same time.
        shapes, dtypes : dict by name
            Of all inputs: data, labels, and what the stage before gives.
        """
        key = slot, tuple(sorted(shapes.items()))
        if key not in self._executors:
            with one_line(f"bind the stage that ends in {names(self.symbol.list_outputs())}"):
                self._executors[key] = self._bind(shapes, dtypes)
        return self._executors[key]

    def _bind(self, shapes, dtypes):
        symbol = self.symbol
        arg_shapes, _, aux_shapes = symbol.infer_shape(**shapes)
        arg_types, _, aux_types = symbol.infer_type(**dtypes)
        args, grads, reqs = {}, {}, {}
        of_batch = {*shapes, *label_rules.label_names(symbol)}
        for name, shape, dtype in zip(symbol.list_arguments(), arg_shapes, arg_types):
            reqs[name] = self._request(name)
            make = lambda s=shape, t=dtype: mx.nd.zeros(s, self.ctx, t)  # noqa: E731
            own = name in of_batch
            args[name] = make() if own else self.args.setdefault(name, make())
            if reqs[name] != "null":
                grads[name] = make() if own else self.grads.setdefault(name, make())
        for name, shape, dtype in zip(symbol.list_auxiliary_states(), aux_shapes, aux_types):
            self.aux.setdefault(name, mx.nd.zeros(shape, self.ctx, dtype))
        adding = [name for name, req in reqs.items() if req == "add"]
        computed = amp.convert(symbol, self._precision, adding)
        return computed.bind(self.ctx, args, grads, reqs, dict(self.aux))

    def _request(self, name):
        if name in self.sources:
            return "write"
        request = self._grad_req.get(name, "null")
        return "add" if request == "write" and self._adds_up else request

    def zero_grads(self) -> None:
        """Begin a step, where the gradients of micro-batches add up."""
        for name, grad in self.grads.items():
            if self._adds_up and self._grad_req[name] == "write":
                grad[:] = 0


class _Step:
    """What all stages of this process do with a batch of one shape; the manager's executor group.

    Parameters
    ----------
    pipeline : Pipeline
    inputs : list of DataDesc
    """

    def __init__(self, pipeline: "Pipeline", inputs: List[mx.io.DataDesc]):
        self._pipeline = pipeline
        self.symbol = pipeline.symbol
        self.output_names = pipeline.symbol.list_outputs()
        self.inputs = inputs
        rows = num_rows(inputs)
        self.slices, self.active = [slice(0, rows)], [0]
        self._micro = [
            part
            for part in split_input_slice(rows, [1] * pipeline.micro_batches)
            if part.stop > part.start
        ]
        self._dtypes = {desc.name: desc.dtype for desc in inputs}
        self._shapes = [self._shapes_of(part.stop - part.start) for part in self._micro]
        stages = len(pipeline.parts)
        self._tasks = {
            True: schedule(pipeline.schedule, stages, len(self._micro)),
            False: forward_only(stages, len(self._micro)),
        }
        self._local: Dict[Task, List[NDArray]] = {}
        self._posted: Dict[Any, Any] = {}
        self._outputs: List[List[NDArray]] = []
        for stage in pipeline.stages:
            self._bind(stage, 0)

    def _shapes_of(self, rows):
        """Shapes of all stages' inputs for a micro-batch, and of what they give each other."""
        known = {d.name: tuple(resized(d, rows).shape) for d in self.inputs}
        of_stages = []
        sources = [part.sources for part in self._pipeline.parts[1:]]
        for part, given in zip(self._pipeline.parts, [*sources, []]):
            arguments = part.symbol.list_arguments()
            shapes = {name: known[name] for name in arguments if name in known}
            dtypes = {name: self._dtypes[name] for name in shapes}
            with one_line("infer the shapes of a stage"):
                known.update(zip(given, part.symbol.infer_shape(**shapes)[1]))
                self._dtypes.update(zip(given, part.symbol.infer_type(**dtypes)[1]))
            of_stages.append(shapes)
        return of_stages

    def _bind(self, stage, micro):
        shapes = self._shapes[micro][stage]
        dtypes = {name: self._dtypes[name] for name in shapes}
        return self._pipeline.stages[stage].bind(self._slot(stage, micro), shapes, dtypes)

    def _slot(self, stage, micro):
        pipeline, number = self._pipeline, len(self._micro)
        return micro % in_flight(pipeline.schedule, len(pipeline.parts), number, stage)

    # What the manager calls

    def take(self, batch: Any, sources: Any) -> bool:
        """False: micro-batches are cut from the arrays of a batch."""
        return False

    def load(self, arrays: List[NDArray]) -> None:
        """Take the arrays of a batch."""
        self._arrays = dict(zip([desc.name for desc in self.inputs], arrays))
        self._outputs = []

    def forward(self, is_train: bool) -> None:
        """Evaluate; in training `backward` goes forward too, as micro-batches do both in turn."""
        if not is_train:
            self._run(False, None)

    def backward(self, out_grads: Optional[List[NDArray]] = None) -> None:
        """Take all micro-batches forward and back."""
        for stage in self._pipeline.stages.values():
            stage.zero_grads()
        self._run(True, out_grads)

    def outputs(self, ctx: mx.Context) -> List[NDArray]:
        """The network's outputs on all ranks, which must call this together."""
        pipeline = self._pipeline
        own = None
        if self._outputs:
            parts = [[each.as_in_context(ctx) for each in parts] for parts in zip(*self._outputs)]
            own = tuple(mx.nd.concat(*each, dim=0) for each in parts)
        last = pipeline.rank_of(len(pipeline.parts) - 1)
        if pipeline.communicator.rank == last and own is None:
            raise StateError("outputs of a training step come with backward(); call it before")
        found = pipeline.communicator.bcast(own, last)
        return [each.as_in_context(ctx) for each in found]

    # Tasks

    def _run(self, is_train, out_grads):
        self._outputs = []
        for task in self._tasks[is_train]:
            if task.stage in self._pipeline.stages:
                self._settle(task)
                if task.is_forward:
                    self._forward(task, is_train)
                else:
                    self._backward(task, out_grads)
        for key in list(self._posted):
            self._settle_posted(key)

    def _forward(self, task, is_train):
        stage = self._pipeline.stages[task.stage]
        executor = self._bind(task.stage, task.micro)
        inputs = [executor.arg_dict[name] for name in stage.sources]
        self._take(task._replace(stage=task.stage - 1), inputs)
        rows = self._micro[task.micro]
        for name in self._shapes[task.micro][task.stage]:
            if name in self._arrays:
                rows_of(self._arrays[name], rows, 0).copyto(executor.arg_dict[name])
        outputs = executor.forward(is_train=is_train)
        if task.stage == len(self._pipeline.parts) - 1:
            self._outputs.append([output.copy() for output in outputs])
        else:
            self._give(task, task.stage + 1, outputs)

    def _backward(self, task, out_grads):
        stage = self._pipeline.stages[task.stage]
        executor = self._bind(task.stage, task.micro)
        heads = None
        if task.stage < len(self._pipeline.parts) - 1:
            heads = [mx.nd.empty(o.shape, o.context, o.dtype) for o in executor.outputs]
            self._take(task._replace(stage=task.stage + 1), heads)
        elif out_grads is not None:
            rows = self._micro[task.micro]
            heads = [rows_of(grad, rows, 0).as_in_context(stage.ctx) for grad in out_grads]
        if any(grad is not None for grad in executor.grad_arrays):
            executor.backward(heads)
        if task.stage:
            self._give(task, task.stage - 1, [executor.grad_dict[name] for name in stage.sources])

    # Between stages

    def _give(self, task, to, arrays):
        pipeline = self._pipeline
        if to in pipeline.stages:
            self._local[task] = arrays
            return
        channel = Channel.VALUE if task.is_forward else Channel.GRADIENT
        mail = pipeline.communicator.mail
        self._posted[self._key(task)] = mail.post(channel, pipeline.rank_of(to), task.micro, arrays)

    def _take(self, task, places):
        """Fill arrays with what another stage's task gave."""
        if not places:
            return
        pipeline = self._pipeline
        if task.stage in pipeline.stages:
            for array, place in zip(self._local.pop(task), places):
                array.copyto(place)
            return
        channel = Channel.VALUE if task.is_forward else Channel.GRADIENT
        what = "outputs" if task.is_forward else "gradients"
        pipeline.communicator.mail.take(
            channel,
            pipeline.rank_of(task.stage),
            task.micro,
            f"the {what} of stage {task.stage} for micro-batch {task.micro}",
            places,
        )

    def _key(self, task):
        return task.stage, task.is_forward, self._slot(task.stage, task.micro)

    def _settle(self, task):
        """Wait until what an executor gave last has been taken, before it runs again."""
        if self._key(task) in self._posted:
            self._settle_posted(self._key(task))

    def _settle_posted(self, key):
        stage, is_forward, _ = key
        what = f"the {'outputs' if is_forward else 'gradients'} of stage {stage}"
        self._pipeline.communicator.mail.settle(self._posted.pop(key), what)


class Pipeline(DataParallelExecutorManager):
    """Run a network in stages as if it were whole: a manager for loops by hand and for `train`.

    With several ranks, each holds as many stages as it has contexts, and all go through the same
    batches. Parameters, gradients and states are those of this rank's stages; `copy_to` and
    `get_outputs` give all of them on all ranks, which must call them together.

    Parameters
    ----------
    symbol : Symbol
        Ending in a loss, with samples on the first axis of all that crosses a cut.
    cuts : list of str, or of lists of str
        The operators behind which the stages end, but for the last; where several values cross a
        cut, an entry lists them.
    train_data : DataIter
    ctx : Context or list of Context, optional
        One for each stage of this rank.
    communicator : Communicator, optional
        By default this process alone holds all stages.
    micro_batches : int
        Pieces of a batch that are under way at the same time; their gradients add up.
    schedule : {'1f1b', 'gpipe'}
        See `mxloop.multi_node.schedules.in_flight`.
    **kwargs
        `grad_req`, `fixed_param_names` and `amp` of `DataParallelExecutorManager`.

    Raises
    ------
    ArgumentError
        If there are not as many stages as contexts on all ranks, or a loss is normalised by the
        number of samples, which would be that of a micro-batch.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        cuts: Sequence[Any],
        train_data: Any,
        ctx: Any = None,
        communicator: Optional[Communicator] = None,
        micro_batches: int = 1,
        schedule: str = "1f1b",
        **kwargs: Any,
    ):
        devices = contexts(ctx)
        given = Communicator() if communicator is None else check_communicator(communicator)
        self.micro_batches, self.schedule = count("micro_batches", micro_batches), schedule
        inputs = [*as_descs(train_data.provide_data), *as_descs(train_data.provide_label)]
        self.parts = cut(
            symbol, cuts, {d.name for d in inputs} | set(label_rules.label_names(symbol))
        )
        self._per_rank = len(devices)
        if len(self.parts) != given.size * len(devices):
            raise ArgumentError(
                f"{len(self.parts)} stages for {given.size} ranks with {len(devices)} contexts "
                "each; cut the network so that each context has a stage"
            )
        _check_normalization(symbol, self.micro_batches)
        # No other message comes between.
        self.communicator = given.split(0, given.rank)
        self._devices = devices
        self._check_same(inputs)
        super().__init__(symbol, devices[0], train_data, **kwargs)

    def _check_same(self, inputs):
        """All ranks must run the same steps, or their messages would not fit."""
        parts = zlib.crc32(repr([part.symbol.tojson() for part in self.parts]).encode())
        shapes = [(desc.name, tuple(desc.shape)) for desc in inputs]
        own = {
            "parts of the network": parts,
            "shapes of a batch": shapes,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
        }
        all_ranks = self.communicator.allgather_obj(own)
        for name in own:
            found = [each[name] for each in all_ranks]
            if any(each != found[0] for each in found):
                raise ArgumentError(
                    f"ranks of a pipeline differ in {name}: {names(found, 120)}; let all build the "
                    "same network, and give it the same data"
                )

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return stage // self._per_rank

    def _bind_owner(self):
        first = self.communicator.rank * self._per_rank
        reqs = self._grad_req
        self.stages = {
            first + i: PipelineStage(
                self.parts[first + i], ctx, reqs, self.micro_batches > 1, self._amp
            )
            for i, ctx in enumerate(self._devices)
        }
        self._all_params = list(self.param_names)
        self._threads = threads.choose(self.symbol, [*self._data, *self._labels], self._devices)
        threads.use(self._devices, self._threads)
        self._present = self._bound_for(self._default_key, self._data, self._labels)
        self._label_descs = self._labels
        self.num_samples = num_rows(self._data)
        args, grads, aux = ({}, {}, {})
        for stage in self.stages.values():
            args.update(stage.args)
            grads.update(stage.grads)
            aux.update(stage.aux)
        self.param_names = [name for name in self.param_names if name in args]
        self.aux_names = [name for name in self.aux_names if name in aux]
        self.param_arrays = [[args[name]] for name in self.param_names]
        self.grad_arrays = [[grads.get(name)] for name in self.param_names]
        self.aux_arrays = [[aux[name]] for name in self.aux_names]
        each = zip(self.param_names, self.param_arrays, self.grad_arrays)
        self.blocks = [Block(None, [n], w, g) for n, w, g in each if g[0] is not None]

    def _bind(self, symbol, data, labels):
        known = set(symbol.list_arguments())
        inputs = [desc for desc in data + labels if desc.name in known]
        shapes = {desc.name: tuple(desc.shape) for desc in inputs}
        label_rules.check_shapes(symbol, shapes)
        pairs = metrics.pair_labels(symbol, [desc.name for desc in labels])
        return _Bound(_Step(self, inputs), pairs, label_rules.class_rules(symbol, shapes), [])

    def set_params(
        self,
        arg_params: Dict[str, NDArray],
        aux_params: Dict[str, NDArray],
        allow_missing: bool = False,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy the parameters and states of this rank's stages, out of the whole network's."""
        elsewhere = set(self._all_params) - set(self.param_names)
        states = set(self.symbol.list_auxiliary_states()) - set(self.aux_names)
        args = {name: array for name, array in arg_params.items() if name not in elsewhere}
        aux = {name: array for name, array in (aux_params or {}).items() if name not in states}
        super().set_params(args, aux, allow_missing, allow_extra_params)

    def copy_to(self, arg_params: Dict[str, NDArray], aux_params: Dict[str, NDArray]) -> None:
        """Copy the whole network's parameters and states, all ranks', into these dicts."""
        own: Any = ({}, {})
        super().copy_to(*own)
        for mine, target in zip(own, (arg_params, aux_params)):
            for rank, found in enumerate(self.communicator.allgather_obj(list(mine))):
                is_mine = rank == self.communicator.rank
                values = tuple(mine.values()) if is_mine else None
                arrays = self.communicator.bcast(values, rank) if found else ()
                for name, array in zip(found, arrays):
                    if name in target:
                        array.copyto(target[name])
                    else:
                        target[name] = array

    def all_states(self, states: optimizers.States) -> optimizers.States:
        """The optimizer's states of all ranks, which must call this together."""
        if self.communicator.size == 1:
            return states
        own = np.frombuffer(states_format.encode_states(states), np.uint8)
        found: optimizers.States = {}
        for each in self.communicator.allgather(own):
            found.update(states_format.decode_states(each.tobytes()))
        return found

    def own_states(self, states: optimizers.States) -> optimizers.States:
        """Those states, or auxiliary states, that belong to this rank's stages."""
        everything = {*self._all_params, *self.symbol.list_auxiliary_states()}
        elsewhere = everything.difference(self.param_names, self.aux_names)
        return {name: state for name, state in states.items() if name not in elsewhere}

    def aux_state(self) -> Tuple[Dict[str, List[NDArray]], List[int]]:
        """See `DataParallelExecutorManager`; of all ranks, which must call this together."""
        own, stepped = super().aux_state()
        found = self.all_states({name: (tuple(arrays), 0) for name, arrays in own.items()})
        return {name: list(arrays) for name, (arrays, _) in found.items()}, stepped

    def picked(self, ctx: mx.Context) -> None:
        """None: outputs and labels are on different ranks."""

    def new_trays(self, ctx: mx.Context) -> None:
        """None: `_Step.outputs` sends each batch's outputs to all ranks."""

    def install_monitor(self, monitor: mx.monitor.Monitor) -> None:
        """Raise StateError: a pipeline has no executor that runs the whole network."""
        raise StateError("a Pipeline cannot be monitored; monitor the network on one device")


def _check_normalization(symbol, micro_batches):
    normalised = [
        name
        for name, attrs in symbol.attr_dict().items()
        if attrs.get("normalization", "null") != "null"
    ]
    if micro_batches > 1 and normalised:
        raise ArgumentError(
            f"{names(normalised)} divides by the samples of a micro-batch; set normalization="
            "'null', as a step is the mean over its samples anyway"
        )


class PipelineFeedForward(FeedForward):
    """A `FeedForward` that trains in a `Pipeline`; afterwards each rank has the whole model.

    Parameters
    ----------
    symbol : Symbol
    cuts, ctx, communicator, micro_batches, schedule
        See `Pipeline`.
    **kwargs
        For `FeedForward`. All ranks must fit the same data.

    Notes
    -----
    Parameters and optimizer states are collected from all ranks after each epoch and for each
    checkpoint. Where an error ends the training of several ranks, the last of these is what stays.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        cuts: Sequence[Any],
        ctx: Any = None,
        communicator: Optional[Communicator] = None,
        micro_batches: int = 1,
        schedule: str = "1f1b",
        **kwargs: Any,
    ):
        super().__init__(symbol, ctx, **kwargs)
        self._pipeline = {
            "cuts": cuts,
            "communicator": communicator,
            "micro_batches": micro_batches,
            "schedule": schedule,
        }

    def fit(self, *args: Any, **kwargs: Any) -> "PipelineFeedForward":
        """See `FeedForward.fit`.

        Raises
        ------
        ArgumentError
            Also for a kvstore of several processes, as each stage's gradients are in one of them;
            and, on several ranks, for a checkpoint that is not `create_multi_node_checkpointer`'s.
        """
        given = _FIT.bind(self, *args, **kwargs).arguments
        kvstore, checkpoint = given.get("kvstore"), given.get("checkpoint")
        if str(getattr(kvstore, "type", kvstore)) not in ("None", "local", "device"):
            raise ArgumentError(
                f"kvstore is {shown(repr(kvstore))}; a pipeline's gradients are not added up over "
                "processes: leave kvstore out"
            )
        several = getattr(self._pipeline["communicator"], "size", 1) > 1
        if several and not isinstance(checkpoint, (type(None), MultiNodeCheckpoint)):
            raise ArgumentError(
                f"checkpoint is {shown(repr(checkpoint))}, and all ranks would write the same "
                "files; pass mxloop.multi_node.create_multi_node_checkpointer(prefix, communicator)"
            )
        return super().fit(*args, **kwargs)

    def _keep_now(self, manager, update):
        if manager.communicator.size == 1:  # else the others need not be at this point
            super()._keep_now(manager, update)

    def _make_manager(self, data, work_load_list, logger):
        if work_load_list is not None:
            raise ArgumentError("work_load_list is for slices of a batch; a pipeline has stages")
        return Pipeline(self.symbol, train_data=data, ctx=self.ctx, amp=self.amp, **self._pipeline)
