"""Mutations of model files: only mxloop's own error, or a load, may come of any of them.

    python tests/fuzz_files.py --mutations 10000 --seed 0
    python tests/fuzz_files.py --kinds symbol --use      # loaded networks are bound as well
    python tests/fuzz_files.py --kinds symbol --first 17 --mutations 18 --show
    python tests/fuzz_files.py --flips 1000              # single bits of a checkpoint's four files

Every mutation follows from the kind of file, the seed and its number alone. They are tried in child
processes, with the memory they have at the start and 3 times the file and 200 MB more. A child that
dies, or is silent for too long, is replaced by one that goes on behind the mutation it was at.
"""

import argparse
import collections
import copy
import json
import os
import pickle
import random
import re
import resource
import select
import struct
import subprocess
import sys
import time

import numpy as np

KINDS = ["params", "symbol", "attributes", "states", "stock", "manifest"]
SILENCE = 20.0  # seconds
MEMORY = 200 * 2**20
MEMORY_TO_USE = 3 * 2**30
EXTREME = [0, 1, 2, 7, 12, 127, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]
TEXTS = ["0", "-1", "1", "2", "99999", "2147483648", "1e400", "()", "(0, 0)", "(1,)", "None", "nan"]
TEXTS += ["(2147483647, 2147483647)", "(-1, -1)", "True", "", "[0, 9]", "relu", "float16", "x" * 99]
ODD = [
    None,
    True,
    -1,
    0,
    1,
    5,
    10**6,
    2**31,
    2**64,
    1.5,
    "",
    "x",
    [],
    [[]],
    {},
    {"a": {}},
    [0, 0, 0],
]
OPS = ["null", "BatchNorm", "Concat", "SliceChannel", "RNN", "Dropout", "_foreach", "_cond", "dot"]
OPS += ["FullyConnected", "Convolution", "add_n", "SoftmaxOutput", "Custom", "Embedding", "topk"]


# Sound files


def sound_files(kind):
    from mxloop.compat import mx

    return globals()[f"_sound_{kind}"](mx)


def _sound_params(mx):
    from mxloop import params_format

    random_ = np.random.RandomState(0)
    values = random_.randint(0, 2, (3, 4))
    kinds = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"]
    dense = {f"arg:{kind}": mx.nd.array(values, dtype=kind) for kind in kinds}
    sparse = {kind: dense["arg:float32"].tostype(kind) for kind in ("csr", "row_sparse")}
    body = struct.pack("<ii i", 1, 0, 0) + values.astype("<f4").tobytes()
    old = [struct.pack("<III", 2, 3, 4), struct.pack("<Iiqq", 0xF993FAC8, 2, 3, 4)]
    one = struct.pack("<QQQ", 0x112, 0, 1)
    name = struct.pack("<QQ", 1, 5) + b"arg:w"
    return [params_format.encode(dense), params_format.encode({**dense, **sparse})] + [
        one + head + body + name for head in old
    ]


def _sound_symbol(mx):
    import nets

    named = [nets.mlp(), nets.lenet(), nets.conv_bn(), old_symbol(), *symbols(mx)]
    named.append(nets.conv_bn().get_backend_symbol("MKLDNN"))
    return [net if isinstance(net, bytes) else net.tojson().encode() for net in named]


_sound_attributes = _sound_symbol


def symbols(mx):
    """Networks with what makes a graph hard to check: many outputs, states, graphs inside."""
    data, state, weight = mx.sym.var("data"), mx.sym.var("state"), mx.sym.var("weight")
    parts = mx.sym.SliceChannel(data, num_outputs=3, axis=1)
    looped, states = mx.sym.contrib.foreach(
        lambda x, s: (x + s[0] * weight, [s[0] + x]), data, [state]
    )
    while_outputs, while_states = mx.sym.contrib.while_loop(
        lambda i, s: i < 5, lambda i, s: (s + i * weight, (i + 1, s + i)), (data, state), 5
    )
    cell = mx.rnn.FusedRNNCell(8, num_layers=2, mode="lstm", get_next_state=True)
    sequence, ends = cell.unroll(5, mx.sym.var("data"), merge_outputs=True)
    normed = mx.sym.BatchNorm(data, output_mean_var=True)
    embedded = mx.sym.Embedding(data, input_dim=5, output_dim=4)
    return [
        mx.sym.Group([parts[2], parts[0], mx.sym.Dropout(parts[1])]),
        mx.sym.Group([looped, states[0]]),
        mx.sym.Group([*while_outputs, *while_states]),
        mx.sym.contrib.cond(data < 5, lambda: data + weight, lambda: data - state),
        mx.sym.Group([sequence, *ends]),
        mx.sym.Group([*normed, *mx.sym.topk(data, k=2, ret_typ="both")]),
        mx.sym.Concat(embedded, mx.sym.LayerNorm(embedded), dim=1),
        mx.sym.contrib.MultiBoxPrior(mx.sym.Pooling(data, kernel=(2, 2)), sizes=(0.2, 0.3)),
        mx.sym.RNN(data, mx.sym.var("p"), mx.sym.var("s"), state_size=4, num_layers=1, mode="gru"),
    ]


