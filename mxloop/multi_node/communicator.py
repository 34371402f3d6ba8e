"""The ranks of a program, and what they can say to each other."""

import itertools
import zlib
from copy import deepcopy
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.multi_node import arrays as memory_of
from mxloop.multi_node import failures
from mxloop.multi_node import world as worlds
from mxloop.multi_node.arrays import Array
from mxloop.multi_node.mail import Channel, Mail, Message
from mxloop.validation import check_known, count, names, shown

Data = Union[Array, Tuple[Array, ...]]

NAMES = ("mpi",)


def create_communicator(
    name: str = "mpi", seconds: Optional[float] = None, abort_on_error: bool = True
) -> "Communicator":
    """Make a communicator of all ranks that ``mpiexec`` started; all must call this together.

    A program that was started without ``mpiexec`` is rank 0 of 1, and runs unchanged.

    Parameters
    ----------
    name : {'mpi'}
    seconds : float, optional
        How long to wait for another rank before raising an error; by default what
        MXLOOP_MPI_SECONDS says, or 600.
    abort_on_error : bool
        Whether an uncaught exception or a ``sys.exit(code)`` of one rank ends all of them.

    Returns
    -------
    Communicator

    Raises
    ------
    ArgumentError
        If the name is not known.
    InstallError
        If mpi4py is missing (the extra 'mpi').
    PeerError
        If not all ranks come in time.
    """
    check_known(name, NAMES, "communicator")
    seconds = worlds.deadline(seconds)
    if not worlds.is_launched():
        return Communicator()
    world = worlds.world()
    if world.size == 1:
        return Communicator()
    if abort_on_error:
        failures.watch(world)
    return MPICommunicator(world.MPI.COMM_WORLD, seconds)


def check_communicator(communicator: Any) -> "Communicator":
    """Raise ArgumentTypeError unless this is a communicator."""
    if not isinstance(communicator, Communicator):
        raise ArgumentTypeError(
            f"communicator is {shown(repr(communicator))}; pass what "
            "mxloop.multi_node.create_communicator() returns"
        )
    return communicator


