"""MXNet's file of a network (``-symbol.json``), checked before MXNet's C++ reader sees it.

That reader follows every index of a file on trust: an input or output that is not there, or an
operator with too few inputs, is a crash at loading or at the first use. Here the graph is checked
first, and what MXNet gets is written anew from what was checked.

A graph is ``nodes``, each with ``op``, ``name``, ``attrs`` and ``inputs``, which are (node, output,
version); ``arg_nodes``, the places of the variables; and ``heads``, the outputs of the whole.
"""

import ctypes
import json
import math
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from mxloop import strict_json
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.params_format import ending
from mxloop.strict_json import LONGEST_NUMBER, Flaw
from mxloop.validation import did_you_mean, one_line, shown

Json = Dict[str, Any]

VARIABLE = "null"
GRAPH_KEYS = {"nodes", "arg_nodes", "heads", "node_row_ptr", "attrs"}
NODE_KEYS = {"op", "name", "inputs", "attrs", "subgraphs", "control_deps"}
OLD_NODE_KEYS = {"attr", "param", "backward_source_id"}  # up to MXNet 0.12
FIRST_WITH_AUX_INPUTS = 900  # before 0.9.0 files left out auxiliary states, and MXNet adds them
FIRST_VERSION_TO_COME = 1_000_000  # MXNet 1.9 would not parse the attributes of such a file
SUBGRAPHS = {  # how many graphs these operators hold; all others hold none
    "_foreach": 1,
    "_while_loop": 2,
    "_cond": 3,
    "_sg_mkldnn_conv": 1,
    "_sg_mkldnn_fully_connected": 1,
}
# Attributes by which MXNet makes inputs and outputs, whatever their number.
INPUT_SIZES = {"num_args", "num_arrays", "num_tensors", "num_weights"}
OUTPUT_SIZES = {"num_outputs", "num_out_data", "sections"}
MOST_OUTPUTS_OF_ONE = 99_999
MOST_OUTPUTS = 2**20  # of all operators together
MOST_DEPTH = 16  # of graphs within graphs
# What follows an attribute's own name, or is it, in old files: MXNet keeps these beside the
# operator's parameters.
NOT_PARAMETERS = re.compile(
    r"(.+_)?(ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage|profiler_scope)|__.*"
)


def loads(text: Any, where: str = "the file") -> mx.sym.Symbol:
    """Make the network that a symbol file describes.

    Parameters
    ----------
    text : str or bytes
    where : str
        What a message calls the text.

    Raises
    ------
    DataError
        If the text is no sound graph, or MXNet does not take it.
    """
    checked = check(text, where)
    with one_line(f"load {ending(where)}"):
        return mx.sym.load_json(checked)


def check(text: Any, where: str = "the file") -> str:
    """Raise an error unless the text describes a sound graph of operators that are known here.

    Returns
    -------
    str
        The same graph, as MXNet may read it.

    Raises
    ------
    DataError
    """
    try:
        return _checked(text)
    except Flaw as flaw:
        raise DataError(
            f"{ending(where)} is no sound symbol file of MXNet: {shown(flaw, 100)}; "
            "take another copy of it, or save it anew"
        ) from flaw.__cause__


def _need(truth, flaw):
    if not truth:
        raise Flaw(flaw)


def _checked(text):
    graph = strict_json.loads(text)
    _Graphs().check(graph, 0)
    clean = json.dumps(graph, ensure_ascii=False)
    try:
        clean.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Flaw("it holds text that UTF-8 cannot write") from error
    return clean


# The graph


