"""A user's mistake -> one line that says what came, what is allowed, what to do."""

import contextlib
import difflib
import inspect
import math
import numbers

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


@contextlib.contextmanager
def one_line(doing, kind=DataError):
    """Turn an MXNetError, which carries a C++ trace, into one line; the original is its cause."""
    try:
        yield
    except MXLoopError:
        raise
    except RuntimeError as error:  # an MXNetError is one; bind raises the bare kind
        raise kind(f"cannot {doing}: {reason(error)}") from error


def reason(error):
    """The sentence of an MXNetError that says what is wrong."""
    if "the last operator is not Loss function" in str(error):
        return "it does not end in a loss; end it in mx.sym.SoftmaxOutput, MakeLoss or the like"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error in operator" in line or "Check failed" in line]
    return shown((told or lines[-1:] or ["no reason given"])[0], 150)


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
    if isinstance(work_load_list, str) or not hasattr(work_load_list, "__iter__"):
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
