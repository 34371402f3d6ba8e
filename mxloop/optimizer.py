"""Optimizers: an object means what its name means; states are known by parameter name."""

import copy
import logging
import math
import numbers
import weakref
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError
from mxloop.validation import check_known, did_you_mean, keywords_of, names, shown

logger = logging.getLogger(__name__)

States = Dict[str, Any]

NUMBERS = ("learning_rate", "wd", "momentum", "epsilon", "beta1", "beta2", "rescale_grad")
NOT_NEGATIVE = ("learning_rate", "wd", "momentum", "epsilon", "beta1", "beta2")


def keywords_for(optimizer: Any) -> List[str]:
    """Keywords that go with an optimizer, by name or beside an object.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no optimizer, nor the name of one.
    """
    if isinstance(optimizer, mx.optimizer.Optimizer):
        return ["rescale_grad"]
    if not isinstance(optimizer, str):
        raise ArgumentTypeError(
            f"optimizer is {shown(repr(optimizer))}; pass a name, as 'sgd', "
            "or an mx.optimizer.Optimizer"
        )
    registry = mx.optimizer.Optimizer.opt_registry
    if optimizer.lower() not in registry:
        raise ArgumentError(
            f"{optimizer!r} is no optimizer of MXNet; {did_you_mean(optimizer, registry)}"
        )
    return keywords_of(registry[optimizer.lower()])


def check(optimizer: Any, keywords: Dict[str, Any]) -> None:
    """Raise an error unless this is an optimizer, or the name of one, that takes the keywords."""
    known = keywords_for(optimizer)
    what = f"keyword of FeedForward or of the optimizer {shown(repr(optimizer), 40)}"
    for keyword, value in keywords.items():
        check_known(keyword, known, what)
        _check_number(keyword, value)
    if not isinstance(optimizer, str):
        for keyword in NUMBERS:
            value = getattr(optimizer, "lr" if keyword == "learning_rate" else keyword, 0.0)
            _check_number(keyword, value)


def _check_number(keyword, value):
    if keyword == "lr_scheduler" and not (value is None or callable(value)):
        raise ArgumentTypeError(
            f"lr_scheduler is {shown(repr(value))}; pass one of mx.lr_scheduler, or None"
        )
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        if keyword in NUMBERS and not (keyword == "learning_rate" and value is None):
            raise ArgumentTypeError(f"{keyword} is {shown(repr(value))}; pass a number")
        return
    if not math.isfinite(value) or (keyword in NOT_NEGATIVE and value < 0):
        raise ArgumentError(
            f"{keyword} is {value}; it must be finite"
            + (" and not negative" if keyword in NOT_NEGATIVE else "")
        )


def create(optimizer: Any, keywords: Dict[str, Any]) -> mx.optimizer.Optimizer:
    """Make an optimizer of a name and keywords; an object starts anew with its counts at zero."""
    if isinstance(optimizer, str):
        # The optimizer writes into its schedule, which must begin anew in the next fit.
        return mx.optimizer.create(optimizer, **copy.deepcopy(keywords))
    optimizer.num_update = optimizer.begin_num_update
    optimizer._all_index_update_counts = {0: {}}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    _restart_schedule(optimizer.lr_scheduler)
    if "rescale_grad" in keywords:
        optimizer.rescale_grad = keywords["rescale_grad"]
    return optimizer


_unused_schedules: Any = weakref.WeakKeyDictionary()


def _restart_schedule(scheduler):
    """Put a schedule, which counts in itself, back to what it was when first seen."""
    if scheduler is not None:
        fresh = _unused_schedules.setdefault(scheduler, copy.deepcopy(vars(scheduler)))
        vars(scheduler).update(copy.deepcopy(fresh))


