"""Which labels a network's heads can take, read off its graph, and a look at each batch's."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from mxloop.compat import mx
from mxloop.errors import DataError

CLASSIFIERS = ("SoftmaxOutput", "Softmax", "SVMOutput")
REGRESSORS = ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")


class Rule(NamedTuple):
    """What a head takes: so many classes, but for the ignored label; or a value a class."""

    classes: int
    ignored: Optional[float]
    soft: bool = False


Rules = Dict[str, Rule]


def label_names(symbol: mx.sym.Symbol) -> List[str]:
    """Arguments that are labels: named so, or read by nothing but a loss as its second input."""
    nodes = json.loads(symbol.tojson())["nodes"]
    read, compared = set(), set()
    for node in nodes:
        loss = node["op"] in CLASSIFIERS + REGRESSORS
        for number, entry in enumerate(node["inputs"]):
            name = nodes[entry[0]]["name"]
            (compared if loss and number == 1 else read).add(name)
    return [
        name
        for name in symbol.list_arguments()
        if name.endswith("label") or name in compared - read
    ]


def class_rules(symbol: mx.sym.Symbol, shapes: Dict[str, tuple]) -> Rules:
    """Find the labels that number classes.

    Parameters
    ----------
    symbol : Symbol
    shapes : dict of str to tuple
        Of all inputs.

    Returns
    -------
    dict of str to Rule
        For each such label, the number of classes, the label that its head ignores, and whether
        its shape is the output's, so that MXNet takes its values for probabilities.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    internals = symbol.get_internals()
    rules: Rules = {}
    for node in nodes:
        attrs = node.get("attrs", {})
        label = _variable(nodes, node["inputs"][1]) if node["op"] in CLASSIFIERS else None
        if label is not None and attrs.get("preserve_shape") != "True":
            head = internals[f"{node['name']}_output"]
            own = {n: s for n, s in shapes.items() if n in head.list_arguments()}
            _, found, _ = head.infer_shape_partial(**own)
            ignores = attrs.get("use_ignore") in ("True", "1")
            ignored = float(attrs.get("ignore_label", -1)) if ignores else None
            rules.update(_rule(label, found, attrs, ignored, shapes.get(label)))
    return rules


def _rule(label, shapes, attrs, ignored, own):
    shape = shapes[0] if shapes else ()
    if len(shape) < 2:
        return {}
    many = attrs.get("multi_output") in ("True", "1")
    classes = shape[1] if many else int(np.prod(shape[1:]))
    return {label: Rule(classes, ignored, tuple(shape) == own)}


def check_shapes(symbol: mx.sym.Symbol, shapes: Dict[str, tuple]) -> None:
    """Raise DataError if a label that numbers the rows' classes has more than that one axis.

    MXNet's own error comes from its shape inference, and does not tell how to mend it.

    Parameters
    ----------
    symbol : Symbol
    shapes : dict of str to tuple
        Of all inputs.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    internals = symbol.get_internals()
    for node in nodes:
        label = nodes[node["inputs"][1][0]]["name"] if node["op"] in CLASSIFIERS else None
        if len(shapes.get(label, ())) > 1:
            head = internals[f"{node['name']}_output"]
            own = {n: s for n, s in shapes.items() if n in head.list_arguments() and n != label}
            _check_flat(label, shapes[label], _output_shape(head, own))


def _output_shape(head, shapes):
    try:
        _, found, _ = head.infer_shape_partial(**shapes)
    except RuntimeError:  # binding will tell what is wrong with the others
        return ()
    return tuple(found[0]) if found else ()


def _check_flat(label, came, output):
    if len(output) == 2 and came != output and 0 not in output:
        mend = "flatten it: labels.reshape(-1)" if came[1:] == (1,) else "pass class numbers"
        raise DataError(
            f"label {label!r} has shape {came}, and the output has {output[1]} classes; its shape "
            f"must be ({came[0]},): {mend}"
        )


def _variable(nodes, entry):
    """The variable behind an input, through reshapes and the like, or None."""
    node = nodes[entry[0]]
    while node["op"] != "null" and len(node["inputs"]) == 1:
        node = nodes[node["inputs"][0][0]]
    return node["name"] if node["op"] == "null" else None


def at_hand(data: Any) -> Optional[List[np.ndarray]]:
    """All labels of an iterator over arrays, in the order of its `provide_label`; else None."""
    if type(data) is mx.io.NDArrayIter:
        arrays = [array for _, array in data.label]
        dense = all(type(array) is mx.nd.NDArray for array in arrays)
        return [array.asnumpy() for array in arrays] if dense else None
    return getattr(data, "labels_at_hand", None)


def check(descs: Sequence[Any], arrays: Sequence[Any], rules: Rules) -> None:
    """Raise DataError if a label is not finite, or numbers no class of its head.

    Parameters
    ----------
    descs : sequence of DataDesc
    arrays : list of NDArray or ndarray
        Real rows; this waits for them, not for the network.
    rules : dict
        As `class_rules` gives them.
    """
    for desc, array in zip(descs, arrays):
        values = array if isinstance(array, np.ndarray) else array.asnumpy()
        if desc.name in rules:
            _check_classes(desc.name, values, rules[desc.name])
        elif values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(
                f"label {desc.name!r} holds NaN or infinite values; labels must be finite: "
                "clean the data"
            )


def _check_classes(name, values, rule):
    classes, ignored = rule.classes, rule.ignored
    # NaN fails every comparison, so it is among the bad ones.
    good = (values >= 0) & (values < classes)
    if not rule.soft:
        good &= values == np.floor(values)  # MXNet would cut 1.9 down to 1
    if ignored is not None:
        good |= values == ignored
    if not good.all():
        raise DataError(
            f"label {name!r} holds {values[~good].flat[0]:g}; its output has {classes} classes, "
            f"0 to {classes - 1}: correct the labels or the number of outputs"
        )
