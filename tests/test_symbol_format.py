"""symbol_format.py: what MXNet writes loads, what would crash it is one line."""

import copy
import json
import subprocess
import sys

import fuzz_files
import nets
import numpy as np
import pytest

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.symbol_format import check, loads


def gluon_net(name):
    return mx.gluon.model_zoo.vision.get_model(name)(mx.sym.var("data"))


def unrolled():
    outputs, _ = mx.rnn.LSTMCell(8).unroll(5, mx.sym.var("data"), merge_outputs=True)
    return outputs


def nested_loops():
    data, state = mx.sym.var("data"), mx.sym.var("state")

    def outer(x, states):
        return mx.sym.contrib.foreach(lambda y, total: (y + total, total + 1), x, states)

    return mx.sym.contrib.foreach(outer, data, state)[0]


def with_attributes():
    data = mx.sym.var("data", lr_mult=2, shape=(3, 4), init=mx.init.One(), dtype="float16")
    return mx.sym.FullyConnected(data, num_hidden=3, attr={"__ctx_group__": "dev1"})


def quantized():
    net = nets.conv_bn()
    args, aux = nets.params(net, data=(4, 1, 12, 12), softmax_label=(4,))
    return mx.contrib.quantization.quantize_model(
        net, args, aux, ctx=mx.cpu(), calib_mode="none", quantized_dtype="int8"
    )[0]


ZOO = {
    "mlp": nets.mlp,
    "lenet": nets.lenet,
    "conv_bn": nets.conv_bn,
    "internals": lambda: nets.conv_bn().get_internals(),
    "fused by MKLDNN": lambda: nets.conv_bn().get_backend_symbol("MKLDNN"),
    "fused to quantize": lambda: nets.conv_bn().get_backend_symbol("MKLDNN_QUANTIZE"),
    "quantized": quantized,
    "unrolled": unrolled,
    "nested loops": nested_loops,
    "attributes": with_attributes,
    "one variable": lambda: mx.sym.var("data"),
    "no input": lambda: mx.sym.zeros((2, 3)) + mx.sym.random.normal(0, 1, shape=(2, 3)),
    "many inputs": lambda: mx.sym.add_n(*[mx.sym.var(f"x{i}") for i in range(200)]),
    "many outputs": lambda: mx.sym.split(mx.sym.var("data"), num_outputs=3000)[2999],
    "split": lambda: mx.sym.split_v2(mx.sym.var("data"), (1, 3), axis=1)[1],
    "named oddly": lambda: mx.sym.relu(mx.sym.var('dätä "\\ \n日'), name="r"),
}
OTHERS = fuzz_files.symbols(mx)
ZOO.update({f"other {i}": lambda i=i: OTHERS[i] for i in range(len(OTHERS))})
GLUON = ["resnet18_v2", "mobilenetv2_0.25", "squeezenet1.0", "densenet121", "inceptionv3"]
ZOO.update({name: lambda name=name: gluon_net(name) for name in GLUON})


@pytest.mark.parametrize("name", ZOO)
def test_a_real_network_loads_as_mxnet_loads_it(name):
    text = ZOO[name]().tojson()
    assert loads(text).tojson() == mx.sym.load_json(text).tojson()


def test_a_loaded_network_computes_the_same():
    net = nets.conv_bn()
    args, aux = nets.params(net, data=(4, 1, 12, 12), softmax_label=(4,))
    x = {"data": nets.samples(4, (1, 12, 12))[0]}
    found, wanted = (
        nets.fresh_outputs(n, args, aux, x) for n in (loads(net.tojson().encode()), net)
    )
    np.testing.assert_array_equal(found, wanted)


def test_a_file_of_mxnet_0_8_loads():
    net = loads(fuzz_files.old_symbol())
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.tojson() == mx.sym.load_json(fuzz_files.old_symbol().decode()).tojson()


def test_text_escaped_by_another_program_loads():
    """MXNet's own reader does not know the escapes that Python writes."""
    text = json.dumps(json.loads(mx.sym.var("dätä").tojson()))
    assert "\\u00e4" in text and loads(text).list_arguments() == ["dätä"]