class GuardedUpdater:
    """An updater for a kvstore, which calls it from C, where an exception would be dropped."""

    def __init__(self, updater: Any):
        self._updater = updater
        self._error: Optional[BaseException] = None

    def __call__(self, key: Any, grad: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
        """Update, and remember what went wrong."""
        try:
            self._updater(key, grad, weight)
        except BaseException as error:
            self._error = self._error or error

    def raise_error(self) -> None:
        """Raise what went wrong since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def name_parameters(
    optimizer: mx.optimizer.Optimizer,
    symbol: mx.sym.Symbol,
    param_names: Sequence[str],
    num_replica: int,
) -> None:
    """Tell an optimizer the parameters' names, so that rates and decay by name apply.

    Biases and the like get no weight decay; what the user or the symbol's variables say of a
    parameter is kept.

    Parameters
    ----------
    num_replica : int
        Copies of each parameter that the optimizer updates: the devices, or 1 on a kvstore.

    Raises
    ------
    ArgumentError
        If a multiplier is set for a parameter that the network has not.
    """
    lr_mult, wd_mult = dict(optimizer.lr_mult), dict(optimizer.wd_mult)
    for name in [*lr_mult, *(name for name in wd_mult if wd_mult[name] != 0)]:
        if isinstance(name, str):
            check_known(name, symbol.list_arguments(), "parameter that lr_mult or wd_mult can name")
    optimizer.idx2name = {
        i * num_replica + k: name for i, name in enumerate(param_names) for k in range(num_replica)
    }
    optimizer.sym_info = (symbol.attr_dict(), symbol.list_arguments())
    optimizer.set_lr_mult(lr_mult)
    optimizer.set_wd_mult(wd_mult)


def keys_of(param_names: Sequence[str], num_replica: int, on_kvstore: bool) -> Dict[str, Any]:
    """The key under which an updater knows each parameter: its name on a kvstore, or a number."""
    return {name: name if on_kvstore else i * num_replica for i, name in enumerate(param_names)}


def get_states(updater: mx.optimizer.Updater, keys: Dict[str, Any]) -> States:
    """States and counts of updates by parameter name."""
    counts: Dict[Any, int] = {}
    for of_device in updater.optimizer._all_index_update_counts.values():
        counts.update(of_device)
    return {
        name: (_copied(updater.states[key]), counts.get(key, 0))
        for name, key in keys.items()
        if key in updater.states
    }


def fitting_states(
    updater: mx.optimizer.Updater, keys: Dict[str, Any], states: States, weights: Dict[str, Any]
) -> States:
    """Those states that an optimizer can go on with; where it has another kind of them, none.

    Parameters
    ----------
    weights : dict of str to NDArray

    Raises
    ------
    DataError
        If a state has another shape or dtype than the optimizer's own for that parameter.
    """
    unknown = [name for name in states if name not in keys]
    if unknown:
        logger.warning("left out the optimizer states of %s: no such parameter", names(unknown))
    return {
        name: (_fitting(updater.optimizer, name, keys[name], state, weights[name]), number)
        for name, (state, number) in states.items()
        if name in keys
    }


def _fitting(optimizer, name, key, state, weight):
    own = optimizer.create_state_multi_precision(key, weight)
    if (own is None) != (state is None):
        return own  # momentum was switched on or off
    came, wanted = _kind(state), _kind(own)
    if came != wanted:
        raise DataError(
            f"the optimizer state of {shown(repr(name), 60)} is {shown(came, 50)}, and "
            f"{type(optimizer).__name__} here needs {shown(wanted, 50)}; load states of this "
            "network and optimizer"
        )
    return state


def _kind(state):
    if isinstance(state, (list, tuple)):
        return tuple(_kind(part) for part in state)
    if isinstance(state, mx.nd.NDArray):
        return f"{np.dtype(state.dtype).name}{list(state.shape)}"
    return type(state).__name__


def set_states(
    updater: mx.optimizer.Updater, keys: Dict[str, Any], states: States, ctx: Sequence[mx.Context]
) -> None:
    """Give an updater the states that `get_states` took, on whatever number of devices."""
    optimizer = updater.optimizer
    optimizer._all_index_update_counts = {device: {} for device in {0, *(c.device_id for c in ctx)}}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    numbers_of = [number for _, number in states.values()]
    optimizer.num_update = max([optimizer.begin_num_update, *numbers_of])
    for name, (state, number) in states.items():
        key = keys.get(name)
        if key is not None:
            updater.states[key] = _copied(state)
            updater.states_synced[key] = False  # the updater moves it to the weight's device
            for counts in optimizer._all_index_update_counts.values():
                counts[key] = number


def _copied(state: Optional[Any]) -> Optional[Any]:
    if isinstance(state, mx.nd.NDArray):
        return state.copy()
    if isinstance(state, (list, tuple)):
        return type(state)(_copied(part) for part in state)
    return state
