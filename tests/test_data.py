"""data.py: what goes in, what comes out, in which order, and what is said of mistakes."""

import gzip
import json
import struct
import zlib

import numpy as np
import pytest

from mxloop.compat import mx
from mxloop.data import (
    ArrayIter,
    RecordIter,
    as_iterator,
    load_digits28,
    load_mnist,
    read_idx,
    record_iterator,
)
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, MXLoopError

POLICIES = ["keep", "pad", "discard", "roll_over"]


def rows(n, columns=3):
    return np.arange(n * columns, dtype="float32").reshape(n, columns)


def indices(iterator):
    return [batch.index.tolist() for batch in iterator]


def epochs(iterator, count):
    seen = []
    for _ in range(count):
        iterator.reset()
        seen.append(indices(iterator))
    return seen


def flat(batches):
    return [index for batch in batches for index in batch]


def one_line(caught):
    message = str(caught.value)
    assert isinstance(caught.value, MXLoopError)
    assert "\n" not in message and len(message) <= 250, message
    return message


# --- The order of samples -----------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [1, 5, 16, 17, 33])
def test_keep_shows_every_row_once_with_a_short_last_batch(n, shuffle):
    for epoch in epochs(ArrayIter(rows(n), batch_size=16, shuffle=shuffle, seed=3), 3):
        assert sorted(flat(epoch)) == list(range(n))
        assert [len(batch) for batch in epoch] == [16] * (n // 16) + [n % 16] * (n % 16 > 0)


@pytest.mark.parametrize("n, batch_size", [(17, 5), (3, 16), (1, 4), (10, 5)])
def test_pad_fills_the_last_batch_from_the_start_and_counts_the_filling(n, batch_size):
    iterator = ArrayIter(rows(n), batch_size=batch_size, last_batch="pad", shuffle=True, seed=1)
    order = iterator.order
    batches = list(iterator)
    assert all(batch.data[0].shape == (batch_size, 3) for batch in batches)
    assert [batch.pad for batch in batches] == [0] * (len(batches) - 1) + [-n % batch_size]
    shown = np.concatenate([batch.index for batch in batches])
    assert shown.tolist() == np.resize(order, len(shown)).tolist()


def test_discard_leaves_out_the_rows_that_fill_no_batch():
    iterator = ArrayIter(rows(17), batch_size=5, last_batch="discard")
    assert flat(indices(iterator)) == list(range(15))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n, batch_size", [(7, 5), (13, 4), (10, 5), (5, 5)])
def test_roll_over_shows_every_row_once_an_epoch_in_full_batches(n, batch_size, shuffle):
    iterator = ArrayIter(rows(n), None, batch_size, shuffle, "roll_over", seed=9)
    seen = epochs(iterator, 2 * batch_size)
    assert all(len(batch) == batch_size for epoch in seen for batch in epoch)
    # One round of batch_size epochs divides evenly, so all rows were shown equally often.
    counts = np.bincount(flat(flat(seen)), minlength=n)
    assert counts.tolist() == [2 * batch_size] * n


def test_roll_over_opens_the_next_epoch_with_what_was_left():
    iterator = ArrayIter(rows(7), None, 5, True, "roll_over", seed=2)
    left = iterator.order[5:].tolist()
    epochs(iterator, 1)
    iterator.reset()
    assert iterator.order[:2].tolist() == left


def test_the_order_is_new_every_epoch_and_repeats_with_the_seed():
    first, again = (epochs(ArrayIter(rows(50), shuffle=True, seed=7), 4) for _ in range(2))
    other = epochs(ArrayIter(rows(50), shuffle=True, seed=8), 4)
    assert first == again
    assert len({str(epoch) for epoch in first + other}) == 8


FROZEN = [[5, 0, 6, 4, 2, 7, 3, 1, 8, 9], [3, 1, 2, 9, 5, 0, 6, 8, 7, 4]]


def test_the_order_of_a_seed_is_frozen_for_all_versions():
    iterator = ArrayIter(rows(10), shuffle=True, seed=42)
    assert iterator.order.tolist() == FROZEN[0]
    epochs(iterator, 1)
    iterator.reset()
    assert iterator.order.tolist() == FROZEN[1]


def test_without_a_seed_numpys_generator_gives_one():
    orders = []
    for _ in range(2):
        np.random.seed(5)
        orders.append([ArrayIter(rows(30), shuffle=True).order.tolist() for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_an_unshuffled_iterator_leaves_numpys_generator_alone():
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    ArrayIter(rows(30))
    assert np.random.rand() == expected


def test_a_reset_before_anything_was_read_stays_on_the_epoch():
    iterator = ArrayIter(rows(9), batch_size=4, shuffle=True, seed=0)
    order = iterator.order.tolist()
    iterator.reset()
    assert iterator.epoch == 0 and iterator.order.tolist() == order
    iterator.next()
    iterator.reset()
    assert iterator.epoch == 1 and iterator.order.tolist() != order


def test_the_length_is_the_number_of_batches():
    for policy in POLICIES:
        iterator = ArrayIter(rows(13), batch_size=4, last_batch=policy)
        for _ in range(5):
            assert len(iterator) == len(list(iterator))
            iterator.reset()


# --- Resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_saved_state_continues_with_the_very_next_batch(policy):
    def make(seed):
        return ArrayIter(rows(23), rows(23, 1), 5, True, policy, seed=seed)

    straight = make(4)
    for stop in range(1, 14):
        first, second = make(4), make(99)
        trail = stream(first, stop)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        trail += stream(second, 14 - stop)
        assert trail == stream(make(4), 14)
    assert straight.state_dict()["epoch"] == 0


def stream(iterator, count):
    """The bytes of the next batches, over the ends of epochs."""
    trail = []
    while len(trail) < count:
        if not iterator.iter_next():
            iterator.reset()
            continue
        arrays = iterator.getdata() + iterator.getlabel()
        trail.append(tuple(array.asnumpy().tobytes() for array in arrays))
    return trail


def test_a_state_between_epochs_goes_on_to_the_next_one():
    first, second = (ArrayIter(rows(9), None, 4, True, seed=1) for _ in range(2))
    list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == []
    first.reset(), second.reset()
    assert indices(first) == indices(second)


@pytest.mark.parametrize(
    "change",
    [
        {"num_data": 8},
        {"batch_size": 2},
        {"last_batch": "pad"},
        {"shuffle": True},
        {"epoch": -1},
        {"position": "x"},
        {"seed": None},
    ],
)
def test_a_state_of_other_data_or_settings_is_refused(change):
    iterator = ArrayIter(rows(9), batch_size=4)
    with pytest.raises(DataError) as caught:
        iterator.load_state_dict({**iterator.state_dict(), **change})
    assert next(iter(change)) in one_line(caught)


def test_a_state_that_is_no_dict_is_refused():
    with pytest.raises(DataError) as caught:
        ArrayIter(rows(9)).load_state_dict([1, 2])
    assert "state_dict()" in one_line(caught)


# --- What goes in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["int8", "int32", "int64", "uint8", "bool", ">f4", ">i2", "f2", "f8"]
)
def test_every_real_dtype_becomes_float32(kind):
    x = (rows(6) % 2).astype(kind)
    batch = ArrayIter(x, x[:, 0]).next()
    for array, expected in zip(batch.data + batch.label, (x, x[:, 0])):
        assert array.dtype == np.float32
        assert np.array_equal(array.asnumpy(), expected.astype("float32"))


def test_memory_order_does_not_matter():
    x = rows(8, 4)
    for same in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1]):
        assert np.array_equal(ArrayIter(same).next().data[0].asnumpy(), x)