class Communicator:
    """One process alone: rank 0 of 1, where everything collective is done at once.

    `MPICommunicator` is the same for several. Arrays are NDArrays or NumPy arrays of float16, 32
    or 64 or of integers; they travel as buffers, and arrive as what they were sent as, on the CPU.

    Attributes
    ----------
    rank, size : int
    intra_rank, intra_size : int
        Among the ranks of this machine.
    """

    rank = 0
    size = 1
    intra_rank = 0
    intra_size = 1

    def __init__(self) -> None:
        self._numbers = itertools.count()

    # From one rank to another

    def send(self, data: Data, dest: int, tag: int = 0) -> None:
        """Send an array, or a tuple of arrays; they may be changed as soon as this returns.

        A large array is waited for until `dest` takes it, which any call there does.
        """
        self._send(data, self.check_peer("dest", dest), tag)

    def recv(self, source: int, tag: int = 0) -> Data:
        """Wait for what `source` sends with this tag, and return it."""
        return self._recv(self.check_peer("source", source), tag)

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send any object that can be pickled."""
        self.send(self._packed(obj), dest, tag)

    def recv_obj(self, source: int, tag: int = 0) -> Any:
        """Wait for an object, and return it."""
        return self._unpacked(self.recv(source, tag))

    # Between all ranks, which must make the same calls in the same order

    def bcast(self, data: Optional[Data] = None, root: int = 0) -> Data:
        """Return the array (or tuple of arrays) of rank `root` on all ranks."""
        root = self.check_rank("root", root)
        to = dict.fromkeys(self._all if self.rank == root else (), data)
        return self._exchange("bcast", to, [root])[root]

    def gather(self, data: Data, root: int = 0) -> Optional[Tuple[Data, ...]]:
        """Return all ranks' arrays as a tuple on rank `root`, and None elsewhere."""
        root = self.check_rank("root", root)
        sources = self._all if self.rank == root else ()
        found = self._exchange("gather", {root: data}, sources)
        return tuple(found[rank] for rank in self._all) if self.rank == root else None

    def allgather(self, data: Data) -> Tuple[Data, ...]:
        """Return all ranks' arrays as a tuple, on all ranks."""
        found = self._exchange("allgather", dict.fromkeys(self._all, data), self._all)
        return tuple(found[rank] for rank in self._all)

    def scatter(self, data: Optional[Sequence[Data]] = None, root: int = 0) -> Data:
        """Return this rank's entry of the sequence that rank `root` has, one a rank."""
        root = self.check_rank("root", root)
        to = self.check_one_each("scatter", data) if self.rank == root else {}
        return self._exchange("scatter", to, [root])[root]

    def alltoall(self, data: Sequence[Data]) -> Tuple[Data, ...]:
        """Send entry r to rank r, and return what each rank has sent to this one."""
        found = self._exchange("alltoall", self.check_one_each("alltoall", data), self._all)
        return tuple(found[rank] for rank in self._all)

    def allreduce(self, data: Array) -> Array:
        """Return the sum of all ranks' arrays, to the same bits on all of them.

        Raises
        ------
        DataError
            If shapes or dtypes differ.
        """
        total = memory_of.check(data).copy()
        same = self.allgather_obj((np.dtype(total.dtype).name, total.shape))
        if len(set(same)) > 1:
            raise DataError(
                f"allreduce got arrays that differ: {names(same, 120)}; sum like arrays"
            )
        self.sum_in_place([memory_of.to_memory(total)[0]])
        return total

    def bcast_obj(self, obj: Any = None, root: int = 0) -> Any:
        """`bcast` for any object that can be pickled."""
        packed = self._packed(obj) if self.rank == root else None
        return self._unpacked(self.bcast(packed, root))

    def gather_obj(self, obj: Any, root: int = 0) -> Optional[List[Any]]:
        """`gather` for any object; a list."""
        found = self.gather(self._packed(obj), root)
        return None if found is None else [self._unpacked(each) for each in found]

    def allgather_obj(self, obj: Any) -> List[Any]:
        """`allgather` for any object; a list."""
        return [self._unpacked(each) for each in self.allgather(self._packed(obj))]

    def scatter_obj(self, objs: Optional[Sequence[Any]] = None, root: int = 0) -> Any:
        """`scatter` for any objects."""
        packed = [self._packed(obj) for obj in objs or ()] if self.rank == root else None
        return self._unpacked(self.scatter(packed, root))

    def alltoall_obj(self, objs: Sequence[Any]) -> List[Any]:
        """`alltoall` for any objects; a list."""
        return [self._unpacked(each) for each in self.alltoall([self._packed(obj) for obj in objs])]

    def allreduce_obj(self, obj: Any, op: Callable[[Any, Any], Any] = lambda a, b: a + b) -> Any:
        """Combine all ranks' objects by a function, in the order of ranks; by default, add them."""
        first, *others = self.allgather_obj(obj)
        for other in others:
            first = op(first, other)
        return first

    # Models

    def bcast_data(self, params: Any) -> None:
        """Give all ranks the parameters of rank 0.

        Parameters
        ----------
        params : Block, ParameterDict, list of Parameter, or dict or list of NDArray
            Parameters must be initialised, and of the same shapes on all ranks.
        """
        for arrays in data_arrays(params):
            values = self.bcast(arrays[0] if self.rank == 0 else None)
            if values.shape != arrays[0].shape:
                raise DataError(
                    f"a parameter has shape {arrays[0].shape}, and rank 0's {values.shape}; "
                    "initialise the same network on all ranks"
                )
            for array in arrays if self.rank else arrays[1:]:
                array[:] = values

    def mean_grad(self, params: Any) -> None:
        """Replace gradients by their mean over all ranks (and their sum over a rank's devices).

        Parameters
        ----------
        params : Block, ParameterDict, list of Parameter, or dict or list of NDArray
            NDArrays are gradients themselves.
        """
        on_devices = grad_arrays(params)
        for first, *others in on_devices:
            for other in others:
                first += other.as_in_context(first.context)
        self.average([first for first, *_ in on_devices])
        for first, *others in on_devices:
            for other in others:
                first.copyto(other)

    def average(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Replace arrays by their means over all ranks, in place."""
        on_cpu = [a if memory_of.is_on_cpu(a) else a.as_in_context(mx.cpu()) for a in arrays]
        views = [memory_of.view(array) for array in on_cpu]
        self.sum_in_place(views)
        for view in views:
            view /= self.size
        for array, copy in zip(arrays, on_cpu):
            if copy is not array:
                copy.copyto(array)

    # The ranks themselves

    def split(self, color: int, key: int = 0) -> "Communicator":
        """Make communicators of the ranks with one colour each, ordered by key, then by rank."""
        count("color", color, least=0)
        count("key", key, least=0)
        return Communicator()

    def finalize(self) -> None:
        """Wait until everything that was sent has arrived; this is done at the end by itself."""

    def check_rank(self, name: str, rank: Any) -> int:
        """Return a rank, if it is one."""
        if count(name, rank, least=0) >= self.size:
            raise ArgumentError(
                f"{name} is {rank}, and there are {self.size} ranks, 0 to {self.size - 1}; start "
                "more with mpiexec -n, or pass one of these"
            )
        return int(rank)

    def check_peer(self, name: str, rank: Any) -> int:
        """Return a rank, if it is another than this one."""
        if self.check_rank(name, rank) == self.rank:
            raise ArgumentError(
                f"{name} is {rank}, which is this rank itself; it has the values already"
            )
        return int(rank)

    @property
    def _all(self) -> range:
        return range(self.size)

    def check_one_each(self, op: str, data: Optional[Sequence[Data]]) -> Dict[int, Data]:
        """Return a sequence by rank, if it has an entry for each."""
        if not isinstance(data, (list, tuple)) or len(data) != self.size:
            came = len(data) if isinstance(data, (list, tuple)) else shown(repr(data))
            raise ArgumentError(
                f"{op} got {came} where each of {self.size} ranks gets an entry; pass a list of "
                f"{self.size}"
            )
        return dict(enumerate(data))

    # What several processes do otherwise

    def next_number(self) -> int:
        """The number of a collective call, the same on all ranks."""
        return next(self._numbers)

    def exchange(
        self, op: str, number: int, to: Dict[int, Data], sources: Iterable[int], grad: bool = False
    ) -> Dict[int, Data]:
        """Send each rank in `to` its data, and return what the `sources` have sent to this one."""
        own = {
            rank: data.copy() if isinstance(data, _Object) else _copy(checked(data))
            for rank, data in to.items()
        }
        return {rank: own[rank] for rank in sources}

    def sum_in_place(self, views: Sequence[np.ndarray]) -> None:
        """Replace arrays by their sums over all ranks.

        Raises
        ------
        DataError
            On all ranks, if their arrays differ in number, shape or dtype.
        """

    def _packed(self, obj):
        return _Object(obj)

    def _unpacked(self, packed):
        return packed.obj

    def _exchange(self, op, to, sources):
        return self.exchange(op, self.next_number(), to, sources)

    def _send(self, data, dest, tag):
        raise NotImplementedError  # one rank has no peer

    def _recv(self, source, tag):
        raise NotImplementedError


class MPICommunicator(Communicator):
    """Several processes; made by `create_communicator` and `split`.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm
    seconds : float
    """

    def __init__(self, communicator: Any, seconds: float):
        super().__init__()
        self.mail = Mail(communicator, seconds)
        self.rank, self.size = self.mail.rank, self.mail.size
        self._seconds = seconds
        self._sums = worlds.duplicate(communicator, seconds)
        MPI = self.mail.world.MPI
        here = self._sums.Split_type(MPI.COMM_TYPE_SHARED)
        self.intra_rank, self.intra_size = here.rank, here.size
        here.Free()

    def _packed(self, obj):
        try:
            return np.frombuffer(self.mail.world.MPI.pickle.dumps(obj), np.uint8)
        except Exception as error:  # of whatever kind the object's own code raises
            raise ArgumentTypeError(
                f"{shown(repr(obj))} cannot go to other ranks: {shown(error, 100)}"
            ) from error

    def _unpacked(self, packed):
        return self.mail.world.MPI.pickle.loads(packed.tobytes())

    def _send(self, data, dest, tag):
        values = checked(data)
        is_tuple = isinstance(values, tuple)
        tag = self.mail.check_tag(tag)
        posted = self.mail.post(Channel.VALUE, dest, tag, _listed(values), tuple=is_tuple)
        self.mail.settle(posted, f"the message with tag {tag}")

    def _recv(self, source, tag):
        what = f"the message with tag {self.mail.check_tag(tag)}"
        return _unlisted(self.mail.take(Channel.VALUE, source, tag, what))

    def exchange(
        self, op: str, number: int, to: Dict[int, Data], sources: Iterable[int], grad: bool = False
    ) -> Dict[int, Data]:
        """See `Communicator.exchange`."""
        channel = Channel.COLLECTIVE_GRADIENT if grad else Channel.COLLECTIVE
        what = f"its part in {op}" + (", going backward" if grad else "")
        to = {rank: checked(data) for rank, data in to.items()}
        posted = [
            self.mail.post(
                channel, rank, number, _listed(data), op=op, tuple=isinstance(data, tuple)
            )
            for rank, data in to.items()
            if rank != self.rank
        ]
        found = {}
        for rank in sources:
            if rank == self.rank:
                found[rank] = _copy(to[rank])
            else:
                message = self.mail.take(channel, rank, number, what)
                _check_op(op, rank, message)
                found[rank] = _unlisted(message)
        for each in posted:
            self.mail.settle(each, what)
        return found

    def sum_in_place(self, views: Sequence[np.ndarray]) -> None:
        """See `Communicator.sum_in_place`."""
        MPI = self.mail.world.MPI
        others = [rank for rank in self._all if rank != self.rank]
        what = f"join in the sum of {len(views)} arrays"
        # MPI adds up unlike arrays without a word.
        kinds = [(v.dtype.name, v.shape) for v in views]
        code = zlib.crc32(repr(kinds).encode())
        extremes = np.array([code, -code], np.int64)
        agreed = self._sums.Iallreduce(MPI.IN_PLACE, extremes, MPI.MAX)
        self.mail.wait(agreed.Test, others, what)
        if extremes.sum():
            raise DataError(
                f"rank {self.rank} adds up {names(kinds, 120)}, and another rank something else; "
                "all ranks must add up like arrays in the same order"
            )
        # MPI has no float16.
        wide = [v.astype("float32") if v.dtype == np.float16 else v for v in views]
        requests = [self._sums.Iallreduce(MPI.IN_PLACE, v) for v in wide if v.size]
        self.mail.wait(lambda: MPI.Request.Testall(requests), others, what)
        for view, total in zip(views, wide):
            if total is not view:
                view[...] = total

    def split(self, color: int, key: int = 0) -> Communicator:
        """See `Communicator.split`."""
        super().split(color, key)
        self.allgather_obj(None)  # all have come: what follows does not wait
        part = self._sums.Split(color, key)
        return Communicator() if part.size == 1 else MPICommunicator(part, self._seconds)

    def finalize(self) -> None:
        """See `Communicator.finalize`."""
        self.mail.settle_all()


def _check_op(op: str, rank: int, message: Message) -> None:
    if message.meta["op"] != op:
        raise StateError(
            f"rank {rank} called {message.meta['op']} where this one called {op}; all ranks must "
            "make the same collective calls in the same order"
        )


# --- Data ---------------------------------------------------------------------------------------


def checked(data: Any) -> Data:
    """Raise ArgumentTypeError unless this is an array, or a list or tuple of arrays."""
    if isinstance(data, (list, tuple)):
        return tuple(memory_of.check_all(data))
    return memory_of.check(data)


def _listed(data):
    return list(data) if isinstance(data, tuple) else [data]


def _unlisted(message):
    return tuple(message.arrays) if message.meta["tuple"] else message.arrays[0]


def _copy(data):
    return tuple(each.copy() for each in data) if isinstance(data, tuple) else data.copy()


class _Object:
    """An object that stays in its process, where arrays would be copied."""

    def __init__(self, obj):
        self.obj = obj

    def copy(self):
        return _Object(deepcopy(self.obj))


def data_arrays(params: Any) -> List[List[mx.nd.NDArray]]:
    """The values of parameters: by parameter, then by device."""
    return [p.list_data() if _is_parameter(p) else [p] for p in _each(params)]


def grad_arrays(params: Any) -> List[List[mx.nd.NDArray]]:
    """The gradients of those parameters that have some: by parameter, then by device."""
    return [
        p.list_grad() if _is_parameter(p) else [p]
        for p in _each(params)
        if not (_is_parameter(p) and p.grad_req == "null")
    ]


def _is_parameter(value):
    return isinstance(value, mx.gluon.Parameter)


def _each(params):
    if isinstance(params, mx.gluon.Block):
        params = params.collect_params()
    found = list(params.values() if hasattr(params, "values") else params)
    for each in found:
        if not (_is_parameter(each) or isinstance(each, mx.nd.NDArray)):
            raise ArgumentTypeError(
                f"params holds {shown(repr(each))}; pass a Block, Parameters, or NDArrays"
            )
    return found
