"""states_format.py, stock_states.py: states come back exactly, and no file runs code."""

import ast
import collections
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys

import fuzz_files
import nets
import numpy as np
import pytest

import mxloop
from mxloop import optimizer, params_format, strict_json
from mxloop.compat import mx
from mxloop.errors import DataError, MXLoopError
from mxloop.states_format import (
    HEADER,
    convert_stock_states,
    decode_states,
    encode_states,
    is_pickle,
    read_stock_states,
)

OPTIMIZERS = [
    "sgd",
    "nag",
    "adam",
    "rmsprop",
    "adagrad",
    "adadelta",
    "ftrl",
    "ftml",
    "lamb",
    "dcasgd",
]
OPTIMIZERS += ["adamax", "nadam", "signum", "lars", "lbsgd", "sgld"]


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, mx.nd.NDArray):
        assert found.dtype == wanted.dtype and found.stype == wanted.stype
        np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            assert_same(a, b)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    else:
        assert found == wanted


def updater_of(name, steps=3, dtype="float32", **keywords):
    """An updater that has updated two parameters."""
    made = mx.optimizer.create(name, param_idx2name={0: "w_weight", 1: "b_bias"}, **keywords)
    updater = mx.optimizer.get_updater(made)
    random_ = np.random.RandomState(0)
    weights = [mx.nd.array(random_.normal(size=s), dtype=dtype) for s in [(3, 4), (5,)]]
    for _ in range(steps):
        for index, weight in enumerate(weights):
            updater(index, mx.nd.array(random_.normal(size=weight.shape), dtype=dtype), weight)
    return updater


# --- mxloop's own format ------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_states_of_an_optimizer_come_back(name):
    states = optimizer.get_states(updater_of(name), {"w_weight": 0, "b_bias": 1})
    data = encode_states(states)
    assert_same(decode_states(data), states)
    assert all(number == 3 for _, number in states.values())
    assert not is_pickle(data)


def test_states_of_several_precisions_come_back():
    updater = updater_of("adam", dtype="float16", multi_precision=True)
    states = optimizer.get_states(updater, {"w_weight": 0, "b_bias": 1})
    assert {array.dtype for array in states["w_weight"][0][1]} == {np.float32}
    assert_same(decode_states(encode_states(states)), states)


def any_state(chance, depth=0):
    kind = chance.randrange(6 if depth < 4 else 3)
    if kind < 3:
        shape = tuple(chance.randint(1, 3) for _ in range(chance.randint(1, 3)))
        array = mx.nd.array(np.random.RandomState(chance.randrange(99)).normal(size=shape))
        return [None, array, chance.choice([True, -3, 0.1, array.tostype("row_sparse")])][kind]
    made = [any_state(chance, depth + 1) for _ in range(chance.randrange(4))]
    return made if kind == 5 else tuple(made)


@pytest.mark.parametrize("seed", range(30))
def test_any_structure_comes_back(seed):
    chance = random.Random(seed)
    names = [chance.choice(["w", "ä:日", "", 'a"b', HEADER]) + str(i) for i in range(5)]
    states = {name: (any_state(chance), chance.randrange(10**9)) for name in names}
    assert_same(decode_states(encode_states(states)), states)


def test_mxnet_can_list_the_arrays(tmp_path):
    (tmp_path / "s.states").write_bytes(encode_states({"w": ((mx.nd.ones((2,)), None), 4)}))
    assert set(mx.nd.load(str(tmp_path / "s.states"))) == {"w:1", HEADER}


@pytest.mark.parametrize("state", [{}, "text", np.zeros(3), float("nan"), object(), b"1"])
def test_a_state_that_no_file_can_hold_is_refused(state):
    with pytest.raises(MXLoopError) as caught:
        encode_states({"w": ((mx.nd.ones((2,)), state), 1)})
    assert "'w'" in nets.one_line(caught)


def test_a_state_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(MXLoopError) as caught:
        encode_states({"w": (endless, 1)})
    nets.one_line(caught)


def with_header(text, **arrays):
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    header = mx.nd.array(np.frombuffer(raw, np.uint8), dtype="uint8")
    return params_format.encode({HEADER: header, **arrays})


def holding(entry, version=1, **arrays):
    return with_header({"version": version, "states": {"w": entry}}, **arrays)


