"""Which labels a network's heads can take, read off its graph, and a look at each batch's."""

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxloop.compat import mx
from mxloop.errors import DataError

CLASSIFIERS = ("SoftmaxOutput", "Softmax", "SVMOutput")
REGRESSORS = ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
Rules = Dict[str, Tuple[int, Optional[float]]]


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
    dict of str to (int, float or None)
        For each such label, the number of classes, and the label that its head ignores.
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
            rules.update(_rule(label, found, attrs, ignored))
    return rules


def _rule(label, shapes, attrs, ignored):
    shape = shapes[0] if shapes else ()
    if len(shape) < 2:
        return {}
    many = attrs.get("multi_output") in ("True", "1")
    return {label: (shape[1] if many else int(np.prod(shape[1:])), ignored)}


def _variable(nodes, entry):
    """The variable behind an input, through reshapes and the like, or None."""
    node = nodes[entry[0]]
    while node["op"] != "null" and len(node["inputs"]) == 1:
        node = nodes[node["inputs"][0][0]]
    return node["name"] if node["op"] == "null" else None


def check(descs: Sequence[Any], arrays: List[mx.nd.NDArray], rules: Rules) -> None:
    """Raise DataError if a label is not finite, or numbers no class of its head.

    Parameters
    ----------
    descs : sequence of DataDesc
    arrays : list of NDArray
        Real rows of one batch; this waits for them, not for the network.
    rules : dict
        As `class_rules` gives them.
    """
    for desc, array in zip(descs, arrays):
        values = array.asnumpy()
        if desc.name in rules:
            _check_classes(desc.name, values, *rules[desc.name])
        elif values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(
                f"label {desc.name!r} holds NaN or infinite values; labels must be finite: "
                "clean the data"
            )


def _check_classes(name, values, classes, ignored):
    # NaN fails every comparison, so it is among the bad ones.
    good = (values >= 0) & (values < classes)
    if ignored is not None:
        good |= values == ignored
    if not good.all():
        raise DataError(
            f"label {name!r} holds {values[~good].flat[0]:g}; its output has {classes} classes, "
            f"0 to {classes - 1}: correct the labels or the number of outputs"
        )
