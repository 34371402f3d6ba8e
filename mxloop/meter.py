"""The metric of an epoch, counted while the devices work on the next batch.

Reading an output waits for the step that computes it, and would leave the devices without work each
time. So what a metric reads of a batch is copied aside, and counted one batch later (several at one
go, where that gives the same counts), or as soon as somebody looks.
"""

import collections
import copy
from typing import Any, Deque, Dict, Iterable, List, Optional

from mxloop import cpu, threads
from mxloop import metric as metrics
from mxloop.compat import mx
from mxloop.errors import EngineError
from mxloop.tray import Outcome, Tray
from mxloop.validation import reason

# Operators of metrics run here: on the devices' own contexts they would wait behind the next step.
# MXNet's profiler knows no number beyond this one.
ASIDE = mx.cpu(len(cpu.cpus()) + 1)

# These count whole numbers, so that many batches at one go give what they give one by one.
WHOLE = (mx.metric.Accuracy, mx.metric.TopKAccuracy, mx.metric.CompositeEvalMetric)
SUMS = ("sum_metric", "num_inst", "global_sum_metric", "global_num_inst")
# These read one value a row, the true class's: the device picks it from outputs of any width.
PICKED = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood)


class Meter:
    """The metric of an epoch, and a second one that loggers may read and reset.

    Callbacks written for MXNet reset the metric that they are shown; the epoch's own is kept apart,
    so that it is over the whole epoch whatever a logger does.

    Within ``with meter:`` whoever reads or resets the metrics lets them count first what waits, so
    that nobody sees less than was trained.

    Parameters
    ----------
    metric : EvalMetric
        Holds the epoch's value.
    shown_apart : bool
        Whether somebody may reset the metric that is shown.
    """

    def __init__(self, metric: mx.metric.EvalMetric, shown_apart: bool):
        self.metric = metric
        self.shown = copy.deepcopy(metric) if shown_apart else metric
        self._waiting: Deque[Outcome] = collections.deque()
        self._trays: Dict[Any, Optional[List[Tray]]] = {}
        self._is_counting = False
        self._adds_up = all(type(leaf) in WHOLE for leaf in metrics.leaves(metric))
        self._picks = type(metric) in PICKED

    def reset(self) -> None:
        """Start an epoch."""
        self._forget()
        for metric in self._both():
            metric.reset()

    def _forget(self):
        self._waiting.clear()
        for tray in self._all_trays():
            tray.empty()

    def _all_trays(self):
        return [tray for trays in self._trays.values() if trays for tray in trays]

    def update(self, manager: Any, batch: mx.io.DataBatch) -> None:
        """Take down the manager's present batch, and count earlier ones; waits for those only."""
        trays = self._trays_of(manager) if self._adds_up else None
        if trays:
            self._take(trays)
            return
        outcome = manager.picked(ASIDE) if self._picks else None
        self._waiting.append(outcome or manager.outcome(batch.label, ASIDE))
        if len(self._waiting) > 1:
            self._count([self._waiting.popleft()])

    def _trays_of(self, manager):
        if manager.group not in self._trays:
            self._trays[manager.group] = manager.new_trays(ASIDE)
        return self._trays[manager.group]

    def _take(self, trays):
        trays[0].take()
        if trays[1].is_full:
            self._count([trays[1].empty()])
        if trays[0].is_full:
            trays.reverse()

    def flush(self) -> None:
        """Count what waits; waits for the devices."""
        if self._is_counting:
            return
        taken = [tray.empty() for tray in self._all_trays() if not tray.is_empty]
        if taken or self._waiting:
            waiting = [*taken, *self._waiting]
            self._waiting.clear()
            self._count(waiting)

    def _count(self, outcomes: Iterable[Outcome]):
        self._is_counting = True  # a metric looks at its own counts
        try:
            for outcome in outcomes:
                self._count_one(outcome)
        except mx.base.MXNetError as error:
            raise EngineError(f"a step failed inside MXNet: {reason(error)}") from error
        finally:
            self._is_counting = False

    def _count_one(self, outcome):
        if self.shown is self.metric or not self._adds_up:
            for metric in self._both():
                metrics.update(metric, *outcome)
            return
        # What adds up is computed once, for both.
        own = metrics.leaves(self.metric)
        before = [_sums(leaf) for leaf in own]
        metrics.update(self.metric, *outcome)
        for sums, leaf, shown in zip(before, own, metrics.leaves(self.shown)):
            for name, value in sums.items():
                vars(shown)[name] += getattr(leaf, name) - value

    def each(self) -> List[mx.metric.EvalMetric]:
        """The one metric, or both, with all batches counted."""
        self.flush()
        return self._both()

    def _both(self):
        return [self.metric] if self.shown is self.metric else [self.metric, self.shown]

    def __enter__(self) -> "Meter":
        threads.keep_to_one(ASIDE)
        watched = [leaf for metric in self._both() for leaf in metrics.leaves(metric)]
        self._kinds = [(metric, type(metric)) for metric in watched]
        for metric in watched:
            metric.__class__ = _looked_at(metric.__class__, self.flush)
        return self

    def __exit__(self, *_: Any) -> None:
        self._waiting.clear()
        self._trays.clear()
        for metric, kind in self._kinds:
            metric.__class__ = kind


def _sums(metric):
    return {name: getattr(metric, name) for name in SUMS if hasattr(metric, name)}


def _looked_at(kind, look):
    """The class of a metric that lets `look` be called before anybody reads or sets anything.

    Such a metric says that it is of its own class, and so are its copies and pickles.
    """

    def get(self, name):
        if name == "__class__":
            return kind
        look()
        return kind.__getattribute__(self, name)

    def put(self, name, value):
        if name != "__class__":
            look()
        kind.__setattr__(self, name, value)

    def reduce(self, protocol):
        plain = object.__new__(kind)
        vars(plain).update(vars(self))
        return plain.__reduce_ex__(protocol)

    own = {"__getattribute__": get, "__setattr__": put, "__reduce_ex__": reduce}
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__hash__")}
    return type(kind.__name__, (kind,), {**own, **names})
