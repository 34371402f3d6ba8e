"""A user's mistake -> one line that says what came, what is allowed, what to do."""

import contextlib
import difflib
import inspect
import logging
import math
import numbers
import os
import re

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, MXLoopError

SHOWN = 80


def shown(value, limit=SHOWN):
    """The value as one short piece of a message."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def names(values, limit=SHOWN):
    """Names as one short piece of a message."""
    return shown(", ".join(str(value) for value in values) or "none", limit)


def did_you_mean(name, known):
    """A hint at the nearest known name, or the list of all."""
    close = difflib.get_close_matches(str(name).lower(), [str(k) for k in known], n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {names(sorted(known), 120)}"


class one_line:  # noqa: N801 - a context manager, made anew several times a step
    """Turn an MXNetError, which carries a C++ trace, into one line; the original is its cause."""

    def __init__(self, doing, kind=DataError):
        self._doing, self._kind = doing, kind

    def __enter__(self):
        pass

    def __exit__(self, _, error, trace):
        # An MXNetError is a RuntimeError, and bind raises the bare kind.
        if isinstance(error, RuntimeError) and not isinstance(error, MXLoopError):
            raise self._kind(f"cannot {self._doing}: {reason(error)}") from error


# What MXNet says, and what it means to whoever trains.
SENTENCES = (
    (
        "the last operator is not Loss function",
        "it does not end in a loss; end it in mx.sym.SoftmaxOutput, MakeLoss or the like",
    ),
    (
        r"(?i)failed to allocate|out of memory|bad_alloc|cudaMalloc",
        "there is too little memory; use smaller batches, or a smaller network",
    ),
    (
        r"int64_t\{1\} << 31|larger than 2\^31",
        "an array would have more than the 2**31 - 1 elements that this MXNet can hold; use "
        "smaller batches, or a smaller network",
    ),
    (
        r"(?i)(float16|fp16)[^\n]*(cpu|cudnn)",
        "a layer is float16, which MXNet has on GPUs alone; use float32 on the CPU, as with "
        "mx.sym.cast(x, dtype='float32')",
    ),
    (
        r"requires uniform type. Expected '(\w+)' v.s. given '(\w+)' at '(\w+)'",
        r"a layer has \2 for its '\3' and \1 before it; cast one of them with mx.sym.cast",
    ),
)


def reason(error):
    """The sentence of an MXNetError that says what is wrong."""
    text = str(error)
    for pattern, meaning in SENTENCES:
        found = re.search(pattern, text)
        if found:
            return found.expand(meaning)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error in operator" in line or "Check failed" in line]
    first = (told or lines[-1:] or ["no reason given"])[0]
    return shown(re.sub(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ", "", first), 150)


@contextlib.contextmanager
def one_dtype(descs):
    """Name the inputs that are not float32, where MXNet refuses to put types together."""
    try:
        yield
    except RuntimeError as error:
        odd = {desc.name: np.dtype(desc.dtype).name for desc in descs}
        odd = {name: dtype for name, dtype in odd.items() if dtype != "float32"}
        if not odd or "type" not in str(error):
            raise
        told = names([f"{name!r} as {dtype}" for name, dtype in odd.items()])
        raise DataError(
            f"the data bring {told}, and a layer of the network cannot take that; pass float32 "
            "(dtype='float32'), or put mx.sym.cast(x, dtype='float32') behind that input"
        ) from error


def contexts(ctx):
    """One Context, several or None -> a list of Context that exist here."""
    devices = [mx.current_context()] if ctx is None else ctx
    devices = list(devices) if isinstance(devices, (list, tuple)) else [devices]
    for device in devices:
        if not isinstance(device, mx.Context):
            raise ArgumentTypeError(
                f"ctx holds {shown(repr(device))}; pass a Context or a list of them, "
                "as in [mx.cpu(0), mx.cpu(1)] or mx.gpu(0)"
            )
    if not devices:
        raise ArgumentError("ctx is an empty list; pass at least one Context, as in mx.cpu()")
    if len({device.device_type for device in devices}) > 1:
        raise ArgumentError(f"ctx mixes {names(devices)}; use CPUs alone or GPUs alone")
    _check_gpus(devices)
    return devices


def _check_gpus(devices):
    asked = [device for device in devices if device.device_type == "gpu"]
    there = mx.context.num_gpus() if asked else 0
    absent = [device for device in asked if device.device_id >= there]
    if absent:
        raise ArgumentError(
            f"{names(absent)} asked for, and MXNet sees {there} GPUs here; use mx.cpu(), or "
            "install a CUDA build ('mxloop[cu117]') and a driver"
        )


def work_loads(work_load_list, num_device=None):
    """Loads as a list of float: finite, none negative, not all zero, one a device."""
    unordered = isinstance(work_load_list, (str, bytes, dict, set))
    if unordered or not hasattr(work_load_list, "__iter__"):
        raise ArgumentTypeError(
            f"work_load_list is {shown(repr(work_load_list))}; pass a list of numbers, one a device"
        )
    loads = list(work_load_list)
    if not loads or not all(_is_load(load) for load in loads) or not any(loads):
        raise ArgumentError(
            f"work_load_list is {shown(loads)}; loads are finite numbers, none negative and not "
            "all zero, one a device"
        )
    if num_device is not None and len(loads) != num_device:
        raise ArgumentError(
            f"work_load_list has {len(loads)} entries for {num_device} devices; pass one a device"
        )
    return [float(load) for load in loads]


def _is_load(load):
    return isinstance(load, numbers.Real) and math.isfinite(load) and load >= 0


def count(name, value, least=1):
    """A whole number of at least `least`, as int."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise ArgumentTypeError(
            f"{name} is {shown(repr(value))}; it must be an integer of at least {least}"
        )
    if value < least:
        raise ArgumentError(f"{name} is {value}; it must be an integer of at least {least}")
    return int(value)


