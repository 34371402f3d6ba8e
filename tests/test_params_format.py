"""params_format.py: the same bytes as mx.nd.save, the same arrays as mx.nd.load, and no crash."""

import random
import struct

import fuzz_files
import nets
import numpy as np
import pytest

from mxloop import params_format
from mxloop.compat import mx
from mxloop.errors import DataError, MXLoopError
from mxloop.params_format import BFLOAT16, decode, decode_one, encode

KINDS = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"]
VALUES = np.arange(12).reshape(3, 4)
BODY = struct.pack("<iii", 1, 0, 0) + VALUES.astype("<f4").tobytes()
V2 = struct.pack("<Iiiqq", params_format.V2, 0, 2, 3, 4)


def saved(tmp_path, arrays):
    """What MXNet itself writes."""
    mx.nd.save(str(tmp_path / "stock.params"), arrays)
    return (tmp_path / "stock.params").read_bytes()


def stock_load(tmp_path, data):
    (tmp_path / "own.params").write_bytes(data)
    return mx.nd.load(str(tmp_path / "own.params"))


def file_of(*arrays, names=None, count=None, name_count=None, end=b""):
    names = [f"n{i}".encode() for i in range(len(arrays))] if names is None else names
    return b"".join(
        [
            struct.pack("<QQQ", 0x112, 0, len(arrays) if count is None else count),
            *arrays,
            struct.pack("<Q", len(names) if name_count is None else name_count),
            *[struct.pack("<Q", len(name)) + name for name in names],
            end,
        ]
    )


def arrays_of_all_kinds():
    dense = {f"arg:{kind}": mx.nd.array(VALUES % 2, dtype=kind) for kind in KINDS}
    dense["arg:bfloat16"] = mx.nd.amp_cast(mx.nd.array(VALUES), dtype=BFLOAT16)
    dense["aux:other device"] = mx.nd.ones((2, 1, 3), ctx=mx.cpu(1))
    dense["arg:ä日"] = mx.nd.zeros((1,))
    with mx.util.np_shape(True):
        dense["arg:no rows"] = mx.nd.zeros((0, 3))
    thin = mx.nd.array([[0, 1, 0], [0, 0, 0], [2, 0, 3]])
    sparse = {stype: thin.tostype(stype) for stype in ("csr", "row_sparse")}
    nothing = {f"no {s}": mx.nd.sparse.zeros(s, (4, 3)) for s in ("csr", "row_sparse")}
    mx.nd.waitall()  # MXNet writes a sparse array that is not computed yet without its content
    return {**dense, **sparse, **nothing}


def assert_same(found, wanted):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].stype == array.stype
        assert found[name].shape == array.shape and found[name].context == mx.cpu(0)
        np.testing.assert_array_equal(found[name].asnumpy(), array.asnumpy(), err_msg=name)


# --- Sound files --------------------------------------------------------------------------------


def test_writes_what_mxnet_writes_byte_for_byte(tmp_path):
    arrays = arrays_of_all_kinds()
    for name, array in arrays.items():
        assert encode({name: array}) == saved(tmp_path, {name: array}), name
    assert encode(arrays) == saved(tmp_path, arrays)
    assert encode({}) == saved(tmp_path, {})


def test_reads_what_mxnet_writes(tmp_path):
    arrays = arrays_of_all_kinds()
    assert_same(decode(saved(tmp_path, arrays)), arrays)
    assert decode(saved(tmp_path, {})) == {}


def test_mxnet_reads_what_is_written(tmp_path):
    arrays = arrays_of_all_kinds()
    assert_same(stock_load(tmp_path, encode(arrays)), arrays)


def test_numpy_shapes_are_written_and_read_as_mxnet_does(tmp_path):
    with mx.util.np_shape(True):
        arrays = {"scalar": mx.nd.ones(()), "empty": mx.nd.zeros((0, 3)), "w": mx.nd.ones((2,))}
        stock = saved(tmp_path, arrays)
        assert encode(arrays) == stock
    found = decode(stock)
    assert [array.shape for array in found.values()] == [(), (0, 3), (2,)]
    assert found["scalar"].asnumpy() == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_dense_arrays_come_back(seed, tmp_path):
    chance = random.Random(seed)
    arrays = {}
    for i in range(chance.randrange(6)):
        shape = tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 5)))
        values = np.random.RandomState(seed).randint(0, 2, shape)
        arrays[f"{chance.choice(['arg', 'aux'])}:{i}"] = mx.nd.array(
            values, dtype=chance.choice(KINDS)
        )
    data = encode(arrays)
    assert data == saved(tmp_path, arrays)
    assert_same(decode(memoryview(bytearray(data))), arrays)


@pytest.mark.parametrize("head", ["<III", "<Iiqq"])
def test_older_formats_are_read(head, tmp_path):
    numbers = (2, 3, 4) if head == "<III" else (params_format.V1, 2, 3, 4)
    data = file_of(struct.pack(head, *numbers) + BODY)
    np.testing.assert_array_equal(decode(data)["n0"].asnumpy(), VALUES)
    np.testing.assert_array_equal(stock_load(tmp_path, data)["n0"].asnumpy(), VALUES)