def old_symbol():
    """A network as MXNet 0.8 wrote it."""

    def node(op, name, *inputs, **more):
        return dict(op=op, name=name, inputs=list(inputs), backward_source_id=-1, **more)

    nodes = [
        node("null", "data", param={}),
        node("null", "fc_weight", param={}, attr={"lr_mult": "2"}),
        node("null", "fc_bias", param={}),
        node("FullyConnected", "fc", [0, 0], [1, 0], [2, 0], param={"num_hidden": "3"}),
        node("null", "bn_gamma", param={}),
        node("null", "bn_beta", param={}),
        node("BatchNorm", "bn", [3, 0], [4, 0], [5, 0], param={"eps": "0.001"}),
    ]
    return json.dumps({"nodes": nodes, "arg_nodes": [0, 1, 2, 4, 5], "heads": [[6, 0]]}).encode()


def _sound_states(mx):
    from mxloop import states_format

    a, b = mx.nd.ones((3, 4)), mx.nd.arange(5)
    adam = {"w": ((a, a * 2), 7), "b": ((b, b), 7)}
    mixed = {"w": (None, 0), "b": ((a, (b, [None, a])), 3), "c": (b, 1)}
    return [states_format.encode_states(states) for states in (adam, mixed, {})]


def _sound_stock(mx):
    files = []
    for name, dump in [("adam", False), ("sgd", True), ("adam", True)]:
        optimizer = mx.optimizer.create(name, lr_scheduler=mx.lr_scheduler.FactorScheduler(5))
        updater = mx.optimizer.get_updater(optimizer)
        for index in range(2):
            weight = mx.nd.ones((3, 4))
            updater(index, weight, weight)
        files.append(updater.get_states(dump_optimizer=dump))
        held = (updater.states, optimizer) if dump else updater.states
        files += [pickle.dumps(held, protocol) for protocol in range(5)]
    return files


_resumable = []


def resumable():
    """The run whose checkpoints are tried, made when first asked for."""
    import resumable

    if not _resumable:
        _resumable.append(resumable.Resumable())
    return _resumable[0]


def _sound_manifest(mx):
    return resumable().files()


# Mutations


def mutated(kind, seed, number, files):
    chance = random.Random(f"{kind} {seed} {number}")
    data = chance.choice(files)
    if kind == "attributes":
        return _edited_attribute(chance, data)
    if kind == "symbol" and chance.random() < 0.75:
        return _edited_json(chance, data)
    if kind == "manifest" and chance.random() < 0.85:
        return _edited_manifest(chance, data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        data = chance.choice(BYTE_EDITS)(chance, data, files)
    return data


def _flip(chance, data, files):
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _cut(chance, data, files):
    return data[: chance.randrange(len(data) + 1)]


def _drop(chance, data, files):
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.choice([1, 4, 8, 40]) :]


def _splice(chance, data, files):
    other = chance.choice(files)
    start = chance.randrange(len(other) + 1)
    at = chance.randrange(len(data) + 1)
    piece = other[start : start + chance.choice([1, 8, 60, 500])]
    return data[:at] + piece + data[at + len(piece) * chance.choice([0, 1]) :]