def test_a_dtype_on_request_for_all_or_by_name():
    iterator = ArrayIter({"ids": [[1], [2]], "x": [[0.5], [1]]}, dtype={"ids": "int32"})
    assert [desc.dtype for desc in iterator.provide_data] == [np.int32, np.float32]
    assert [array.dtype for array in iterator.next().data] == [np.int32, np.float32]
    for dtype in ("float16", "float64", "uint8", "int8", "int64", np.float64):
        assert ArrayIter([[1], [2]], dtype=dtype).next().data[0].dtype == np.dtype(dtype)


def test_several_inputs_and_labels_keep_the_callers_order():
    iterator = ArrayIter({"z": rows(4), "a": rows(4, 2)}, {"y2": rows(4, 1), "y1": [0, 1, 2, 3]})
    assert [desc.name for desc in iterator.provide_data] == ["z", "a"]
    assert [desc.name for desc in iterator.provide_label] == ["y2", "y1"]
    assert [desc.shape for desc in iterator.provide_label] == [(128, 1), (128,)]
    batch = iterator.next()
    assert [array.shape for array in batch.data + batch.label] == [(4, 3), (4, 2), (4, 1), (4,)]


def test_names_of_single_arrays_are_mxnets_unless_given():
    iterator = ArrayIter(rows(2), [0, 1])
    assert (iterator.provide_data[0].name, iterator.provide_label[0].name) == (
        "data",
        "softmax_label",
    )
    iterator = ArrayIter(rows(2), [0, 1], data_name="x", label_name="y")
    assert (iterator.provide_data[0].name, iterator.provide_label[0].name) == ("x", "y")
    assert ArrayIter(rows(2)).provide_label == []