ONE = mx.nd.ones((2,))
BROKEN = {
    "nothing": b"",
    "params": params_format.encode({"arg:w": ONE}),
    "header no text": params_format.encode({HEADER: ONE}),
    "not JSON": with_header(b"{"),
    "key twice": with_header(b'{"version": 1, "states": {}, "states": {}}'),
    "no version": with_header({"states": {}}),
    "other version": holding([1, None], version=2),
    "states no dict": with_header({"version": 1, "states": []}),
    "no count": holding([None]),
    "count no number": holding(["1", None]),
    "negative count": holding([-1, None]),
    "huge count": holding([2**60, None]),
    "unknown kind": holding([1, {"set": []}]),
    "missing array": holding([1, {"array": "w:1"}]),
    "array twice": holding([1, {"tuple": [{"array": "a"}, {"array": "a"}]}], a=ONE),
    "array unused": holding([1, None], a=ONE),
    "number no number": holding([1, {"number": "1"}]),
    "two kinds": holding([1, {"tuple": [], "list": []}]),
    "deep": holding([1, json.loads('{"tuple": [' * 20 + "]}" * 20)]),
    "too deep": with_header(b'{"a": ' * 100000),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line(case):
    with pytest.raises(DataError) as caught:
        decode_states(BROKEN[case], "model-0001.states")
    assert "model-0001.states" in nets.one_line(caught)


def test_every_truncation_is_refused():
    data = encode_states({"w": ((ONE, ONE), 4)})
    for length in range(len(data)):
        with pytest.raises(DataError):
            decode_states(data[:length])


@pytest.mark.parametrize("where", ["model-0001.states", "folder/" * 40 + "model-0001.states"])
def test_a_pickle_is_refused_with_the_name_of_the_converter(where):
    with pytest.raises(DataError) as caught:
        decode_states(updater_of("adam").get_states(), where)
    assert "python -m mxloop convert-states" in nets.one_line(caught)


# --- MXNet's pickles ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("with_optimizer", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "ftml"])
def test_pickles_of_every_protocol_are_read(name, with_optimizer, protocol):
    schedule = mx.lr_scheduler.MultiFactorScheduler([5, 9], base_lr=np.float64(0.1))
    updater = updater_of(name, lr_scheduler=schedule)
    held = (updater.states, updater.optimizer) if with_optimizer else updater.states
    data = pickle.dumps(held, protocol)
    assert is_pickle(data)
    read = read_stock_states(data)
    assert_same(read.states, updater.states)
    assert read.counts == ({0: 3, 1: 3} if with_optimizer else {})
    assert read.names == ({0: "w_weight", 1: "b_bias"} if with_optimizer else {})


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_what_an_updater_writes_is_read(name, with_optimizer):
    updater = updater_of(name)
    assert_same(convert_stock_states(updater.get_states(with_optimizer)), updater.states)


def test_what_a_module_writes_is_read(tmp_path):
    x, y = nets.samples(16)
    module = mx.mod.Module(nets.mlp())
    module.fit(
        mx.io.NDArrayIter(x, y, 8),
        num_epoch=1,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01},
    )
    module.save_optimizer_states(str(tmp_path / "m.states"))
    states = convert_stock_states((tmp_path / "m.states").read_bytes())
    assert_same(states, dict(module._updater.states))


def test_states_with_names_and_of_sparse_arrays_are_read():
    thin = mx.nd.array([[0, 1], [0, 0]]).tostype("row_sparse")
    thin.wait_to_read()
    states = collections.OrderedDict([("w", thin), ("b", (mx.nd.ones((2,)), None))])
    assert_same(convert_stock_states(pickle.dumps(states)), dict(states))