class _Graphs:
    """Checks a graph and the graphs within it."""

    def __init__(self) -> None:
        self.known = set(_operators())
        self.version = 0
        self.outputs = 0
        self.told: Dict[Any, Tuple[int, int]] = {}

    def check(self, graph: Json, depth: int) -> None:
        """Raise a flaw unless the graph is sound."""
        _need(depth <= MOST_DEPTH, f"graphs are nested more than {MOST_DEPTH} deep")
        _need_keys(graph, "the graph", {"nodes", "arg_nodes", "heads"}, GRAPH_KEYS)
        if depth == 0:
            self.version = _version(graph.get("attrs", {}))
        numbers: List[int] = []  # of the outputs of each node so far
        for place, node in enumerate(_list(graph["nodes"], "nodes")):
            numbers.append(self._node(place, node, numbers, depth))
        variables = [i for i, node in enumerate(graph["nodes"]) if node["op"] == VARIABLE]
        _need(graph["arg_nodes"] == variables, "'arg_nodes' are not the places of its variables")
        _need(_list(graph["heads"], "heads"), "it has no outputs ('heads' is empty)")
        _entries(graph["heads"], numbers, "the heads")
        _row_pointers(graph.get("node_row_ptr"), len(numbers))

    def _node(self, place, node, numbers, depth):
        """Check a node; how many outputs it has."""
        _need_keys(node, f"node {place}", {"op", "name", "inputs"}, NODE_KEYS | OLD_NODE_KEYS)
        op, name = node["op"], node["name"]
        _need(isinstance(op, str) and isinstance(name, str), f"node {place} has no name or no 'op'")
        what = f"node {place} ({shown(name, 30)})"
        _entries(_list(node["inputs"], f"inputs of {what}"), numbers, what)
        attributes = _attributes(node, what)
        _earlier_nodes(node.get("control_deps", []), place, what)
        graphs = _list(node.get("subgraphs", []), f"subgraphs of {what}")
        _need(
            len(graphs) == SUBGRAPHS.get(op, 0),
            f"{what} holds {len(graphs)} graphs; {op} has {SUBGRAPHS.get(op, 0)}",
        )
        for inner in graphs:
            self.check(inner, depth + 1)
        if op == VARIABLE:
            _need(not node["inputs"], f"{what} is a variable with inputs")
            return 1
        return self._operator(what, node, attributes)

    def _operator(self, what, node, attributes):
        """Check an operator's name and number of inputs; how many outputs it has."""
        op, inputs = node["op"], len(node["inputs"])
        if op not in self.known:
            raise Flaw(f"{what} is {shown(repr(op), 30)}; {did_you_mean(op, self.known)}")
        least, outputs = self._numbers(what, op, attributes, node)
        most = least
        if self.version < FIRST_WITH_AUX_INPUTS:
            least = min(least, inputs)
        _need(least <= inputs <= most, f"{what} has {inputs} inputs; this {op} takes {most}")
        self.outputs += outputs
        _need(self.outputs <= MOST_OUTPUTS, f"its nodes have more than {MOST_OUTPUTS} outputs")
        return outputs

    def _numbers(self, what, op, attributes, node):
        """How many inputs and outputs MXNet gives such an operator."""
        most_inputs = len(node["inputs"]) + max(SUBGRAPHS.values())
        for sizes, most in ((INPUT_SIZES, most_inputs), (OUTPUT_SIZES, MOST_OUTPUTS_OF_ONE)):
            for name in sizes & attributes.keys():
                told = f"{what} has {name}={shown(attributes[name], 20)}"
                _need(_size(attributes[name]) <= most, f"{told}; at most {most} fit it")
        try:
            if op in SUBGRAPHS:
                return _numbers_with_graphs(what, op, attributes, node)
            key = (op, len(node["inputs"]), *sorted(attributes.items()))
            if key not in self.told:
                self.told[key] = _numbers_of(op, attributes, len(node["inputs"]))
            return self.told[key]
        except mx.base.MXNetError as error:
            raise Flaw(f"{what}: {_reason(error)}") from error


def _reason(error):
    """MXNet's sentence, without the C++ condition before it and the operator's text behind it."""
    line = str(error).strip().splitlines()[-1]
    told = re.sub(r"^.*?Check failed: .*?: (?=[A-Z])|^\w*Error: ", "", line)
    told = told.partition(", in operator")[0]
    return told + (" (register it first)" if "custom operator" in told else "")