def test_ndarray_list_tuple_pandas_and_sparse_go_in():
    x = rows(4)
    kinds = [mx.nd.array(x), x.tolist(), tuple(map(tuple, x)), list(x), list(mx.nd.array(x))]
    kinds.append(mx.nd.array(x).tostype("csr"))
    for same in kinds:
        assert np.array_equal(as_iterator(same).next().data[0].asnumpy(), x)


def test_pandas_frames_and_series_go_in():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    batch = as_iterator(frame, frame["a"].astype("Int64")).next()
    assert batch.data[0].asnumpy().tolist() == [[1, 0.5, 1], [2, 1.5, 0]]
    assert batch.label[0].asnumpy().tolist() == [1, 2]
    with pytest.raises(DataError) as caught:
        as_iterator(frame.assign(d=["x", "y"]))
    assert "real numbers" in one_line(caught)


def test_scipy_sparse_goes_in_unless_it_would_not_fit():
    sparse = pytest.importorskip("scipy.sparse")
    for layout in ("csr", "csc", "coo"):
        matrix = sparse.eye(4, format=layout)
        assert np.array_equal(as_iterator(matrix).next().data[0].asnumpy(), np.eye(4))
    with pytest.raises(DataError) as caught:
        as_iterator(sparse.csr_matrix((1 << 20, 1 << 20)))
    assert "GiB" in one_line(caught)


def test_an_iterator_comes_back_as_it_is():
    for iterator in (ArrayIter(rows(2)), mx.io.NDArrayIter(rows(2))):
        assert as_iterator(iterator) is iterator
    with pytest.raises(ArgumentError) as caught:
        as_iterator(ArrayIter(rows(2)), [0, 1])
    assert "leave y out" in one_line(caught)


def test_the_callers_array_is_neither_copied_nor_changed():
    x = rows(6)
    iterator = ArrayIter(x, batch_size=4, shuffle=True)
    assert next(iter(iterator._data.values())) is x
    iterator.next().data[0][:] = -1
    assert np.array_equal(x, rows(6))


def test_ids_that_float32_would_round_are_warned_of(caplog):
    ArrayIter(np.array([2**24 + 1]))
    assert "integer dtype" in caplog.text
    caplog.clear()
    ArrayIter(np.array([2**24 + 1]), dtype="int32")
    ArrayIter(np.array([2**24]))
    assert not caplog.text


# --- Mistakes -----------------------------------------------------------------------------------


