"""MXNet's Monitor on several devices: every row of it names its device."""

import re
from typing import Any, Dict, Sequence

from mxloop.compat import mx
from mxloop.params_format import BFLOAT16


def install(
    monitor: mx.monitor.Monitor, executors: Dict[int, Any], ctx: Sequence[mx.Context]
) -> None:
    """Let a Monitor read these executors' arguments and states, in place of an earlier manager's.

    Parameters
    ----------
    monitor : Monitor
    executors : dict of int to Executor
        By the number of their device.
    ctx : list of Context
    """
    if not isinstance(monitor.re_prog, _PlainNames):
        monitor.re_prog = _PlainNames(monitor.re_prog)
        monitor.stat_func = _of_numbers(monitor.stat_func)
    others = [one for one in monitor.exes if not isinstance(one, _NamedExecutor)]
    monitor.exes = others + [_NamedExecutor(one, ctx[i]) for i, one in executors.items()]


def watch(
    monitor: mx.monitor.Monitor, executors: Dict[int, Any], ctx: Sequence[mx.Context]
) -> None:
    """Show a Monitor what executors compute; rows read as in ``fc1_output [cpu(1)]``."""
    for i, executor in executors.items():
        executor.set_monitor_callback(_callback(monitor, ctx[i]), monitor.monitor_all)


def _callback(monitor, ctx):
    def callback(name, array):
        text = name.decode() if isinstance(name, bytes) else name
        monitor.stat_helper(_on_device(text, ctx).encode(), array)

    return callback


def _on_device(name, ctx):
    return f"{name} [{ctx}]"


class _PlainNames:
    """Matches the plain names that users write patterns for, not the device behind them."""

    def __init__(self, pattern):
        self._pattern = pattern

    def match(self, name):
        return self._pattern.match(re.sub(r" \[\w+\(\d+\)\]$", "", name))


def _of_numbers(stat_func):
    """The statistic, also of bfloat16, of which NumPy sees the bits alone."""
    return lambda array: stat_func(
        mx.nd.amp_cast(array, dtype="float32") if array.dtype == BFLOAT16 else array
    )


class _NamedExecutor:
    """What a Monitor reads of an executor, with names that tell the device."""

    def __init__(self, executor, ctx):
        self._executor = executor
        self._ctx = ctx
        self._symbol = self

    @property
    def arg_arrays(self):
        return self._executor.arg_arrays

    @property
    def aux_arrays(self):
        return self._executor.aux_arrays

    def list_arguments(self):
        return [_on_device(name, self._ctx) for name in self._executor.arg_dict]

    def list_auxiliary_states(self):
        return [_on_device(name, self._ctx) for name in self._executor.aux_dict]
