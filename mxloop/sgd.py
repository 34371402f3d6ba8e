"""mx.optimizer.SGD's step by the operator for one array, which is twice as fast as MXNet's choice.

The bits are the same, but for the last ones where there is decay and no momentum.
"""

from typing import Any, Dict, NamedTuple

from mxloop.compat import mx
from mxloop.prepared import Prepared


class Ready(NamedTuple):
    """The operator of one parameter or block, and the momentum that it was prepared for."""

    operator: Prepared
    momentum: Any
    device: int


def is_plain(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether an optimizer is SGD itself, on arrays of one precision."""
    return type(optimizer) is mx.optimizer.SGD and not optimizer.multi_precision


def step(
    updater: mx.optimizer.Updater,
    key: int,
    grad: mx.nd.NDArray,
    weight: mx.nd.NDArray,
    ready: Dict[int, Ready],
) -> None:
    """Update `weight`, with the counts and states of `updater`; asynchronous.

    Parameters
    ----------
    updater : Updater
        With an optimizer that `is_plain`.
    key : int
    grad, weight : NDArray
        The same ones each time for a key, as long as `ready` is.
    ready : dict of int to Ready
        Operators by key, filled here.
    """
    optimizer = updater.optimizer
    known = ready.get(key)
    device = known.device if known else weight.context.device_id
    optimizer._set_current_context(device)
    state = _state(updater, key, weight)
    optimizer._update_count(key)
    momentum = state if optimizer.momentum > 0 else None
    settings = {
        "lr": optimizer._get_lr(key),
        "wd": optimizer._get_wd(key),
        "rescale_grad": optimizer.rescale_grad,
    }
    if not optimizer.lazy_update:  # what is left at its default costs no time
        settings["lazy_update"] = False
    if optimizer.clip_gradient:
        settings["clip_gradient"] = optimizer.clip_gradient
    if momentum is not None:
        settings["momentum"] = optimizer.momentum
    if known is None or known.momentum is not momentum:
        known = ready[key] = Ready(_operator(grad, weight, momentum), momentum, device)
    known.operator.set(settings)
    known.operator()


def _state(updater, key, weight):
    if updater.states.get(key) is None:  # or momentum was switched on
        updater.states[key] = updater.optimizer.create_state_multi_precision(key, weight)
    elif not updater.states_synced.get(key, True):
        updater.states[key] = updater.sync_state_context(updater.states[key], weight.context)
    updater.states_synced[key] = True
    return updater.states[key]


def _operator(grad, weight, momentum):
    if momentum is None:
        return Prepared("sgd_update", [weight, grad], [weight])
    return Prepared("sgd_mom_update", [weight, grad, momentum], [weight])
