"""Messages of arrays between the ranks of a communicator: as buffers, in order, never in vain.

A message is a header, which says what comes, and then the memory of its arrays, without a copy
where they are large. Sends of large arrays wait for their receiver, and take in what arrives in
the meantime, so that ranks that send to each other at the same time do not block each other.
"""

import collections
import contextlib
import enum
import itertools
import json
import threading
from typing import (
    Any,
    Callable,
    DefaultDict,
    Deque,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, DataError, PeerError
from mxloop.multi_node import arrays as memory_of
from mxloop.multi_node import world as worlds
from mxloop.multi_node.arrays import Array
from mxloop.validation import count, shown

LARGE = 1 << 16  # bytes; smaller arrays are copied, and their sends return at once


class Channel(enum.IntEnum):
    """Messages of different channels never meet, whatever their tags."""

    VALUE = 0
    GRADIENT = 1
    COLLECTIVE = 2
    COLLECTIVE_GRADIENT = 3


class Message(NamedTuple):
    """What came: what its sender said of it, and its arrays."""

    meta: Dict[str, Any]
    arrays: List[Array]


class Posted(NamedTuple):
    """A message on its way: its number, and what is left to be done."""

    number: int
    dest: int
    requests: List[Any]
    kept: List[Any]


class Mail:
    """Post and take messages.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm
        Copied, so that no other message is in the way.
    seconds : float
        How long to wait for another rank.
    """

    def __init__(self, communicator: Any, seconds: float):
        self.world = worlds.world()
        self.rank, self.size = communicator.rank, communicator.size
        self.seconds = seconds
        self._headers = worlds.duplicate(communicator, seconds)
        self._data = worlds.duplicate(communicator, seconds)
        self._world_ranks = self._ranks_in_world(communicator)
        self._highest = self.world.MPI.COMM_WORLD.Get_attr(self.world.MPI.TAG_UB) // len(Channel)
        self._numbers: DefaultDict[int, Iterator[int]] = collections.defaultdict(itertools.count)
        self._inbox: DefaultDict[Any, Deque[Message]] = collections.defaultdict(collections.deque)
        self._pending: List[Any] = []
        self._lock = threading.RLock()

    def _ranks_in_world(self, communicator):
        groups = communicator.Get_group(), self.world.MPI.COMM_WORLD.Get_group()
        return self.world.MPI.Group.Translate_ranks(groups[0], range(self.size), groups[1])

    # Sending

    def post(
        self, channel: Channel, dest: int, tag: int, arrays: Sequence[Array], **meta: Any
    ) -> Posted:
        """Send a message without waiting; large arrays must stay as they are until `settle`."""
        held = [memory_of.to_memory(array) for array in arrays]
        with self._lock:
            number = next(self._numbers[dest])
            header = _encode(number, meta, arrays)
            self._keep(self._headers.Isend(header, dest, self._tag(channel, tag)), header)
            large = []
            for view, owner in held:
                buffer = view if view.nbytes >= LARGE else view.copy()
                request = self._data.Isend(_bytes(buffer), dest, number % self._highest)
                if buffer is view:
                    large.append((request, (buffer, owner)))
                else:
                    self._keep(request, buffer)
        return Posted(number, dest, [r for r, _ in large], [kept for _, kept in large])

    def settle(self, posted: Posted, what: str) -> None:
        """Wait until the arrays of a message may be changed."""
        if posted.requests:
            done = lambda: self.world.MPI.Request.Testall(posted.requests)  # noqa: E731
            self.wait(done, [posted.dest], f"take {what}")

    def settle_all(self) -> None:
        """Wait until everything that was sent has arrived."""
        ranks = [rank for rank in range(self.size) if rank != self.rank]
        self.wait(lambda: not self._prune(), ranks, "take what was sent to it")

    def _keep(self, request, buffer):
        self._pending = [entry for entry in self._pending if not entry[0].Test()]
        self._pending.append((request, buffer))

    def _prune(self):
        with self._lock:
            self._pending = [entry for entry in self._pending if not entry[0].Test()]
            return self._pending

    # Receiving

    def take(
        self,
        channel: Channel,
        source: int,
        tag: int,
        what: str,
        into: Optional[Sequence[mx.nd.NDArray]] = None,
    ) -> Message:
        """Wait for a message, and return it.

        Arrays are on the CPU, of the kind that was sent; or those of `into`, filled.
        """
        key = (source, self._tag(channel, tag))
        found = self.wait(lambda: self._arrived(key), [source], f"send {what}")
        if into is not None:
            _check_fits(found, into, source, what)
        if not isinstance(found, Message):
            direct = into is not None and all(map(memory_of.is_on_cpu, into))
            found = self._rest_of(source, found, into=into if direct else None)
        if into is None or found.arrays is into:
            return found
        for array, place in zip(found.arrays, into):
            array.copyto(place)
        return found._replace(arrays=into)

    def _arrived(self, key):
        """A whole message out of the inbox, or the header of one that has come."""
        with self._lock:
            if self._inbox[key]:
                return self._inbox[key].popleft()
            return self._header(*key, self.world.MPI.Status())

    def _header(self, source, tag, status):
        """The next header, if one has come."""
        message = self._headers.Improbe(source, tag, status)
        if message is None:
            return None
        buffer = bytearray(status.Get_count(self.world.MPI.BYTE))
        message.Recv(buffer)
        return json.loads(buffer.decode())

    def _rest_of(self, source, header, meanwhile=None, into=None):
        """Receive the arrays that a header announces."""
        if into is None:
            made = [memory_of.empty(tuple(s), d, m) for d, s, m in header["arrays"]]
        else:
            made = [(array, memory_of.view(array)) for array in into]
        tag = header["number"] % self._highest
        requests = [self._data.Irecv(_bytes(view), source, tag) for _, view in made]
        done = lambda: self.world.MPI.Request.Testall(requests)  # noqa: E731
        self.wait(done, [source], "send the arrays of a message", meanwhile)
        arrays = [array for array, _ in made] if into is None else into
        return Message({**header["meta"], "number": header["number"]}, arrays)

    def _take_in(self):
        """Put one message that has come into the inbox, so that its sender can go on."""
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            MPI = self.world.MPI
            status = MPI.Status()
            header = self._header(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            if header is not None:
                source, tag = status.source, status.tag
                self._inbox[source, tag].append(self._rest_of(source, header, lambda: None))
        finally:
            self._lock.release()

    # Waiting

    def wait(
        self,
        ready: Callable[[], Any],
        ranks: Sequence[int],
        what: str,
        meanwhile: Any = None,
    ) -> Any:
        """Wait for other ranks to do something, but neither too long nor for one that has ended."""
        in_world = [self._world_ranks[rank] for rank in ranks]
        waiting = f"rank {self.world.rank} waited"

        def others():
            (meanwhile or self._take_in)()
            self.world.check(waiting, in_world, what)

        with _one_line():
            return worlds.wait(ready, self.seconds, waiting, in_world, what, others)

    def check_tag(self, tag: int) -> int:
        """Return a user's tag, if it is one."""
        if count("tag", tag, least=0) > self._highest:
            raise ArgumentError(f"tag is {tag}; MPI allows tags from 0 to {self._highest} here")
        return tag

    def _tag(self, channel, tag):
        return (tag % self._highest) * len(Channel) + channel


def _check_fits(found, into, source, what):
    """Raise DataError unless a message, or the header of one, fits the arrays for it."""
    if isinstance(found, Message):
        came = [(np.dtype(a.dtype).name, tuple(a.shape)) for a in found.arrays]
    else:
        came = [(dtype, tuple(shape)) for dtype, shape, _ in found["arrays"]]
    wanted = [(np.dtype(a.dtype).name, tuple(a.shape)) for a in into]
    if came != wanted:
        raise DataError(
            f"rank {source} sent {shown(came, 60)} as {what}, where {shown(wanted, 60)} is wanted; "
            "let all ranks go through the same batches"
        )


def _encode(number, meta, arrays):
    described = [
        [np.dtype(a.dtype).name, list(a.shape), not isinstance(a, np.ndarray)] for a in arrays
    ]
    return json.dumps({"number": number, "meta": meta, "arrays": described}).encode()


def _bytes(array):
    """The memory of an array of any dtype, float16 among them, as MPI sees it."""
    return array.reshape(-1).view(np.uint8)


@contextlib.contextmanager
def _one_line():
    """Turn an error of MPI's into one of ours."""
    MPI = worlds.world().MPI
    try:
        yield
    except MPI.Exception as error:
        raise PeerError(f"MPI failed: {shown(error, 150)}; look at the other ranks") from error