WRONG_DATA = {
    "string": "abc",
    "bytes": b"abc",
    "number": 3,
    "none": None,
    "object": object(),
    "objects": np.array([object(), None]),
    "strings": ["a", "b"],
    "digits as text": [["1", "2"]],
    "complex": np.ones((2, 2), complex),
    "dates": np.zeros(2, "M8[s]"),
    "records": np.zeros(2, [("a", "f4")]),
    "ragged": [[1, 2], [3]],
    "arrays of two shapes": [np.ones((2, 3)), np.ones((2, 4))],
    "no rows": np.ones((0, 3)),
    "no columns": np.ones((3, 0)),
    "empty list": [],
    "empty dict": {},
    "set": {1, 2},
    "too large": [1e300],
    "masked": np.ma.masked_equal([1, 2], 2),
    "key": {1: rows(2)},
    "nameless": {"": rows(2)},
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_data_that_cannot_be_trained_on_get_one_clear_line(case):
    with pytest.raises(MXLoopError) as caught:
        as_iterator(WRONG_DATA[case])
    one_line(caught)


def test_row_counts_that_differ_are_named():
    with pytest.raises(DataError) as caught:
        ArrayIter(rows(5), [0, 1, 2, 3])
    message = one_line(caught)
    assert all(part in message for part in ("'data'", "5", "'softmax_label'", "4"))


def test_one_name_for_data_and_label_is_refused():
    with pytest.raises(ArgumentError) as caught:
        ArrayIter({"x": rows(2)}, {"x": rows(2)})
    assert "['x']" in one_line(caught)


@pytest.mark.parametrize("batch_size", [0, -3, 2.0, "8", None, True])
def test_a_batch_size_that_is_no_count_is_refused(batch_size):
    kind = ArgumentError if batch_size in (0, -3) else ArgumentTypeError
    with pytest.raises(kind) as caught:
        ArrayIter(rows(5), batch_size=batch_size)
    assert repr(batch_size) in one_line(caught)


def test_numpy_integers_are_counts():
    assert ArrayIter(rows(5), batch_size=np.int64(2), seed=np.int32(1)).state_dict() == json.loads(
        json.dumps(ArrayIter(rows(5), batch_size=2, seed=1).state_dict())
    )


@pytest.mark.parametrize("policy", ["discard", "roll_over"])
def test_a_policy_that_leaves_no_batch_is_refused(policy):
    with pytest.raises(ArgumentError) as caught:
        ArrayIter(rows(5), batch_size=6, last_batch=policy)
    assert "batch_size" in one_line(caught)


@pytest.mark.parametrize(
    "keywords", [{"last_batch": "wrap"}, {"last_batch": None}, {"seed": -1}, {"seed": 2**32}]
)
def test_settings_outside_their_range_are_refused(keywords):
    with pytest.raises(ArgumentError) as caught:
        ArrayIter(rows(5), **keywords)
    assert next(iter(keywords)) in one_line(caught)


@pytest.mark.parametrize("dtype", ["complex64", "str", "nonsense", "uint16", object])
def test_a_dtype_that_mxnet_lacks_is_refused(dtype):
    with pytest.raises(ArgumentError) as caught:
        ArrayIter(rows(5), dtype=dtype)
    assert "float32" in one_line(caught)


# --- Digits, IDX, MNIST -------------------------------------------------------------------------


def test_the_embedded_digits_are_28_by_28_and_in_0_to_1():
    (train_x, train_y), (test_x, test_y) = load_digits28()
    assert train_x.shape == (1500, 1, 28, 28) and test_x.shape == (297, 1, 28, 28)
    assert train_y.shape == (1500,) and test_y.shape == (297,)
    assert {array.dtype.name for array in (train_x, train_y, test_x, test_y)} == {"float32"}
    assert train_x.min() == 0 and train_x.max() == 1
    assert np.bincount(train_y.astype(int)).min() > 140
    border = np.ones((28, 28), bool)
    border[2:-2, 2:-2] = False
    assert not train_x[:, 0, border].any()


def in_order_of_pixels(images, labels):
    flat = images.reshape(len(images), -1)
    order = np.lexsort(flat.T)
    return flat[order], labels[order]


def test_the_embedded_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    (train_x, train_y), (test_x, test_y) = load_digits28()
    images = np.concatenate([train_x, test_x])[:, 0, 2:-2:3, 2:-2:3] * 16
    mine = in_order_of_pixels(images, np.concatenate([train_y, test_y]))
    assert all(map(np.array_equal, mine, in_order_of_pixels(digits.images, digits.target)))


IDX_CODES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx_bytes(array, kind="u1"):
    header = struct.pack(f">HBB{array.ndim}I", 0, IDX_CODES[kind], array.ndim, *array.shape)
    return header + array.astype(kind).tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("kind", IDX_CODES)
def test_idx_files_of_every_type_are_read(tmp_path, kind, pack):
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(pack(idx_bytes(array, kind)))
    found = read_idx(tmp_path / "file")
    assert found.dtype == np.dtype(kind).newbyteorder("=") and np.array_equal(found, array)


GOOD_IDX = idx_bytes(np.arange(24).reshape(2, 3, 4))
WRONG_IDX = {
    "nothing": b"",
    "no magic": b"hello world, this is text",
    "unknown type": b"\0\0\x0a\x01" + GOOD_IDX[4:],
    "no axes": b"\0\0\x08\0\x07",
    "too many axes": b"\0\0\x08\xff" + b"\0" * 2000,
    "short header": GOOD_IDX[:9],
    "short": GOOD_IDX[:-1],
    "long": GOOD_IDX + b"x",
    "huge": b"\0\0\x08\x03" + b"\xff" * 12 + GOOD_IDX[16:],
    "huge gz": gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + GOOD_IDX[16:]),
    "short gz": gzip.compress(GOOD_IDX[:-1]),
    "long gz": gzip.compress(GOOD_IDX + b"x"),
    "truncated gz": gzip.compress(GOOD_IDX)[:-9],
    "damaged gz": gzip.compress(GOOD_IDX)[:14] + b"\xff" * 30,
    "bad checksum gz": gzip.compress(GOOD_IDX)[:-8] + b"\0" * 8,
}