@pytest.mark.parametrize("device", [2, 3, 5])
def test_an_array_of_another_device_comes_to_the_cpu(device):
    elsewhere = struct.pack("<ii", device, 3) + BODY[8:]
    assert decode(file_of(V2 + elsewhere))["n0"].context == mx.cpu(0)


def test_a_single_array_is_read_as_mxnet_pickles_it():
    array = mx.nd.array(VALUES)
    assert_same({"": decode_one(array.__getstate__()["handle"])}, {"": array})


def test_chunks_add_up_to_the_file():
    arrays = arrays_of_all_kinds()
    assert b"".join(bytes(chunk) for chunk in params_format.chunks(arrays)) == encode(arrays)


# --- Broken files -------------------------------------------------------------------------------


def array_with(dims, kind="q", storage=0, magic=params_format.V2, body=BODY):
    return struct.pack(f"<Iii{len(dims)}{kind}", magic, storage, len(dims), *dims) + body


def device(kind=1, number=0, flag=0):
    return V2 + struct.pack("<iii", kind, number, flag) + BODY[12:]


BROKEN = {
    "nothing": (b"", "nothing"),
    "a pickle": (b"\x80\x04" + b"}" * 20, "0x112"),
    "half a header": (b"\x12\x01\0\0", "4 bytes and needs 12 more"),
    "reserved": (struct.pack("<QQQ", 0x112, 1, 0), "always 0"),
    "huge count": (file_of(count=2**62), "count of 4611686018427387904"),
    "many arrays": (file_of(count=200_000, end=bytes(4_100_000)), "at most 100000"),
    "huge name count": (file_of(V2 + BODY, name_count=2**61), "count of"),
    "huge name": (file_of(V2 + BODY, names=[], name_count=1) + b"\xff" * 8, "more at"),
    "huge shape": (file_of(array_with((2**40, 2**20))), "2147483647 elements"),
    "shape beyond the file": (file_of(array_with((1000, 1000))), "more at"),
    "negative shape": (file_of(array_with((-3, -4))), "elements"),
    "no dimension": (file_of(array_with(())), "0 dimensions"),
    "many dimensions": (file_of(array_with((1,) * 33)), "33 dimensions"),
    "huge empty shape": (file_of(array_with((0, 2**62))), "elements"),
    "storage type": (file_of(array_with((3, 4), storage=7)), "storage type 7"),
    "bad dtype": (file_of(device(flag=127)), "dtype flag 127"),
    "bad device": (file_of(device(kind=9)), "of type 9"),
    "negative device": (file_of(device(number=-1)), "device -1"),
    "same name": (file_of(V2 + BODY, V2 + BODY, names=[b"x", b"x"]), "same name"),
    "no names": (file_of(V2 + BODY, names=[]), "1 arrays and 0 names"),
    "name not utf-8": (file_of(V2 + BODY, names=[b"\xff"]), "UTF-8"),
    "trailing": (file_of(V2 + BODY, end=b"x"), "1 bytes after its end"),
    "bool of 2": (file_of(device(flag=7)[:40] + b"\2" * 12), "0 and 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line(case):
    data, told = BROKEN[case]
    with pytest.raises(DataError) as caught:
        decode(data, "folder/model-0001.params")
    message = nets.one_line(caught)
    assert told in message and message.startswith("folder/model-0001.params is no whole")


@pytest.mark.parametrize("where", ["x" * 300, "a/" * 200 + "model-0001.params"])
def test_a_long_name_leaves_the_message_one_line(where):
    with pytest.raises(DataError) as caught:
        decode(BROKEN["huge shape"][0], where)
    assert where[-57:] in nets.one_line(caught)


@pytest.mark.parametrize("stype, at, value", [("csr", -41, 99), ("row_sparse", -25, 99)])
def test_indices_of_a_sparse_array_are_checked(stype, at, value):
    array = mx.nd.array([[0, 1, 0], [0, 0, 0], [2, 0, 3]]).tostype(stype)
    data = bytearray(encode({"w": array}))
    assert decode(data)["w"].stype == stype
    data[at + 8 : at + 16] = struct.pack("<q", value)
    with pytest.raises(DataError) as caught:
        decode(data)
    nets.one_line(caught)


def test_every_truncation_is_refused():
    data = encode(arrays_of_all_kinds())
    for length in range(0, len(data), 7):
        with pytest.raises(DataError):
            decode(data[:length])


@pytest.mark.parametrize(
    "arrays, told",
    [
        ({"w": np.zeros(3)}, "mx.nd.NDArray"),
        ({3: mx.nd.ones((1,))}, "text"),
        ({"\ud800": mx.nd.ones((1,))}, "UTF-8"),
        ({"w": mx.nd.array(np.array(3.0))}, "no dimension"),
    ],
)
def test_what_no_file_can_hold_is_refused(arrays, told):
    with pytest.raises(MXLoopError) as caught:
        encode(arrays)
    assert told in nets.one_line(caught)


def test_mutations_come_to_a_load_or_one_line():
    counts, bad = fuzz_files.fuzz("params", 400, seed=1)
    assert not bad and counts["refused"] > 100 and sum(counts.values()) == 400
