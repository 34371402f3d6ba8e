"""Evaluations over the data of all ranks, each sample counting once."""

import copy
from typing import Any, Callable, Dict, Tuple, Union

import numpy as np

from mxloop import metric as metrics
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.validation import shown

Evaluate = Callable[..., Tuple[Dict[str, float], float]]

# These keep means of ratios, or tables that grow: two ranks' do not add up.
NO_SUMS = (mx.metric.F1, mx.metric.MCC, mx.metric.PCC, mx.metric.PearsonCorrelation)


def create_multi_node_evaluator(
    actual_evaluator: Union[mx.metric.EvalMetric, Evaluate], communicator: Communicator
) -> Any:
    """Let an evaluation give the value over all ranks' samples, however many each has.

    Parameters
    ----------
    actual_evaluator : EvalMetric, or callable() -> (dict of name to mean, number of samples)
        A metric is updated by each rank with its own batches.
    communicator : Communicator

    Returns
    -------
    EvalMetric
        Whose `get` is the value over all ranks; they must call it together.
    callable() -> dict of name to mean
        For a callable: its means, weighted by samples.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is of another kind, or a metric whose counts do not add up.
    """
    check_communicator(communicator)
    if isinstance(actual_evaluator, mx.metric.EvalMetric):
        check_sums(actual_evaluator)
        return _MultiNodeMetric(actual_evaluator, communicator)
    if not callable(actual_evaluator):
        raise ArgumentTypeError(
            f"actual_evaluator is {shown(repr(actual_evaluator))}; pass an EvalMetric, or a "
            "function that returns (dict of means, number of samples)"
        )

    def evaluate(*args: Any, **kwargs: Any) -> Dict[str, float]:
        return _weighted(communicator.allgather_obj(actual_evaluator(*args, **kwargs)))

    return evaluate


def _weighted(found):
    total = sum(samples for _, samples in found)
    present = [(means, samples) for means, samples in found if samples]
    return {
        name: sum(means[name] * samples for means, samples in present) / total
        for name in (present[0][0] if present else ())
    }


def check_sums(metric: mx.metric.EvalMetric) -> None:
    """Raise ArgumentError if a metric's counts do not add up over ranks."""
    for leaf in metrics.leaves(metric):
        if isinstance(leaf, NO_SUMS):
            raise ArgumentError(
                f"the counts of the metric {shown(repr(leaf.name), 40)} do not add up over ranks; "
                "choose another one"
            )


def merge(metric: mx.metric.EvalMetric, communicator: Communicator) -> None:
    """Replace a metric's counts by their sums over all ranks."""
    fresh = copy.deepcopy(metric)
    fresh.reset()
    for leaf, zero in zip(metrics.leaves(metric), metrics.leaves(fresh)):
        begin = _numbers(zero)
        # What has been counted since a reset; settings, which are numbers too, give zero.
        since = {name: value - begin[name] for name, value in _numbers(leaf).items()}
        for name, total in _sums(communicator.allgather_obj(since)).items():
            setattr(leaf, name, begin[name] + total)


def _numbers(metric):
    kinds = (int, float, np.number, np.ndarray)
    return {
        name: value
        for name, value in vars(metric).items()
        if isinstance(value, kinds) and not isinstance(value, bool)
    }


def _sums(found):
    return {name: sum(each[name] for each in found) for name in found[0]}


class _MultiNodeMetric(mx.metric.EvalMetric):
    def __init__(self, actual, communicator):
        self._actual, self._communicator = actual, communicator
        super().__init__(actual.name, actual.output_names, actual.label_names)

    def update(self, labels, preds):
        self._actual.update(labels, preds)

    def update_dict(self, label, pred):
        self._actual.update_dict(label, pred)

    def reset(self):
        self._actual.reset()

    def get(self):
        total = copy.deepcopy(self._actual)
        merge(total, self._communicator)
        return total.get()
