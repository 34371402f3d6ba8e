"""MPI in this process: started under a deadline, and aware of ranks that have ended."""

import ctypes
import logging
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional

from mxloop import launch
from mxloop.distributed import seconds_of
from mxloop.errors import ArgumentError, InstallError, PeerError
from mxloop.validation import names, shown

logger = logging.getLogger(__name__)

SECONDS = "MXLOOP_MPI_SECONDS"
LEFT = 1
GRACE = 1.0  # what a rank sent before it ended still arrives
AWAKE, LONGEST_NAP = 0.02, 0.001

_world: Optional["World"] = None


def is_launched() -> bool:
    """Whether there may be other ranks: ``mpiexec`` started this, or the program started MPI."""
    return "mpi4py.MPI" in sys.modules or launch.is_launched()


def deadline(seconds: Optional[float] = None) -> float:
    """How long to wait for other ranks: what was passed, else MXLOOP_MPI_SECONDS, else 600."""
    if seconds is None:
        return seconds_of(SECONDS, 600)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ArgumentError(
            f"seconds is {shown(repr(seconds))}; pass how many seconds to wait for other ranks"
        )
    return min(float(seconds), threading.TIMEOUT_MAX)


def world() -> "World":
    """Return this process's only `World`; the first call waits for all ranks to make theirs."""
    global _world
    if _world is None:
        if os.environ.get(launch.BULK) not in ("0", "1"):
            logger.warning(
                "%s is not 1, and backward passes of two ranks may wait for each other; import "
                "mxloop before mxnet, which sets it",
                launch.BULK,
            )
        _world = World(_started(deadline()))
    return _world


def _started(seconds: float) -> Any:
    """Return mpi4py's MPI, initialised for calls from several threads at once."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        raise InstallError(
            'several processes need mpi4py and an MPI: run pip install "mxloop[mpi]" '
            f"({shown(error)})"
        ) from error
    if not MPI.Is_initialized():
        _initialise(MPI, seconds)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise InstallError(
            "MPI was started without MPI.THREAD_MULTIPLE, which backward passes need; leave "
            "mpi4py.rc.thread_level as it is, and start MPI through mxloop"
        )
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI


def _initialise(MPI: Any, seconds: float) -> None:
    """Call MPI_Init_thread, which waits for all ranks, and end the process if one never comes.

    Nothing but the end of the process stops that call; and mpi4py's own would hold Python's lock
    meanwhile, so that no other thread could notice the time.
    """
    done = threading.Event()

    def watch():
        if not done.wait(seconds):
            print(
                f"mxloop: not all ranks started MPI within {seconds:g} s; ending ({SECONDS} waits "
                "longer)",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    provided = ctypes.c_int()
    ctypes.CDLL(MPI.__file__).MPI_Init_thread(
        None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided)
    )
    done.set()


class World:
    """All ranks that were started together, as far as one has to know who is still there.

    Attributes
    ----------
    MPI : module
    rank, size : int
    """

    def __init__(self, MPI: Any):
        self.MPI = MPI
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        self._left: Dict[int, float] = {}
        self._control = duplicate(MPI.COMM_WORLD, deadline())

    def left(self) -> Dict[int, float]:
        """World ranks that have ended, with the time when this one learned of it."""
        MPI = self.MPI
        status = MPI.Status()
        while self._control.Iprobe(MPI.ANY_SOURCE, LEFT, status):
            self._control.Recv(bytearray(), status.source, LEFT)
            self._left[status.source] = time.monotonic()
        return self._left

    def leave(self, seconds: float) -> None:
        """Tell the others that this rank ends, and wait for them to end too.

        Raises
        ------
        PeerError
            If one does not within the time.
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self._control.Isend(bytearray(), rank, LEFT) for rank in others]
        requests.append(self._control.Ibarrier())
        done = lambda: self.MPI.Request.Testall(requests)  # noqa: E731
        wait(done, seconds, f"rank {self.rank} has ended and waited", others, "end as well")

    def check(self, waiting: str, ranks: Iterable[int], what: str) -> None:
        """Raise PeerError if one of these world ranks has ended, so that waiting is in vain."""
        left = self.left()
        gone = [rank for rank in ranks if time.monotonic() - left.get(rank, float("inf")) > GRACE]
        if gone:
            raise PeerError(
                f"{waiting} for {_ranks(ranks)} to {what}, but {_ranks(gone)} has ended; all ranks "
                "must take the same steps to the end"
            )

    def abort(self, code: int) -> None:
        """End all ranks at once, with an exit code."""
        self.MPI.COMM_WORLD.Abort(code)


def duplicate(communicator: Any, seconds: float) -> Any:
    """Copy an MPI communicator, once all its ranks have come to do so."""
    size, rank = communicator.size, communicator.rank
    come = communicator.Ibarrier()
    others = [other for other in range(size) if other != rank]
    wait(come.Test, seconds, f"rank {rank} waited", others, "create a communicator")
    return communicator.Dup()


def wait(
    ready: Callable[[], Any],
    seconds: float,
    waiting: str,
    ranks: Iterable[int],
    what: str,
    meanwhile: Callable[[], Any] = lambda: None,
) -> Any:
    """Ask again and again, until something is ready; return that.

    Parameters
    ----------
    ready : callable()
        Gives what is waited for, or something false.
    seconds : float
    waiting, ranks, what
        Who waits, for whom, to do what: the error's sentence.
    meanwhile : callable()
        Done between two questions; it may raise.

    Raises
    ------
    PeerError
        If that takes longer than `seconds`.
    """
    begun = time.monotonic()
    while True:
        found = ready()
        if found:
            return found
        meanwhile()
        waited = time.monotonic() - begun
        if waited > seconds:
            raise PeerError(
                f"{waiting} {seconds:g} s for {_ranks(ranks)} to {what}; it is slow, stuck, or "
                f"not at this step ({SECONDS} waits longer)"
            )
        # Short waits are answered at once, long ones leave the processor to others.
        time.sleep(0 if waited < AWAKE else min(waited / 50, LONGEST_NAP))


def _ranks(ranks: Iterable[int]) -> str:
    found: List[int] = sorted(ranks)
    return f"rank {names(found, 40)}" if len(found) == 1 else f"ranks {names(found, 40)}"
