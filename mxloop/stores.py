"""The stores that add up gradients, and one step of the parameters with a store or without."""

import weakref
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from mxloop import distributed
from mxloop import optimizer as optimizers
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError
from mxloop.executor_manager import sum_arrays
from mxloop.validation import check_known, did_you_mean, one_line, shown

Params = Dict[str, mx.nd.NDArray]
Arrays = Sequence[Sequence[Optional[mx.nd.NDArray]]]

KVSTORES = (
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "local_allreduce_device",
    "device",
    "nccl",
    "dist_sync",
    "dist_device_sync",
    "dist_sync_device",
    "dist_async",
    "dist_async_device",
    "dist",
    "mpi",
)
LARGE_PARAMETER = 1 << 24

# --- Setting up ---------------------------------------------------------------------------------


def create_kvstore(kvstore: Any, num_device: int, arg_params: Params) -> Tuple[Optional[Any], bool]:
    """Choose the store that adds up gradients, and where parameters are updated.

    Parameters
    ----------
    kvstore : None, str or KVStore
        A name among 'local', 'device', 'nccl', 'dist_sync', 'dist_async' and their variants, 'mpi',
        or one registered with `mx.kvstore.KVStoreBase`.
    num_device : int
    arg_params : dict of str to NDArray

    Returns
    -------
    kvstore : KVStore or None
        None where one device works alone.
    update_on_kvstore : bool
        Whether the store updates the parameters; not so for 'local' with a parameter of more than
        16M elements, for a store without optimizers, and where MXNET_UPDATE_ON_KVSTORE=0.

    Raises
    ------
    ArgumentError, ArgumentTypeError, StateError
        If the name is not known, or a 'dist' store lacks its environment.
    """
    if kvstore is None:
        return None, False
    if isinstance(kvstore, str):
        _check_kvstore_name(kvstore)
        if num_device == 1 and "dist" not in kvstore and kvstore != "mpi":
            return None, False
        store = _store_of(kvstore)
    elif isinstance(kvstore, mx.kvstore.KVStoreBase):
        store = kvstore
    else:
        raise ArgumentTypeError(
            f"kvstore is {shown(repr(kvstore))}; pass None, a KVStore, "
            "or a name, as 'local' or 'device'"
        )
    on_store = mx.util.getenv("MXNET_UPDATE_ON_KVSTORE") != "0"
    if kvstore == "local":
        if not isinstance(arg_params, dict):
            raise ArgumentTypeError(
                f"arg_params is {shown(repr(arg_params))}; pass a dict of parameter name to NDArray"
            )
        on_store = on_store and all(p.size <= LARGE_PARAMETER for p in arg_params.values())
    return store, on_store and store.is_capable(mx.kvstore.KVStoreBase.OPTIMIZER)


def _check_kvstore_name(name):
    known = {*KVSTORES, *mx.kvstore.KVStoreBase.kv_registry}
    if name not in known:
        raise ArgumentError(f"{shown(repr(name))} is no kvstore; {did_you_mean(name, known)}")


def _store_of(name):
    if "async" in name and mx.util.getenv("MXNET_UPDATE_ON_KVSTORE") == "0":
        raise ArgumentError(
            f"kvstore {name!r} updates on its servers, which MXNET_UPDATE_ON_KVSTORE=0 forbids; "
            "unset that, or use 'dist_sync'"
        )
    if name.startswith("dist"):
        return distributed.create(name)
    if name == "mpi":
        from mxloop.multi_node import kvstore  # which needs mpi4py, where there are several ranks

        return kvstore.shared()
    with one_line(f"create the kvstore {name!r}"):
        return mx.kv.create(name)


def initialize_kvstore(
    kvstore: Any,
    param_arrays: Arrays,
    arg_params: Params,
    param_names: Sequence[str],
    update_on_kvstore: bool,
) -> None:
    """Put the parameters into a store, and the store's (rank 0's) onto all devices.

    Parameters
    ----------
    kvstore : KVStore
    param_arrays : list of list of NDArray
        By parameter, then by device.
    arg_params : dict of str to NDArray
    param_names : list of str
        The keys, in the order of `param_arrays`.
    update_on_kvstore : bool
        As `create_kvstore` said; a 'dist' store wants ``set_optimizer`` before this.
    """
    for name, on_devices in zip(param_names, param_arrays):
        check_known(name, arg_params, "parameter in arg_params")
        with one_line(f"put {name!r} into the kvstore"):
            kvstore.broadcast(name, arg_params[name], out=list(on_devices))