@pytest.mark.parametrize("case", WRONG_IDX)
def test_a_damaged_idx_file_is_named_in_one_line(tmp_path, case):
    (tmp_path / "some-idx3").write_bytes(WRONG_IDX[case])
    with pytest.raises(DataError) as caught:
        read_idx(tmp_path / "some-idx3")
    assert "some-idx3" in one_line(caught)


def test_an_idx_file_that_is_not_there_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError) as caught:
            read_idx(path)
        assert path.name in one_line(caught)


@pytest.mark.parametrize("path", [None, 3, "a\0b", b"bytes"])
@pytest.mark.parametrize("read", [read_idx, load_mnist, lambda p: RecordIter(p, (3, 8, 8), 5)])
def test_what_is_no_path_is_refused(read, path):
    with pytest.raises(ArgumentTypeError) as caught:
        read(path)
    assert "path" in one_line(caught)


def write_mnist(folder, pack=bytes, suffix="", labels=None):
    random = np.random.RandomState(0)
    for name, n in (("train", 12), ("t10k", 5)):
        images = random.randint(0, 256, (n, 28, 28))
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(images)))
        classes = np.arange(labels or n) % 10
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(classes)))


@pytest.mark.parametrize("pack, suffix", [(bytes, ""), (gzip.compress, ".gz")])
def test_mnist_loads_plain_and_gzipped(tmp_path, pack, suffix):
    write_mnist(tmp_path, pack, suffix)
    (train_x, train_y), (test_x, test_y) = load_mnist(tmp_path)
    assert train_x.shape == (12, 1, 28, 28) and test_x.shape == (5, 1, 28, 28)
    assert train_y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert train_x.dtype == train_y.dtype == np.float32 and 0.9 < train_x.max() <= 1


def test_a_missing_mnist_file_says_which_and_where_to_get_it(tmp_path):
    with pytest.raises(DataError) as caught:
        load_mnist(tmp_path / ("long" * 30))
    message = one_line(caught)
    assert "train-images-idx3-ubyte" in message and "dataset-fashion-mnist" in message


def test_mnist_files_that_do_not_go_together_are_refused(tmp_path):
    write_mnist(tmp_path, labels=3)
    with pytest.raises(DataError) as caught:
        load_mnist(tmp_path)
    assert "(3,)" in one_line(caught)


# --- RecordIO -----------------------------------------------------------------------------------


def png(pixels):
    """A PNG file of (rows, columns, 3) uint8 pixels."""

    def chunk(kind, body):
        check = struct.pack(">I", zlib.crc32(kind + body) & 0xFFFFFFFF)
        return struct.pack(">I", len(body)) + kind + body + check

    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture(scope="module")