def _number(chance, data, files):
    size = chance.choice([4, 8])
    at = chance.randrange(max(len(data) - size, 0) + 1) & ~3
    value = chance.choice(EXTREME) % 256**size
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _digits(chance, data, files):
    found = list(re.finditer(rb"\d+", data[:20000]))
    if not found:
        return data
    number = chance.choice(found)
    new = str(chance.choice([*EXTREME, -1, int(number.group()) % 10**6 + 1])).encode()
    return data[: number.start()] + new + data[number.end() :]


BYTE_EDITS = [_flip, _cut, _drop, _splice, _number, _number, _digits]


def _edited_json(chance, data):
    graph = json.loads(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        places = list(_places(graph))
        if places:
            _edit(chance, *chance.choice(places))
    if chance.random() < 0.01:
        graph["nodes"] = _nested(chance.choice([50, 2000, 100000]))
        return b'{"nodes": ' + graph["nodes"] + b', "arg_nodes": [], "heads": [[0, 0]]}'
    return json.dumps(graph).encode()


def _edited_manifest(chance, data):
    """Another content under its own, right checksum, as only somebody hostile makes it."""
    from mxloop import manifest_format

    content = json.loads(data)
    del content["sha256"]
    # Most of its numbers are random states; the rest should have its turn.
    held = {"random": content.pop("random")} if chance.random() < 0.9 else {}
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        places = list(_places(content))
        if places:
            _edit(chance, *chance.choice(places))
    return manifest_format._spelt({**content, **held})


def _edited_attribute(chance, data):
    """One attribute of one operator gets another value: such a file often loads, and is bound."""
    graph = json.loads(data)
    held = [node[k] for node in graph["nodes"] for k in ("attrs", "param") if node.get(k)]
    attributes = chance.choice(held)
    name = chance.choice(list(attributes))
    number = str(chance.choice([0, -1, 1, 2, 3, 5, 64, 1000, *EXTREME]))
    changed = re.sub(r"\d+", lambda m: chance.choice([number, m.group()]), attributes[name])
    attributes[name] = chance.choice([chance.choice(TEXTS), changed, changed])
    return json.dumps(graph).encode()


def _nested(depth):
    return b"[" * depth + b"]" * depth


def _places(value):
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _edit(chance, holder, key):
    value = holder[key]
    action = chance.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = chance.choice(ODD)
    elif action == 2 and isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(value))
    elif action == 3:
        other = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key], holder[other] = holder[other], value
    elif isinstance(value, int):
        holder[key] = value + chance.choice([-1, 1, 2, 1000, 2**31])
    elif isinstance(value, str):
        numbers = re.sub(r"\d+", lambda m: str(chance.choice(EXTREME)), value)
        holder[key] = chance.choice([chance.choice(TEXTS), numbers, chance.choice(OPS)])
    elif isinstance(value, list) and value:
        value.pop(chance.randrange(len(value)))


# Trying them, in a child


def load(kind, data):
    from mxloop import params_format, states_format, symbol_format

    return {
        "manifest": lambda data: resumable().load(data),
        "params": params_format.decode,
        "symbol": symbol_format.loads,
        "attributes": symbol_format.loads,
        "states": states_format.decode_states,
        "stock": states_format.convert_stock_states,
    }[kind](data)


def outcome(kind, data):
    """'loaded' and what was, 'refused', or what went wrong."""
    from mxloop.errors import DataError

    try:
        return "loaded", load(kind, data)
    except DataError as error:
        message = str(error)
        fine = "\n" not in message and len(message) <= 250
        return ("refused" if fine else f"long: {message!r}"), None
    except Exception as error:  # noqa: BLE001 (any other is what the fuzzer looks for)
        return f"wrong: {type(error).__name__}: {str(error)[:200]!r}", None


SHAPES = [{"data": shape} for shape in [(2, 10), (2, 1, 12, 12), (5, 3, 8), (4, 6), (3,)]]


def use(symbol):
    """Infer shapes and bind, as far as the network lets one."""
    from mxloop.compat import mx

    symbol.list_outputs()
    symbol.list_auxiliary_states()
    for shapes in SHAPES:
        try:
            given, _, _ = symbol.infer_shape(**shapes)
            if given is not None:
                symbol.simple_bind(mx.cpu(), **shapes)
        except (RuntimeError, ValueError, TypeError):  # an MXNetError is the first of these
            continue


