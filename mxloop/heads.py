"""What a network predicts, without the losses that it is trained by."""

import json
from typing import Dict, List, Tuple

from mxloop.compat import mx
from mxloop.labels import label_names

# A head that a loss ends in -> the operator that computes the same prediction without labels.
INFERENCE = {
    "SoftmaxOutput": "softmax",
    "Softmax": "softmax",
    "LogisticRegressionOutput": "sigmoid",
}
PASSED_ON = ("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput", "MakeLoss", "BlockGrad")


def without_losses(symbol: mx.sym.Symbol) -> Tuple[mx.sym.Symbol, List[int]]:
    """Replace loss heads by what they predict, and tell which outputs need no labels then.

    Parameters
    ----------
    symbol : Symbol

    Returns
    -------
    symbol : Symbol
        All outputs; parameters keep their names.
    predictions : list of int
        Numbers of the outputs that can be computed without labels.
    """
    made = mx.sym.load_json(json.dumps(_replaced(json.loads(symbol.tojson()))))
    labels = set(label_names(symbol))
    return made, [i for i, out in enumerate(made) if not labels & set(out.list_arguments())]


def _replaced(graph):
    """The graph with other heads; nodes that nothing reads any more fall away when it is loaded."""
    passed: Dict[int, list] = {}  # a node that only passes its input on -> that input
    for number, node in enumerate(graph["nodes"]):
        node["inputs"] = [passed.get(entry[0], entry) for entry in node["inputs"]]
        if node["op"] in PASSED_ON:
            passed[number] = node["inputs"][0]
        elif node["op"] in INFERENCE:
            node["attrs"] = _attributes(node["op"], node.get("attrs", {}))
            node["op"] = INFERENCE[node["op"]]
            node["inputs"] = node["inputs"][:1]
    graph["heads"] = [passed.get(entry[0], entry) for entry in graph["heads"]]
    return graph


def _attributes(op, attrs):
    if INFERENCE[op] != "softmax":
        return {}
    return {"axis": "1" if attrs.get("multi_output") in ("True", "1") else "-1"}


def predictions(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """The network without outputs that need labels, as losses beside predictions do.

    One whose outputs all need them, or none, stays as it is.
    """
    _, kept = without_losses(symbol)
    whole = len(symbol.list_outputs())
    return mx.sym.Group([symbol[i] for i in kept]) if 0 < len(kept) < whole else symbol