def test_a_deep_network_loads():
    nodes = [{"op": "null", "name": "data", "inputs": []}]
    nodes += [{"op": "relu", "name": f"r{i}", "inputs": [[i, 0, 0]]} for i in range(20000)]
    text = json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[20000, 0, 0]]})
    assert loads(text).list_arguments() == ["data"]


# --- Broken files -------------------------------------------------------------------------------


def edited(name, edit):
    graph = json.loads(ZOO[name]().tojson())
    edit(graph)
    return json.dumps(graph)


def node_of(graph, op):
    return next(node for node in graph["nodes"] if node["op"] == op)


def put(*path):
    """An edit that sets the value at a path, as ("heads", 0, 1, 7); a str after nodes is an op."""

    def edit(graph):
        holder = graph
        for key in path[:-2]:
            by_op = holder is graph["nodes"] and isinstance(key, str)
            holder = node_of(graph, key) if by_op else holder[key]
        holder[path[-2]] = path[-1]

    return edit


def drop(*path):
    def edit(graph):
        holder = graph
        for key in path[:-1]:
            by_op = holder is graph["nodes"] and isinstance(key, str)
            holder = node_of(graph, key) if by_op else holder[key]
        del holder[path[-1]]

    return edit


def self_reference(graph):
    node = node_of(graph, "FullyConnected")
    node["inputs"][0][0] = graph["nodes"].index(node)


