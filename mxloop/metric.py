"""Metrics over real samples only, whatever the devices and the padding.

A metric of `mx.metric` sees each batch once and whole: the outputs of all devices in sample order,
and the labels that belong to them. So its value is that of one device on unpadded data.
"""

import contextlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, MXLoopError
from mxloop.validation import did_you_mean, shown


def create(metric: Any) -> mx.metric.EvalMetric:
    """Make a metric of a name, a function, an `EvalMetric`, or a list or tuple of those.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a name is not known, or the metric is of none of these kinds.
    """
    if isinstance(metric, (list, tuple)):
        return mx.metric.CompositeEvalMetric([create(child) for child in metric])
    if isinstance(metric, mx.metric.EvalMetric):
        return metric
    if isinstance(metric, str):
        return _by_name(metric)
    if isinstance(metric, type):
        name = shown(metric.__name__)
        raise ArgumentTypeError(f"eval_metric is the class {name}; pass an object, {name}()")
    if callable(metric):
        return mx.metric.create(metric)
    raise ArgumentTypeError(
        f"eval_metric is {shown(repr(metric))}; pass a name, a function of (label, pred), "
        "an EvalMetric, or a list of those"
    )


def _by_name(name):
    known = mx.registry.get_registry(mx.metric.EvalMetric)
    if name.lower() not in known:
        raise ArgumentError(f"{name!r} is no metric of mx.metric; {did_you_mean(name, known)}")
    try:
        return mx.metric.create(name)
    except (AssertionError, TypeError):
        raise ArgumentError(
            f"the metric {name!r} has settings to choose; pass an object, as in "
            "mx.metric.TopKAccuracy(top_k=5)"
        ) from None


def is_metric(value: Any) -> bool:
    """Whether a value can only be meant as a metric, or as several of them."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_metric(child) for child in value)
    return isinstance(value, (str, mx.metric.EvalMetric)) or callable(value)


def pair_labels(symbol: mx.sym.Symbol, labels: Sequence[str]) -> List[Optional[str]]:
    """Name the label of each output of a network.

    An output's label is the one that its loss operator reads; where the graph does not tell, the
    one that shares its name (`a_output`, `a_label`), and one output and one label belong together.

    Parameters
    ----------
    symbol : Symbol
    labels : sequence of str
        Names of the labels that the data bring.

    Returns
    -------
    list of str or None
        One entry an output; None where an output has no label.
    """
    pairs = [_label_of(symbol[i], set(labels)) for i in range(len(symbol.list_outputs()))]
    if len(pairs) == len(labels) == 1:
        return list(labels)
    return pairs


def _label_of(output, labels):
    children = output.get_children()
    for child in list(children) if children is not None else []:
        found = child.list_arguments()
        if found and labels.issuperset(found):
            return found[0]
    named = output.list_outputs()[0].rsplit("_output", 1)[0] + "_label"
    return named if named in labels else None


def update(
    metric: mx.metric.EvalMetric,
    pairs: Sequence[Optional[str]],
    labels: Dict[str, mx.nd.NDArray],
    outputs: Sequence[Tuple[str, mx.nd.NDArray]],
) -> None:
    """Count one batch.

    Parameters
    ----------
    metric : EvalMetric
    pairs : sequence of str or None
        What `pair_labels` says of the network.
    labels : dict of str to NDArray
        Real rows only.
    outputs : sequence of (str, NDArray)
        Names and values of the network's outputs, real rows in sample order.
    """
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for child in metric.metrics:
            update(child, pairs, labels, outputs)
        return
    with _told_by(metric):
        if metric.output_names is not None and metric.label_names is not None:
            metric.update_dict(labels, dict(outputs))
        else:
            metric.update(*_paired(*_asked_for(metric, pairs, outputs), labels))


@contextlib.contextmanager
def _told_by(metric):
    """Say which metric it is that does not like labels and outputs."""
    try:
        yield
    except MXLoopError:
        raise
    except ValueError as error:
        raise DataError(
            f"the metric {shown(repr(metric.name), 40)} cannot compare labels and outputs: "
            f"{shown(error, 110)}; choose a metric for them by eval_metric="
        ) from error


def _asked_for(metric, pairs, outputs):
    """The outputs, with their labels, that a metric names; all where it names none."""
    both = [
        (pair, output)
        for pair, output in zip(pairs, outputs)
        if metric.output_names is None or output[0] in metric.output_names
        if metric.label_names is None or pair in metric.label_names
    ]
    return [pair for pair, _ in both], [output for _, output in both]


def _paired(pairs, outputs, labels):
    if not any(pairs):
        return list(labels.values()), [value for _, value in outputs]
    chosen = [(labels[pair], value) for pair, (_, value) in zip(pairs, outputs) if pair in labels]
    return [label for label, _ in chosen], [value for _, value in chosen]


def leaves(metric: mx.metric.EvalMetric) -> List[mx.metric.EvalMetric]:
    """The metric itself and, where it is made of several, all of those."""
    inner = metric.metrics if isinstance(metric, mx.metric.CompositeEvalMetric) else []
    return [metric, *(leaf for child in inner for leaf in leaves(child))]


def named_values(metric: mx.metric.EvalMetric) -> List[Tuple[str, float]]:
    """Names and values; of several metrics of one name, the second is ``name_2`` and so on."""
    values: Dict[str, Any] = {}
    for name, value in metric.get_name_value():
        number, own = 1, name
        while own in values:
            number += 1
            own = f"{name}_{number}"
        values[own] = float(value)  # with NumPy 2 some are its scalars, which JSON does not take
    return list(values.items())


def check_object(metric: Any) -> None:
    """Raise ArgumentTypeError unless a metric is an object, which can add up over batches."""
    if not isinstance(metric, mx.metric.EvalMetric):
        raise ArgumentTypeError(
            f"metric is {shown(repr(metric))}; pass an object that adds up over the batches, as "
            "mxloop.metric.create('acc')"
        )


# Metrics that take the number of a class, and read probabilities of classes as such numbers.
HARD = (
    mx.metric.Accuracy,
    mx.metric.TopKAccuracy,
    mx.metric.F1,
    mx.metric.MCC,
    mx.metric.Perplexity,
    mx.metric.CrossEntropy,
    mx.metric.NegativeLogLikelihood,
)


def check_labels(metric: Any, soft: Dict[str, Tuple[int, ...]]) -> None:
    """Raise DataError if a metric wants class numbers of labels that are probabilities.

    Parameters
    ----------
    metric : EvalMetric
    soft : dict of str to tuple of int
        Shapes of the labels that give each class a value.
    """
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for child in metric.metrics:
            check_labels(child, soft)
    elif isinstance(metric, HARD):
        for name, shape in soft.items():
            raise DataError(
                f"label {name!r} has shape {shape}, the output has {shape[1]} classes; pass class "
                f"numbers of shape ({shape[0]},), as y.argmax(1), or a metric other than "
                f"{shown(repr(metric.name), 40)}"
            )