def child(kind, seed, numbers, with_use):
    # MXNet prints where it cannot infer shapes; what the parent reads goes another way.
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    files = sound_files(kind)
    for data in files:
        assert outcome(kind, data)[0] == "loaded", outcome(kind, data)[0]
    largest = max(map(len, files))
    spare = MEMORY_TO_USE if with_use else MEMORY + 3 * largest
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + spare, held + spare))
    for number in numbers:
        print("at", number, file=told)
        result, symbol = outcome(kind, mutated(kind, seed, number, files))
        if with_use and symbol is not None:
            print("use", number, file=told)
            use(symbol)
        print("done", number, result, file=told)


# Watching it


def fuzz(kind, mutations, seed=0, first=0, with_use=False, silence=SILENCE):
    """Try mutations first to `mutations`; a count of outcomes, and (number, what) of the bad."""
    counts, bad = collections.Counter(), []
    while first < mutations:
        first = _watch(kind, seed, first, mutations, with_use, silence, counts, bad)
    return counts, bad


def _watch(kind, seed, first, last, with_use, silence, counts, bad):
    """One child, to its end; the number of the mutation to go on with."""
    command = [sys.executable, os.path.abspath(__file__), "--child", "--kinds", kind]
    command += ["--seed", str(seed), "--first", str(first), "--mutations", str(last)]
    process = subprocess.Popen(
        command + ["--use"] * with_use, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    stage, number = "start", first
    for line in _lines(process, silence):
        stage, number, *result = line.split(" ", 2)
        number = int(number)
        if stage == "done":
            told = result[0] if result else ""
            counts[told.split(":")[0]] += 1
            if told not in ("loaded", "refused"):
                bad.append((number, told))
    process.kill()
    code = process.wait()
    process.stdout.close()
    if stage == "start":
        raise RuntimeError(f"the child did not start ({code}); run it by hand: {command}")
    if stage != "done":
        what = "hang" if code == -9 else "crash"
        counts[f"{what} at {stage}"] += 1
        bad.append((number, f"{what} at {stage}, exit code {code}"))
    return number + 1


def _lines(process, silence):
    """The lines a child prints, until it ends or is silent for too long."""
    held, silence_of_start = b"", max(silence, 120.0)
    while select.select([process.stdout], [], [], silence_of_start)[0]:
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            break
        silence_of_start = silence
        *lines, held = (held + piece).split(b"\n")
        yield from (line.decode() for line in lines)
    else:
        return
    process.wait()


# Single bits


def flip_bits(flips, seed=0):
    """Flip single bits of each file of a checkpoint; by file, how many were not noticed."""
    from mxloop.errors import DataError

    run, chance = resumable(), random.Random(seed)
    missed = {}
    for path in run.paths():
        whole = path.read_bytes()
        missed[path.name] = 0
        for _ in range(flips):
            path.write_bytes(_flip(chance, whole, []))
            try:
                run.reload()
                missed[path.name] += 1
            except DataError:
                continue
        path.write_bytes(whole)
    return missed


def show(kind, seed, first):
    files = sound_files(kind)
    data = mutated(kind, seed, first, files)
    text = kind in ("symbol", "attributes", "manifest")
    print(data.decode("utf-8", "backslashreplace") if text else data)
    print(outcome(kind, data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--mutations", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--use", action="store_true", help="bind the networks that load")
    parser.add_argument("--show", action="store_true", help="show the first mutation and its end")
    parser.add_argument(
        "--flips", type=int, default=0, help="flip so many bits of each file instead"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.show:
        return show(given.kinds[0], given.seed, given.first)
    if given.child:
        return child(given.kinds[0], given.seed, range(given.first, given.mutations), given.use)
    if given.flips:
        missed = flip_bits(given.flips, given.seed)
        print(f"not noticed of {given.flips} flips each: {missed}")
        return sys.exit(any(missed.values()))
    failed = False
    for kind in given.kinds:
        start = time.time()
        counts, bad = fuzz(kind, given.mutations, given.seed, given.first, given.use)
        print(f"{kind}: {dict(counts)} in {time.time() - start:.0f} s", flush=True)
        for number, what in bad[:200]:
            print(f"  {number}: {what}", flush=True)
        failed = failed or bool(bad)
    return sys.exit(failed)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main()
