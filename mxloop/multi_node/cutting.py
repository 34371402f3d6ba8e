"""A network cut into stages that follow each other."""

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError
from mxloop.validation import check_symbol, did_you_mean, shown

Tensor = Tuple[int, int]  # a node's number in the graph, and the number of its output


class Part(NamedTuple):
    """One stage of a network.

    Attributes
    ----------
    symbol : Symbol
    sources : list of str
        Variables that stand for what the stage before gives.
    """

    symbol: mx.sym.Symbol
    sources: List[str]


def cut(symbol: mx.sym.Symbol, cuts: Sequence[Any], inputs: Set[str]) -> List[Part]:
    """Cut a network behind some of its operators.

    Parameters
    ----------
    symbol : Symbol
    cuts : list of str, or of lists of str
        The operators' names, from the front to the back, one entry a cut. Where several values
        cross a cut, an entry lists them all.
    inputs : set of str
        Data and labels, which several stages may read.

    Returns
    -------
    list of Part
        One more than there are cuts; run one after the other they are the network.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a name is not known, or a value crosses a cut that does not name it.
    """
    check_symbol(symbol)
    if isinstance(cuts, str) or not isinstance(cuts, (list, tuple)):
        raise ArgumentTypeError(f"cuts is {shown(repr(cuts))}; pass a list of operators' names")
    graph = json.loads(symbol.tojson())
    outputs = _named_outputs(graph)
    borders = [[_tensor(name, outputs) for name in _listed(entry)] for entry in cuts]
    heads = [[(n, i) for _, (n, i) in border] for border in borders]
    heads.append([(n, i) for n, i, *_ in graph["heads"]])
    parts = [_part(graph, heads[i], borders[i - 1] if i else []) for i in range(len(heads))]
    _check_apart(graph, heads, borders, inputs)
    return parts


def _listed(entry):
    return [entry] if isinstance(entry, str) else list(entry)


def _named_outputs(graph) -> Dict[str, Tensor]:
    """Every value that an operator computes, by the name that MXNet gives it."""
    found: Dict[str, Tensor] = {}
    rows = graph["node_row_ptr"]
    for number, node in enumerate(graph["nodes"]):
        count = rows[number + 1] - rows[number]
        for i in range(count if node["op"] != "null" else 0):
            found[f"{node['name']}_output{i if count > 1 else ''}"] = (number, i)
    return found


def _tensor(name, outputs) -> Tuple[str, Tensor]:
    for known in (name, f"{name}_output", f"{name}_output0", f"{name}0"):
        if known in outputs:
            return known, outputs[known]
    plain = [each[: -len("_output")] for each in outputs if each.endswith("_output")]
    raise ArgumentError(
        f"cuts names {shown(repr(name))}, which is no operator of the network; "
        f"{did_you_mean(name, plain)}"
    )


def _part(graph, heads, border) -> Part:
    """The graph from one border to the next: what comes before becomes variables."""
    shift = len(border)
    variables = [{"op": "null", "name": name, "inputs": []} for name, _ in border]
    replaced = {tensor: number for number, (_, tensor) in enumerate(border)}

    def moved(tensor):
        node, output, *rest = tensor
        if (node, output) in replaced:
            return [replaced[node, output], 0, *rest]
        return [node + shift, output, *rest]

    nodes = [{**n, "inputs": [moved(each) for each in n["inputs"]]} for n in graph["nodes"]]
    made = {
        "nodes": variables + nodes,
        "arg_nodes": [*range(shift), *[each + shift for each in graph["arg_nodes"]]],
        "heads": [moved((n, i, 0)) for n, i in heads],
        "attrs": graph.get("attrs", {}),
    }
    return Part(mx.sym.load_json(json.dumps(made)), [name for name, _ in border])


def _check_apart(graph, heads, borders, inputs):
    """Raise ArgumentError if a value or a parameter belongs to two stages."""
    earlier: Dict[int, int] = {}
    for stage, tensors in enumerate(heads):
        before = {tensor for _, tensor in borders[stage - 1]} if stage else set()
        for number in _reached(graph, tensors, before):
            node = graph["nodes"][number]
            if node["op"] == "null" and node["name"] in inputs:
                continue
            if number in earlier:
                raise ArgumentError(
                    f"stages {earlier[number]} and {stage} both need {shown(repr(node['name']))}; "
                    + _mend(node)
                )
            earlier[number] = stage


def _mend(node):
    if node["op"] == "null":
        return "a parameter must belong to one stage: cut elsewhere"
    return "name all values that cross a cut, as in cuts=[['a', 'b']], or cut elsewhere"


def _reached(graph, tensors, before) -> List[int]:
    """Nodes that values are computed from, up to those before a border."""
    found: Dict[int, None] = {}
    waiting = [tuple(tensor) for tensor in tensors]
    while waiting:
        node, output = waiting.pop()
        if (node, output) in before or node in found:
            continue
        found[node] = None
        waiting += [(n, i) for n, i, *_ in graph["nodes"][node]["inputs"]]
    return list(found)