def _size(text):
    """The number in a text as MXNet may understand it, at least; no size is below zero."""
    digits = "".join(re.findall("[0-9]", text[:1000]))
    return math.inf if "-" in text or len(digits) > LONGEST_NUMBER else int(digits or 0)


def _list(value, what):
    _need(isinstance(value, list), f"{what} is {shown(repr(value), 30)}, not a list")
    return value


def _is_index(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _need_keys(value, what, needed, known):
    _need(isinstance(value, dict), f"{what} is {shown(repr(value), 30)}, not an object")
    missing, unknown = needed - value.keys(), value.keys() - known
    _need(not missing, f"{what} has no {sorted(missing)}")
    _need(not unknown, f"{what} has {shown(sorted(unknown), 40)}, which MXNet does not know")


def _version(attributes):
    """The version of MXNet that wrote a graph, as 10901; files before 0.9 do not tell."""
    _need(isinstance(attributes, dict), "'attrs' is not an object")
    for key, value in attributes.items():
        _need(
            isinstance(value, list) and len(value) == 2 and isinstance(value[0], str),
            f"'attrs' gives {shown(repr(key), 30)} no kind and value",
        )
    kind, version = attributes.get("mxnet_version", ["int", 800])
    _need(
        kind == "int" and _is_index(version) and version < FIRST_VERSION_TO_COME,
        f"it was written by MXNet {shown(version, 30)}; 1.9 and older can be read",
    )
    return version


def _entries(entries, numbers, what):
    """Inputs and heads are outputs of nodes that came before."""
    for entry in entries:
        _need(
            isinstance(entry, list) and len(entry) in (2, 3) and all(map(_is_index, entry)),
            f"{what} refers to {shown(entry, 30)}; it must be [node, output, version]",
        )
        node, output = entry[:2]
        _need(
            node < len(numbers), f"{what} refers to node {node}, and {len(numbers)} nodes precede"
        )
        _need(
            output < numbers[node],
            f"{what} refers to output {output} of node {node}, which has {numbers[node]}",
        )


def _earlier_nodes(places, place, what):
    _need(
        isinstance(places, list) and all(_is_index(p) and p < place for p in places),
        f"control_deps of {what} are not nodes that precede it",
    )


def _attributes(node, what):
    """A node's attributes, also where an old file keeps them."""
    merged: Dict[str, str] = {}
    _need(not {"attr", "attrs"} <= node.keys(), f"{what} has both 'attr' and 'attrs'")
    for key in ("attr", "attrs", "param"):
        values = node.get(key, {})
        _need(
            isinstance(values, dict) and all(isinstance(v, str) for v in values.values()),
            f"{key} of {what} are not text by name",
        )
        merged.update(values)
    return merged


def _row_pointers(pointers, nodes):
    if pointers is not None:
        rising = isinstance(pointers, list) and all(map(_is_index, pointers))
        _need(
            rising and len(pointers) == nodes + 1 and pointers == sorted(pointers),
            "'node_row_ptr' does not rise with the nodes",
        )


# What MXNet says of operators


def _operators():
    size, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    _call("MXListAllOpNames", ctypes.byref(size), ctypes.byref(names))
    listed = (names[i].decode() for i in range(size.value))
    # What MXNet makes by itself when it binds relies on things that no file tells.
    return [name for name in listed if not re.search("_backward|^_CachedOp", name)]


def _numbers_of(op, attributes, inputs):
    """Make one such operator on variables, and look how many inputs and outputs it has."""
    made = _atom(op, attributes)
    variables = [mx.sym.var(f"input{i}") for i in range(inputs)]
    handles = (ctypes.c_void_p * inputs)(*[variable.handle for variable in variables])
    _call("MXSymbolCompose", made.handle, b"made", ctypes.c_uint(inputs), None, handles)
    nodes = json.loads(made.tojson())["nodes"]
    return len(nodes[-1]["inputs"]), len(made)


def _atom(op, attributes):
    """An operator without its inputs, as a Symbol."""
    wanted = {k: v for k, v in attributes.items() if not NOT_PARAMETERS.fullmatch(k)}
    creator, handle = ctypes.c_void_p(), ctypes.c_void_p()
    _call("NNGetOpHandle", op.encode(), ctypes.byref(creator))
    _call(
        "MXSymbolCreateAtomicSymbol",
        creator,
        ctypes.c_uint(len(wanted)),
        _strings(wanted),
        _strings(wanted.values()),
        ctypes.byref(handle),
    )
    return mx.sym.Symbol(handle)


def _strings(values):
    encoded = [value.encode("utf-8", "replace") for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _call(function, *arguments):
    mx.base.check_call(getattr(mx.base._LIB, function)(*arguments))


# Operators that hold graphs


class _Held(NamedTuple):
    """An operator that holds graphs: its numbers of inputs and outputs, and theirs."""

    inputs: int
    outputs: int
    variables: List[int]
    heads: List[int]
    locations: Dict[str, List[int]]
    attributes: Dict[str, str]


def _numbers_with_graphs(what, op, attributes, node):
    inputs, graphs = len(node["inputs"]), node["subgraphs"]
    variables = [len(graph["arg_nodes"]) for graph in graphs]
    if op not in _FIT:
        return _numbers_of_fused(what, inputs, variables, attributes)
    outputs = len(_atom(op, attributes))
    heads = [len(graph["heads"]) for graph in graphs]
    locations = _locations(attributes)
    held = _Held(inputs, outputs, variables, heads, locations, attributes)
    _need(_FIT[op](held), f"the inputs or outputs of {what} do not fit the graphs that it holds")
    _need(
        _size(attributes["num_args"]) == inputs + len(graphs),
        f"{what} has num_args={attributes['num_args']}, and {inputs} inputs",
    )
    return inputs, outputs


def _numbers_of_fused(what, inputs, variables, attributes):
    """What MKLDNN made of several operators; it reads its graph, and checks that, as it loads."""
    _need(inputs >= variables[0] > 0, f"{what} has fewer inputs than the graph that it holds")
    yes = ("true", "True", "1")
    quantized = attributes.get("quantized") in yes
    return inputs, 3 if quantized and attributes.get("enable_float_output") not in yes else 1


def _locations(attributes):
    return {
        key: [int(number) for number in re.findall(r"-?\d+", value[:100_000])]
        for key, value in attributes.items()
        if key.endswith("_locs")
    }


def _below(numbers: Sequence[int], limit: int) -> bool:
    return all(0 <= number < limit for number in numbers)


def _foreach_fits(held):
    places = (
        held.locations["in_data_locs"]
        + held.locations["in_state_locs"]
        + held.locations["remain_locs"]
    )
    states = len(held.locations["in_state_locs"])
    return (
        held.variables == [held.inputs]
        and held.heads == [held.outputs]
        and sorted(places) == list(range(held.inputs))
        and _size(held.attributes["num_out_data"]) + states == held.outputs
    )


def _while_loop_fits(held):
    condition, body = held.locations["cond_input_locs"], held.locations["func_input_locs"]
    loop = held.locations["func_var_locs"]
    return (
        held.variables == [len(condition), len(body)]
        and held.heads == [1, held.outputs]
        and _below(condition + body, held.inputs)
        and _below(loop, len(body))
        and _size(held.attributes["num_out_data"]) + len(loop) == held.outputs
    )


def _cond_fits(held):
    places = [held.locations[f"{branch}_input_locs"] for branch in ("cond", "then", "else")]
    return (
        held.variables == [len(place) for place in places]
        and held.heads == [1, held.outputs, held.outputs]
        and all(_below(place, held.inputs) for place in places)
    )


_FIT = {"_foreach": _foreach_fits, "_while_loop": _while_loop_fits, "_cond": _cond_fits}
