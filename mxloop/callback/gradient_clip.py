"""Shorten gradients that are too long."""

import math

from mxloop.callback.base import Callback, State
from mxloop.errors import ArgumentError, StateError


class GradientClip(Callback):
    """Scale the gradients of a step so that their norm, over all parameters, is at most `norm`.

    Of Pascanu et al., arXiv:1211.5063. The gradient is the one that the step is made of: the mean
    over the samples, of all devices and workers. Frozen parameters do not count, but where they
    share a block with others. (Clipping each value by itself is the optimizer's `clip_gradient`.)

    Parameters
    ----------
    norm : float
    """

    def __init__(self, norm: float):
        if not 0 < norm < math.inf:
            raise ArgumentError(f"norm is {norm}; it must be more than 0, and finite")
        self.norm = norm

    def on_train_begin(self, state: State) -> None:
        """Tell the update."""
        if not getattr(state.update, "can_clip", False):
            raise StateError(
                "GradientClip needs the sums of all devices' gradients, and here a kvstore updates "
                "without showing them; pass kvstore=None, 'local', 'device' or 'dist_sync'"
            )
        state.update.clip_norm = self.norm
