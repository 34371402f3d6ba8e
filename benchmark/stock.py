"""MXNet as a user without mxloop has it, and what its peers have in common."""

import os
import sys
import types

from work import DECAY, LEARNING_RATE, MOMENTUM

SGD = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM, "wd": DECAY}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def import_mxnet():
    """Import MXNet with the NumPy names that it lacks, but without mxloop's settings of threads."""
    package = types.ModuleType("mxloop")
    package.__path__ = [os.path.join(ROOT, "mxloop")]
    sys.modules["mxloop"] = package  # so that its __init__ does not run
    from mxloop import cpu

    cpu.set_defaults = lambda environ: None
    from mxloop.compat import mx

    return mx


def named_initial(mx, work, symbol):
    """The initial parameters by the symbol's names."""
    return dict(zip(param_names(symbol), map(mx.nd.array, work.initial())))


def param_names(symbol):
    """Names of a symbol's parameters, in its order."""
    return [name for name in symbol.list_arguments() if name not in ("data", "softmax_label")]


def contexts(mx, work):
    """The devices."""
    return [mx.cpu(i) for i in range(work.contexts)]


def iterator(mx, work):
    """The iterator that a user of MXNet's loops takes for arrays in memory."""
    x, y = work.arrays()
    if work.source == "memory":
        import gathering

        return gathering.iterator(mx, work, x, y)
    return mx.io.NDArrayIter(x, y, work.batch, shuffle=work.shuffle, label_name="softmax_label")


def speedometer(callback, work):
    """A batch callback, as most scripts have, or none."""
    return callback.Speedometer(work.batch, 50) if work.callbacks else None


def metric_of(mx, work):
    """The metric as an object, which can be read when an epoch is over; of None an empty one."""
    return mx.metric.create([] if work.metric is None else work.metric)


def counted(metric):
    """Samples that a metric has counted in the epoch, and its value; waits for them."""
    if not hasattr(metric, "global_num_inst"):
        return None, None
    value = metric.get()[1]
    # MXNet's loops, and a Speedometer, start the one count anew before an epoch is over.
    if metric.global_num_inst > metric.num_inst:
        value = metric.get_global()[1]
    return int(max(metric.num_inst, metric.global_num_inst)), value