class Runs:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def harmful(path):
    command = f"touch {path}"
    yield Runs(os.system, command)
    yield Runs(eval, f"__import__('os').system({command!r})")
    yield Runs(subprocess.Popen, ["touch", path])
    yield Runs(getattr, "", "join")
    yield Runs(pickle.loads, pickle.dumps(Runs(os.system, command)))
    yield Runs(bytearray, 2**40)
    yield Runs(np.load, path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_file_made_to_run_code_does_not_run_it(protocol, tmp_path):
    path = str(tmp_path / "was_here")
    for call in harmful(path):
        for held in (call, {0: call}, {0: (None, call)}, ({0: None}, call), [call]):
            data = pickle.dumps(held, protocol)
            for read in (convert_stock_states, decode_states):
                with pytest.raises(DataError) as caught:
                    read(data)
                nets.one_line(caught)
    assert not os.path.exists(path)


PICKLES = {
    "nothing": b"",
    "only a stop": b".",
    "no stop": pickle.dumps({})[:-1],
    "no dict": pickle.dumps([1, 2]),
    "numbers": pickle.dumps({0: 1.5}),
    "a NumPy array": pickle.dumps({0: np.zeros(3)}),
    "a key of a kind": pickle.dumps({(1, 2): None}),
    "key of None": pickle.dumps({None: None}),
    "a set": pickle.dumps({0: {1, 2}}, 4),
    "persistent": b"\x80\x02}K\x00Pabc\n.",
    "extension": b"\x80\x02}K\x00\x82\x01s.",
    "instance": b"(ios\nsystem\n.",
    "huge bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
    "missing memo": b"\x80\x02h\x05.",
    "no mark": b"\x80\x02t.",
    "array without content": b"\x80\x02}K\x00cmxnet.ndarray.ndarray\nNDArray\nN\x85Rs.",
    "long number": b"I" + b"9" * 100000 + b"\n.",
    "itself": b"\x80\x02}q\x00K\x00]q\x01h\x01as.",
    "deep": b"\x80\x02}K\x00" + b"N" + b"\x85" * 500 + b"s.",
    "deep key": b"\x80\x02}" + b"N" + b"\x85" * 500000 + b"Ns.",
    "content repeated": b"\x80\x02}X\x00\x00\x01\x00"
    + b"x" * 65536
    + b"q\x000"
    + (b"c_codecs\nencode\nh\x00\x85R0" * 3)
    + b".",
}


@pytest.mark.parametrize("case", PICKLES)
def test_another_pickle_is_one_line(case):
    with pytest.raises(DataError) as caught:
        convert_stock_states(PICKLES[case], "old.states")
    assert "old.states" in nets.one_line(caught)


def test_an_array_that_serves_twice_is_made_once():
    array = mx.nd.ones((2,))
    states = convert_stock_states(pickle.dumps(dict.fromkeys(range(50), (array, array))))
    assert states[0][0] is states[49][1]


# --- Rules --------------------------------------------------------------------------------------


def test_no_module_unpickles_or_evaluates():
    for path in pathlib.Path(mxloop.__file__).parent.rglob("*_format.py"):
        used = {node.id for node in ast.walk(ast.parse(path.read_text())) if type(node) is ast.Name}
        assert not used & {"pickle", "eval", "exec", "marshal", "shelve"}, path
    used = (pathlib.Path(mxloop.__file__).parent / "stock_states.py").read_text()
    assert "import pickle\n" not in used and "Unpickler" not in used


BOMBS = """
import json, resource, sys
from mxloop import states_format, strict_json, symbol_format, params_format
from mxloop.errors import DataError
from mxloop.compat import mx
mx.nd.ones((2,)).asnumpy()
array = mx.nd.ones((1,))
bombs = [
    (symbol_format.loads, b'{"nodes": [' + b"{}," * 600_000 + b"{}]}"),
    (symbol_format.loads, b"[" + b"[]," * 2_000_000 + b"[]]"),
    (symbol_format.loads, b"[" * 5_000_000),
    (symbol_format.loads, b'{"a":' * 1_000_000),
    (symbol_format.loads, b"[" + b"1," * 4_000_000 + b"1]"),
    (states_format.convert_stock_states, b"\\x80\\x02" + b"}" * 5_000_000 + b"."),
    (states_format.convert_stock_states, b"\\x80\\x04" + b"]\\x94" * 2_500_000 + b"."),
    (states_format.convert_stock_states, b"\\x80\\x04" + b"\\x8f" * 5_000_000 + b"."),
    (states_format.convert_stock_states, b"\\x80\\x02}r\\xff\\xff\\xff\\xff."),
    (params_format.decode, params_format.encode({str(i): array for i in range(100_000)})),
]
with open("/proc/self/statm") as statm:
    held = int(statm.read().split()[0]) * resource.getpagesize()
for read, data in bombs:
    limit = held + 3 * len(data) + 200 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        print(len(read(data)), end=" ")
    except DataError as error:
        print("refused", end=" ")
"""


def test_a_small_file_takes_no_large_memory():
    told = subprocess.run([sys.executable, "-c", BOMBS], stdout=subprocess.PIPE, check=True)
    assert told.stdout.decode().split() == ["refused"] * 8 + ["0", "100000"]


@pytest.mark.parametrize("text", ["{", "[1, NaN]", '{"a": 1, "a": 1}', "1" * 20, "", b"\xff"])
def test_strict_json_refuses(text):
    with pytest.raises(strict_json.Flaw):
        strict_json.loads(text)


@pytest.mark.parametrize("kind", ["states", "stock"])
def test_mutations_come_to_a_load_or_one_line(kind):
    counts, bad = fuzz_files.fuzz(kind, 400, seed=1)
    assert not bad and sum(counts.values()) == 400 and counts["refused"] > 100