def fill_kvstore(
    store: Any, arrays: Dict[str, Sequence[mx.nd.NDArray]], values: Params, on_store: bool
) -> None:
    """`initialize_kvstore`, also for a store that an earlier fit has filled, wholly or in part."""
    if isinstance(store, mx.kvstore.KVStore):
        _check_widths(store, arrays)
    known = {}
    for name, on_devices in arrays.items():
        try:
            initialize_kvstore(store, [on_devices], values, [name], on_store)
        except DataError as error:
            if not distributed.is_duplicate(error):
                raise
            known[name] = on_devices
    if known and str(store.type).startswith("dist"):
        distributed.refill(store, list(known.values()), list(known), on_store)
    elif known:
        _overwrite(store, {name: values[name] for name in known}, on_store)


_widths: Any = weakref.WeakKeyDictionary()


def _check_widths(store, arrays):
    """MXNet makes room in a store for the devices of a key's first sum; more would crash it."""
    widths = _widths.setdefault(store, {})
    for key, on_devices in arrays.items():
        before, now = widths.get(key, 1), len(on_devices)
        if now > before > 1:
            raise ArgumentError(
                f"kvstore has added up gradients of {before} devices, and cannot do so for {now}; "
                "pass a new one"
            )
        widths[key] = max(before, now)


def _overwrite(store, params, on_store):
    updater = store._updater
    assign = optimizers.GuardedUpdater(lambda key, new, stored: new.copyto(stored))
    store._set_updater(assign)
    with one_line("use a kvstore that a network with other shapes has filled, make a new one"):
        store.push(list(params), list(params.values()))
        assign.raise_error()
    if on_store:
        store._set_updater(updater)


# --- Updating -----------------------------------------------------------------------------------


def update_params_on_kvstore(
    param_arrays: Arrays, grad_arrays: Arrays, kvstore: Any, param_names: Sequence[str]
) -> None:
    """Send gradients to the store, which updates its parameters, and fetch those; asynchronous.

    Parameters
    ----------
    param_arrays, grad_arrays : list of list of NDArray
        By parameter, then by device; parameters without gradient (None) stay as they are.
    kvstore : KVStore
        With an optimizer set.
    param_names : list of str
    """
    for index, (params, grads) in enumerate(zip(param_arrays, grad_arrays)):
        if grads[0] is not None:
            # The front layers' parameters are needed first.
            kvstore.pushpull(param_names[index], list(grads), out=list(params), priority=-index)


def update_params(
    param_arrays: Arrays,
    grad_arrays: Arrays,
    updater: Callable,
    num_device: int,
    kvstore: Optional[Any] = None,
    param_names: Optional[Sequence[str]] = None,
) -> None:
    """Add up the devices' gradients, update the first device's parameters, copy; asynchronous.

    So replicas stay equal, with a store or without, also where an optimizer draws random numbers
    (SGLD) or counts its calls (Nadam). Afterwards the first device's gradients hold the sums.

    Parameters
    ----------
    param_arrays, grad_arrays : list of list of NDArray
        By parameter, then by device; parameters without gradient (None) stay as they are.
    updater : callable(index, grad, weight)
        Called with index ``parameter * num_device``, as `mx.optimizer.get_updater` makes.
    num_device : int
    kvstore : KVStore, optional
        Adds up the gradients; one of several processes adds up theirs as well.
    param_names : list of str, optional
        Keys in the store.
    """
    _check_updated(param_arrays, grad_arrays, num_device)
    for index, (params, grads) in enumerate(zip(param_arrays, grad_arrays)):
        if grads[0] is not None:
            sum_grads(grads, kvstore, param_names and param_names[index], index)
            updater(index * num_device, grads[0], params[0])
            spread(params)


def sum_grads(
    grads: Sequence[mx.nd.NDArray], kvstore: Optional[Any], key: Optional[str], index: int
) -> None:
    """Sum the devices' gradients, and with a store those of all processes, into the first's."""
    # A store's pull passes over sparse arrays; one of this process need not be asked.
    dense = grads[0].stype == "default"
    if kvstore is not None and (dense or distributed.is_distributed(kvstore)):
        kvstore.pushpull(key, list(grads), out=list(grads[:1]), priority=-index)
    elif len(grads) > 1:
        sum_arrays(grads, grads[0])


def spread(params: Sequence[mx.nd.NDArray]) -> None:
    """Copy the first device's parameters to the others."""
    for param in params[1:]:
        params[0].copyto(param)


def _check_updated(param_arrays, grad_arrays, num_device):
    if len(param_arrays) != len(grad_arrays):
        raise ArgumentError(
            f"param_arrays has {len(param_arrays)} parameters and grad_arrays {len(grad_arrays)}; "
            "pass those of one manager"
        )
    for arrays in [*param_arrays, *grad_arrays]:
        if len(arrays) != num_device:
            raise ArgumentError(
                f"num_device is {num_device}, and a parameter has arrays of {len(arrays)} devices; "
                "pass the number of the manager's devices"
            )
