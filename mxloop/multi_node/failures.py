"""One rank that fails ends all: the others would wait for it."""

import atexit
import dis
import os
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, Dict, Optional

from mxloop.compat import mx
from mxloop.errors import PeerError
from mxloop.multi_node.world import World, deadline

LAST_WORDS = 0.2  # seconds for mpiexec to pass on what was printed; it drops the rest

_watched: Optional[World] = None
# What went wrong in other threads, until somebody learns of it.
unraised: Dict[int, Exception] = {}


def watch(world: World) -> None:
    """From now on, let an uncaught exception or ``sys.exit(code)`` of this rank end all ranks.

    An end with code 0 waits for the other ranks' ends; those that still wait for this one learn
    that it has ended.
    """
    global _watched
    if _watched is None:
        _watched = world
        ending = _Ending(world)
        sys.excepthook, sys.exit = ending.on_exception, ending.exit
        os._exit = ending.exit_now  # else mpiexec takes an end by it for success
        atexit.register(ending.on_exit)


def fail(doing: str) -> None:
    """End all ranks with the exception that is being handled in a thread of MXNet's.

    Nobody could catch it there. Where failures are not watched for, it is only printed.
    """
    _say(f"failed in {doing}\n{traceback.format_exc().rstrip()}")
    if _watched is not None:
        _abort(_watched, 1)


class _Ending:
    """How this process ends."""

    def __init__(self, world: World):
        self._world = world
        self._excepthook, self._exit = sys.excepthook, sys.exit
        self._exit_now, self._process = os._exit, os.getpid()
        self._code: Any = None
        self._main = _outermost_frame()

    def on_exception(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Print an exception that nobody caught, and end all ranks."""
        if self._excepthook is sys.__excepthook__:
            # In one piece: other ranks may fail at the same time.
            _say("failed\n" + "".join(traceback.format_exception(kind, error, trace)).rstrip())
        else:
            _say("failed")
            self._excepthook(kind, error, trace)
        _abort(self._world, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def exit(self, status: Any = None) -> None:
        """Do what `sys.exit` does, and remember the code: no hook of Python's tells it later."""
        self._code = status
        self._exit(status)

    def exit_now(self, status: int) -> None:
        """Do what `os._exit` does, but not before the others know of it."""
        if os.getpid() == self._process:  # not one that was forked
            if status:
                _say(f"ended with os._exit({status!r})")
                _abort(self._world, status)
            self._leave()
            self._world.MPI.Finalize()
        self._exit_now(status)

    def on_exit(self) -> None:
        """End all ranks if this one ends with a code; otherwise wait for them."""
        if self._code not in (None, 0, False) and not _has_returned(self._main):
            code = self._code if isinstance(self._code, int) else 1
            _say(f"ended with sys.exit({self._code!r})")
            _abort(self._world, code)
        self._leave()

    def _leave(self):
        """Wait for the other ranks to end too."""
        mx.nd.waitall()  # sums that nobody has asked for may still fail
        for error in unraised.values():
            _say(f"failed: {error}")
            _abort(self._world, 1)
        try:
            self._world.leave(deadline())
        except PeerError as error:
            _say(f"failed: {error}")
            _abort(self._world, 1)


def _say(what: str) -> None:
    rank = "" if _watched is None else f" rank {_watched.rank} of {_watched.size}"
    sys.stderr.write(f"mxloop:{rank} {what}\n")
    sys.stderr.flush()


def _abort(world: World, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(LAST_WORDS)
    world.abort(code & 0xFF or 1)


def _outermost_frame() -> Optional[FrameType]:
    """The frame of the program itself, unless this is a thread's."""
    if threading.current_thread() is not threading.main_thread():
        return None
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: Optional[FrameType]) -> bool:
    """Whether the program came to its end, so that a `sys.exit` before that had been caught."""
    if frame is None:
        return False
    last = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[last].startswith("RETURN")