EDITS = {
    "null": (lambda: "null", "not an object"),
    "empty": (lambda: " ", "empty"),
    "not JSON": (lambda: "symbol", "not JSON"),
    "truncated": (lambda: nets.mlp().tojson()[:300], "not JSON"),
    "not UTF-8": (lambda: b'{"nodes": "\xff"}', "UTF-8"),
    "lone surrogate": (lambda: edited("mlp", put("nodes", 0, "name", "\ud800")), "UTF-8"),
    "no nodes": (lambda: edited("mlp", drop("nodes")), "has no ['nodes']"),
    "nodes no list": (lambda: edited("mlp", put("nodes", {})), "not a list"),
    "unknown op": (
        lambda: edited("mlp", put("nodes", 1, "op", "Flaten")),
        "did you mean 'flatten'",
    ),
    "gradient op": (
        lambda: edited("mlp", put("nodes", 1, "op", "_backward_copy")),
        "'_backward_copy'",
    ),
    "node id": (lambda: edited("mlp", put("nodes", "FullyConnected", "inputs", 0, 0, 99)), "99"),
    "negative id": (lambda: edited("mlp", put("nodes", "Flatten", "inputs", 0, 0, -1)), "[-1"),
    "output index": (
        lambda: edited("mlp", put("nodes", "FullyConnected", "inputs", 0, 1, 1)),
        "output 1 of node",
    ),
    "hidden output": (
        lambda: edited("conv_bn", put("nodes", "Activation", "inputs", 0, 1, 1)),
        "output 1",
    ),
    "slice output": (lambda: edited("split", put("heads", 0, 1, 3)), "output 3 of node 1"),
    "head": (lambda: edited("mlp", put("heads", 0, 0, 1000)), "node 1000"),
    "head index": (lambda: edited("mlp", put("heads", 0, 1, 5)), "output 5"),
    "no heads": (lambda: edited("mlp", put("heads", [])), "no outputs"),
    "cycle": (lambda: edited("mlp", self_reference), "precede"),
    "arg nodes": (lambda: edited("mlp", put("arg_nodes", 0, 50)), "arg_nodes"),
    "too many inputs": (
        lambda: edited("mlp", lambda g: node_of(g, "Flatten")["inputs"].append([0, 0, 0])),
        "requires 1, provided 2",
    ),
    "no inputs": (
        lambda: edited("conv_bn", put("nodes", "BatchNorm", "inputs", [])),
        "takes 5",
    ),
    "input lost": (
        lambda: edited("conv_bn", drop("nodes", "BatchNorm", "inputs", 4)),
        "4 inputs",
    ),
    "bad attribute": (
        lambda: edited("mlp", put("nodes", "Activation", "attrs", "act_type", "rlu")),
        "Invalid Input: 'rlu'",
    ),
    "attribute no text": (
        lambda: edited("mlp", put("nodes", "Activation", "attrs", "act_type", 3)),
        "not text",
    ),
    "huge number of outputs": (
        lambda: edited("split", put("nodes", 1, "attrs", {"sections": "2147483647"})),
        "sections=2147483647",
    ),
    "huge SliceChannel": (
        lambda: edited("many outputs", put("nodes", 1, "attrs", "num_outputs", "2000000000")),
        "num_outputs=2000000000",
    ),
    "row pointers": (lambda: edited("mlp", put("node_row_ptr", [0, 5, 2])), "node_row_ptr"),
    "future": (lambda: edited("mlp", put("attrs", "mxnet_version", ["int", 2000000])), "2000000"),
    "version no number": (
        lambda: edited("mlp", put("attrs", "mxnet_version", ["list_int", [1]])),
        "[1]",
    ),
    "key twice": (lambda: '{"nodes": [], "nodes": []}', "twice"),
    "long number": (lambda: '{"nodes": ' + "9" * 10000 + "}", "too large"),
    "NaN": (lambda: '{"nodes": NaN}', "NaN"),
    "nested": (lambda: "[" * 100000, "nested"),
    "bomb": (lambda: '{"nodes": [' + "{}," * 3_000_000, "memory"),
    "subgraphs of none": (
        lambda: edited("mlp", put("nodes", "Flatten", "subgraphs", [{}])),
        "holds 1 graphs",
    ),
    "foreach without graph": (
        lambda: edited("nested loops", put("nodes", "_foreach", "subgraphs", [])),
        "_foreach has 1",
    ),
    "graph inside": (
        lambda: edited("nested loops", put("nodes", "_foreach", "subgraphs", 0, "heads", 0, 0, 77)),
        "node 77",
    ),
    "locations": (
        lambda: edited("nested loops", put("nodes", "_foreach", "attrs", "in_state_locs", "[9]")),
        "do not fit",
    ),
    "negative number of data": (
        lambda: edited("nested loops", put("nodes", "_foreach", "attrs", "num_out_data", "-1")),
        "num_out_data=-1",
    ),
    "fused, no inputs": (
        lambda: edited("fused by MKLDNN", put("nodes", "_sg_mkldnn_conv", "inputs", [])),
        "fewer inputs",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_broken_file_is_one_line(case):
    make, told = EDITS[case]
    with pytest.raises(DataError) as caught:
        loads(make(), "net-symbol.json")
    message = nets.one_line(caught)
    assert told in message and "net-symbol.json" in message, message


def test_graphs_within_graphs_have_an_end():
    graph = json.loads(nested_loops().tojson())
    for _ in range(30):
        outer = copy.deepcopy(graph)
        node_of(outer, "_foreach")["subgraphs"] = [graph]
        graph = outer
    with pytest.raises(DataError) as caught:
        loads(json.dumps(graph))
    nets.one_line(caught)


def test_an_operator_that_nobody_registered_is_named():
    text = edited("mlp", put("nodes", 1, "op", "Custom"))
    text = text.replace('"op": "Custom", ', '"op": "Custom", "attrs": {"op_type": "mine"}, ')
    with pytest.raises(DataError) as caught:
        check(text)
    assert "mine" in nets.one_line(caught)


@pytest.mark.parametrize("version", [10901, 10500, 11000])
def test_versions_near_this_one_load(version):
    net = loads(edited("mlp", put("attrs", "mxnet_version", ["int", version])))
    assert net.list_arguments() == nets.mlp().list_arguments()


def test_no_operator_crashes_when_its_inputs_are_counted():
    """Each is tried without attributes, in a child: some refuse, none may end the process."""
    code = (
        "from mxloop import symbol_format as s\n"
        "from mxloop.compat import mx\n"
        "for op in s._operators():\n"
        "    for inputs in () if op in s.SUBGRAPHS else range(3):\n"
        "        try: s._numbers_of(op, {}, inputs)\n"
        "        except mx.base.MXNetError: pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("kind", ["symbol", "attributes"])
def test_mutations_come_to_a_load_or_one_line(kind):
    counts, bad = fuzz_files.fuzz(kind, 300, seed=1, with_use=True)
    assert not bad and sum(counts.values()) == 300 and counts["loaded"] > 20
