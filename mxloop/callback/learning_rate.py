"""Who may set learning rates."""

from mxloop.callback.base import State
from mxloop.errors import StateError


def check_settable(state: State, who: str) -> None:
    """Raise StateError where setting the learning rate would have no effect."""
    check_served(state, who)
    if state.optimizer.lr_scheduler is not None:
        raise StateError(
            f"{who} sets the learning rate, and so does the optimizer's lr_scheduler; leave one out"
        )


def check_served(state: State, who: str) -> None:
    """Raise StateError where there is no optimizer here that updates."""
    if state.optimizer is None:
        raise StateError(
            f"{who} needs the optimizer; train through FeedForward.fit, or set State.optimizer"
        )
    if getattr(state.update, "is_served", False):
        raise StateError(
            f"{who} sets learning rates, and the servers of a 'dist_async' kvstore have an "
            "optimizer of their own; use 'dist_sync'"
        )