def check_seed(seed):
    """A seed that NumPy and MXNet both take, as int."""
    seed = count("seed", seed, least=0)
    if seed >= 2**32:
        raise ArgumentError(f"seed is {shown(seed)}; it must be below 2**32: pass a smaller one")
    return seed


def check_watchers(monitor, logger):
    """What is to look on must be a Monitor and a Logger, or None."""
    if monitor is not None and not hasattr(monitor, "stat_helper"):
        raise ArgumentTypeError(
            f"monitor is {shown(repr(monitor))}; pass an mx.monitor.Monitor, or None"
        )
    if logger is not None and not isinstance(logger, (logging.Logger, logging.LoggerAdapter)):
        raise ArgumentTypeError(
            f"logger is {shown(repr(logger))}; pass a logging.Logger, as logging.getLogger('x')"
        )


def path_of(prefix):
    """The beginning of file names, as str."""
    if not isinstance(prefix, (str, bytes, os.PathLike)):
        raise ArgumentTypeError(
            f"the path is {shown(repr(prefix))}; pass the beginning of a file name as str or Path"
        )
    path = os.fsdecode(prefix)
    if "\0" in path:
        raise DataError(f"the path {shown(repr(path))} holds a NUL character; leave that out")
    return path


def check_arrays(what, given, finite=False):
    """Parameters must be a dict of name to array, and may have to be finite."""
    if not isinstance(given, dict):
        raise ArgumentTypeError(
            f"{what} is {shown(repr(given))}; pass a dict of parameter name to NDArray"
        )
    for name, array in given.items():
        if not isinstance(array, (mx.nd.NDArray, np.ndarray)):
            raise ArgumentTypeError(
                f"{what} holds {shown(repr(array))} for {shown(repr(name))}; pass an NDArray, as "
                "mx.nd.array(x)"
            )
        if getattr(array, "stype", "default") != "default":
            raise ArgumentTypeError(
                f"{what} holds a {array.stype} array for {shown(repr(name))}; pass a dense one, as "
                "its tostype('default')"
            )
    bad = not_finite(given) if finite else None
    if bad is not None:
        raise DataError(
            f"{what} holds NaN or infinite values in {shown(repr(bad))}; pass parameters of a "
            "training that went well, or leave that one out to initialise it"
        )


def not_finite(arrays):
    """The name of the first array that holds NaN or infinity, or None; waits for them."""
    for name, array in arrays.items():
        values = array.asnumpy() if isinstance(array, mx.nd.NDArray) else array
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return name
    return None


def check_symbol(symbol):
    """The network must be a Symbol."""
    if not isinstance(symbol, mx.sym.Symbol):
        raise ArgumentTypeError(
            f"symbol is {shown(repr(symbol))}; pass a Symbol that ends in a loss, "
            "as mx.sym.SoftmaxOutput(...)"
        )
    doubled = _doubled(symbol.list_arguments())
    if doubled:
        raise ArgumentError(
            f"the network has several arguments named {names(doubled)}; give each a name of its own"
        )


def _doubled(values):
    return sorted({value for value in values if values.count(value) > 1})


def check_known(name, known, what):
    """A name must be one of the known ones."""
    if name not in known:
        raise ArgumentError(f"{shown(repr(name))} is no {what}; {did_you_mean(name, known)}")


def check_shape(name, came, wanted, where="the network"):
    """An array must have the shape that the network gives its name."""
    if tuple(came) != tuple(wanted):
        raise DataError(
            f"{name!r} has shape {tuple(came)}, and {where} needs {tuple(wanted)}; "
            "pass parameters of this very network"
        )


def keywords_of(klass):
    """Every keyword that the constructors of a class and of its parents take."""
    return sorted(
        name
        for base in klass.__mro__
        if base is not object and "__init__" in vars(base)
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if name != "self" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    )
