"""The metric of an epoch, counted while the devices work on the next batch.

Reading an output waits for the step that computes it, and would leave the devices without work each
time. So what a metric reads of a batch is copied aside, and counted one batch later, or as soon as
somebody looks.
"""

import collections
import copy
from typing import Any, Deque, List, Optional, Sequence

from mxloop import cpu, threads
from mxloop import metric as metrics
from mxloop.compat import mx
from mxloop.errors import EngineError
from mxloop.executor_manager import Outcome
from mxloop.validation import reason

# Operators of metrics run here: on the devices' own contexts they would wait behind the next step.
# MXNet's profiler knows no number beyond this one.
ASIDE = mx.cpu(len(cpu.cpus()) + 1)

# These count whole numbers, so that many batches at one go give what they give one by one.
WHOLE = (mx.metric.Accuracy, mx.metric.TopKAccuracy, mx.metric.CompositeEvalMetric)
# These read one value a row, the true class's: the device picks it from outputs of any width.
PICKED = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood)
MANY = 16  # batches
FEW = 1024  # columns: larger outputs would only be kept, and copied, for nothing


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
        self._is_counting = False
        self._adds_up = all(type(leaf) in WHOLE for leaf in metrics.leaves(metric))
        self._picks = type(metric) in PICKED

    def reset(self) -> None:
        """Start an epoch."""
        self._waiting.clear()
        for metric in self.each():
            metric.reset()

    def update(self, manager: Any, labels: Optional[Sequence[mx.nd.NDArray]]) -> None:
        """Take down the manager's present batch, and count the one before; waits for that one."""
        outcome = manager.picked(ASIDE) if self._picks else None
        outcome = outcome or manager.outcome(labels, ASIDE)
        self._waiting.append(outcome)
        if len(self._waiting) > self._patience(outcome):
            self._count(len(self._waiting) - 1)

    def flush(self) -> None:
        """Count what waits; waits for the devices."""
        if self._waiting and not self._is_counting:
            self._count(len(self._waiting))

    def _patience(self, outcome):
        """Batches that may wait, to be counted at one go where that gives the same counts."""
        return MANY if self._adds_up and _is_plain(outcome) else 1

    def _count(self, number):
        outcomes = [self._waiting.popleft() for _ in range(number)]
        self._is_counting = True  # a metric looks at its own counts
        try:
            for outcome in _joined(outcomes) if self._adds_up else outcomes:
                for metric in self._both():
                    metrics.update(metric, *outcome)
        except mx.base.MXNetError as error:
            raise EngineError(f"a step failed inside MXNet: {reason(error)}") from error
        finally:
            self._is_counting = False

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
        for metric, kind in self._kinds:
            metric.__class__ = kind


def _is_plain(outcome):
    """Whether all arrays of a batch are small, and have a row a sample."""
    outputs = [array.shape for _, array in outcome.outputs]
    labels = [array.shape for array in outcome.labels.values()]
    rows = {shape[0] for shape in outputs + labels}
    return (
        len(rows) == 1
        and all(len(s) == 2 and s[1] <= FEW for s in outputs)
        and all(len(s) == 1 for s in labels)
    )


def _joined(outcomes):
    """Batches whose rows can stand below each other, as one."""
    if len(outcomes) == 1 or not all(map(_is_plain, outcomes)):
        return outcomes
    first = outcomes[0]
    if any(_kinds_of(each) != _kinds_of(first) for each in outcomes):
        return outcomes
    labels = {name: _below([each.labels[name] for each in outcomes]) for name in first.labels}
    outputs = [
        (name, _below([each.outputs[i][1] for each in outcomes]))
        for i, (name, _) in enumerate(first.outputs)
    ]
    return [first._replace(labels=labels, outputs=outputs)]


def _kinds_of(outcome):
    return outcome.pairs, {name: array.dtype for name, array in outcome.labels.items()}


def _below(arrays):
    return mx.nd.concat(*[array.as_in_context(ASIDE) for array in arrays], dim=0)


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