def record_file(tmp_path_factory):
    """13 images of 8x8, each of one shade, ten times its label."""
    path = str(tmp_path_factory.mktemp("records") / "images.rec")
    writer = mx.recordio.MXRecordIO(path, "w")
    for label in range(13):
        image = np.full((8, 8, 3), 10 * label, np.uint8)
        header = mx.recordio.IRHeader(0, float(label), label, 0)
        writer.write(mx.recordio.pack(header, png(image)))
    writer.close()
    return path


def labels_and_pads(iterator):
    batches = [(batch.label[0].asnumpy(), batch.data[0].asnumpy(), batch.pad) for batch in iterator]
    for label, data, _ in batches:
        assert np.array_equal(data[:, 0, 4, 4], 10 * label)
    return [label.tolist() for label, _, _ in batches], [pad for _, _, pad in batches]


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_record_comes_once_an_epoch_and_pad_counts_the_filling(record_file, shuffle):
    iterator = record_iterator(record_file, (3, 8, 8), 5, shuffle=shuffle)
    orders = []
    for _ in range(4):
        iterator.reset()
        labels, pads = labels_and_pads(iterator)
        assert pads == [0, 0, 2]
        orders.append(flat(labels)[:13])
        assert sorted(orders[-1]) == list(range(13))
    assert len({str(order) for order in orders}) == (4 if shuffle else 1)


def test_mxnets_own_record_iterator_calls_no_row_padding_with_round_batch_false(record_file):
    """Why the README sends to `record_iterator`, and not to round_batch=False, for images."""
    stock = mx.io.ImageRecordIter(
        path_imgrec=record_file, data_shape=(3, 8, 8), batch_size=5, round_batch=False
    )
    assert [batch.pad for batch in stock] == [0, 0, 0]  # and yet 13 records


def test_a_record_iterator_repeats_with_its_seed_and_continues_from_its_state(record_file):
    def make(seed):
        return RecordIter(record_file, (3, 8, 8), 5, seed=seed, shuffle=True)

    first, second = make(3), make(8)
    for _ in range(4):
        try:
            first.next()
        except StopIteration:
            first.reset()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(3):
        assert labels_and_pads(first) == labels_and_pads(second)
        first.reset(), second.reset()


def test_a_record_iterator_describes_its_batches(record_file):
    iterator = record_iterator(record_file, (3, 8, 8), 5)
    assert [tuple(desc) for desc in iterator.provide_data] == [("data", (5, 3, 8, 8))]
    assert [tuple(desc) for desc in iterator.provide_label] == [("softmax_label", (5,))]
    assert as_iterator(iterator) is iterator


@pytest.mark.parametrize("damage", ["absent", "empty", "text", "cut", "cut by one record head"])
def test_a_damaged_record_file_is_named_in_one_line(record_file, tmp_path, damage):
    with open(record_file, "rb") as stream:
        content = stream.read()
    contents = {
        "empty": b"",
        "text": b"no records in here!!",
        "cut": content[:-4],
        "cut by one record head": content[: content.rfind(content[:4]) + 4],
    }
    if damage in contents:
        (tmp_path / "damaged.rec").write_bytes(contents[damage])
    with pytest.raises(DataError) as caught:
        record_iterator(str(tmp_path / "damaged.rec"), (3, 8, 8), 5)
    assert "damaged.rec" in one_line(caught)


@pytest.mark.parametrize(
    "keywords", [{"data_shape": (3, 8)}, {"batch_size": 40}, {"dtype": "float3"}]
)
def test_a_setting_that_mxnet_refuses_is_one_line(record_file, keywords):
    settings = {"data_shape": (3, 8, 8), "batch_size": 5, **keywords}
    with pytest.raises(DataError) as caught:
        record_iterator(record_file, **settings)
    one_line(caught)


def test_a_misspelt_record_setting_is_named_with_its_mend(record_file):
    with pytest.raises(ArgumentError) as caught:
        record_iterator(record_file, (3, 8, 8), 5, shufle=True)
    assert "did you mean 'shuffle'?" in one_line(caught)
