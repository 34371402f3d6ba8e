"""How many threads each CPU context computes with.

Contexts of one process share its cores, and a small network is quickest on few: to hand operators
of a few microseconds to a second thread and wait for it costs more than it saves. The choice
depends on the network, the kind of iterator, and the numbers of cores and contexts, never on a
clock, as results may differ in their last bits with it.
"""

import ctypes
import functools
import logging
import os
import re
from typing import Dict, Sequence, Set

from mxloop import cpu
from mxloop.compat import mx
from mxloop.summary import summarize

# Floating-point operations of a device's forward pass that are worth a thread: on two cores, a
# network of 14 million loses by the second one, and one of 28 million gains.
WORTH_A_THREAD = 12e6
# From here on Python's part of a step is small. Below, where Python has batches to make, it wants a
# core to itself: threads that wait for one that it has displaced lose more than they gain.
LONG = 64e6
# Operators that MXNet leaves to OpenBLAS, in a symbol's JSON. Two contexts that call it with more
# threads than one each, at the same time, can wait forever.
TO_OPENBLAS = re.compile(r'"op": "(RNN|\w*dot|\w*linalg\w*|khatri_rao)"')

logger = logging.getLogger(__name__)

_present: Dict[int, int] = {}
_warned: Set[mx.Context] = set()


def choose(
    symbol: mx.sym.Symbol,
    inputs: Sequence[mx.io.DataDesc],
    ctx: Sequence[mx.Context],
    takes_rows: bool = False,
) -> int:
    """Choose the number of threads for each of some contexts that work at the same time.

    Parameters
    ----------
    symbol : Symbol
    inputs : list of DataDesc
        Of one context's part of a batch.
    ctx : list of Context
    takes_rows : bool
        Whether the contexts take their batches themselves, so that Python has none to make.

    Returns
    -------
    int
        Threads of each context, at least 1.
    """
    contexts = {each.device_id for each in ctx if each.device_type == "cpu"}
    cores, number = int(os.environ.get(cpu.CHOSEN, 1)), max(1, len(contexts))
    share = cores // number
    if share <= 1 or (number > 1 and TO_OPENBLAS.search(symbol.tojson())):
        return 1
    layers = summarize(symbol, {desc.name: desc.shape for desc in inputs}).layers
    operations = sum(layer.operations or 0 for layer in layers)
    if operations < LONG and not takes_rows and share * number == cores:
        share -= 1
    return max(1, min(share, int(operations / WORTH_A_THREAD)))


def use(ctx: Sequence[mx.Context], threads: int) -> None:
    """Let CPU contexts use so many threads from their next operator on; asynchronous.

    Nothing happens where the user has chosen, by OMP_NUM_THREADS. A context that has worked with
    fewer stays there: oneDNN keeps what it prepared for them, and more threads overrun its buffers.
    """
    others = [each for each in ctx if _present.get(each.device_id) != threads]
    if not others or os.environ.get("OMP_NUM_THREADS") != os.environ.get(cpu.CHOSEN):
        return
    for each in others:
        present = _present.get(each.device_id)
        if each.device_type == "cpu":
            if present is None or threads < present:
                _tell(each, threads)
            elif each not in _warned:
                _warned.add(each)
                logger.warning(
                    "%s goes on with %d threads, which an earlier network or iterator had; for %d, "
                    "start a new process, or set OMP_NUM_THREADS=%d",
                    each,
                    present,
                    threads,
                    threads,
                )


def keep_to_one(ctx: mx.Context) -> None:
    """Let a context that does little work never start threads of its own; asynchronous."""
    if _present.get(ctx.device_id) != 1:
        _tell(ctx, 1)


def _tell(ctx, threads):
    _present[ctx.device_id] = threads
    handle, none = (ctypes.c_int * 2)(ctx.device_typeid, ctx.device_id), ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSync(
            _setter(threads), none, none, handle, none, 0, none, 0, none, 0, b"threads"
        )
    )


@functools.lru_cache(maxsize=None)
def _setter(threads):
    """A function for the engine, which runs it on the thread that runs the context's operators.

    The number is each thread's own. Cached functions live as long as the engine may call them.
    """
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    return kind(lambda *_: mx.base._LIB.omp_set_num_threads(threads))
