"""Ctrl-C and SIGTERM: finish the step first, then end."""

import contextlib
import os
import signal
import threading
from typing import Any, Dict, Iterator, List, Optional

from mxloop.callback.base import Callback, State
from mxloop.errors import Terminated

CAUGHT = (signal.SIGINT, signal.SIGTERM)

Handlers = Dict[int, Any]
_held_back: List[Handlers] = []  # the old ones, of each training under way


class Interruption(Callback):
    """Raise what a signal asks for between two steps, once the other callbacks have had theirs."""

    def __init__(self) -> None:
        self._signal: Optional[int] = None

    def notice(self, number: int, frame: object) -> None:
        """Remember a signal; a second one does not wait for the step."""
        if self._signal is not None:
            self._raise(number)
        self._signal = number

    def on_batch_end(self, state: State) -> None:
        """Raise KeyboardInterrupt or Terminated, if a signal has come."""
        self._raise(self._signal)

    on_eval_batch_end = on_batch_end
    on_epoch_end = on_batch_end

    def _raise(self, number: Optional[int]) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt("interrupted; what was learned so far is in the model")
        if number is not None:
            raise Terminated("SIGTERM; what was learned so far is in the model")


@contextlib.contextmanager
def deferred() -> Iterator[Interruption]:
    """Hold SIGINT and SIGTERM back to the end of a step; the old handlers return afterwards.

    Python lets only the main thread handle signals; in others this does nothing.
    """
    interruption = Interruption()
    before: Handlers = {}
    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, interruption.notice) for number in CAUGHT})
        _held_back.append(before)
    try:
        yield interruption
    finally:
        if before in _held_back:
            _held_back.remove(before)
            _give_back(before)


def _give_back(handlers):
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _in_child():
    """A forked process has no step to finish: a pool that a callback made must end when told to."""
    with contextlib.suppress(ValueError):  # it was forked by another thread than the main one
        while _held_back:
            _give_back(_held_back.pop())


os.register_at_fork(after_in_child=_in_child)
