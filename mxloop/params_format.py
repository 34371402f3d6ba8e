"""MXNet's file of named arrays (``.params``), written and read without MXNet's C++ reader.

That reader takes every number of a file on trust and crashes on some broken ones. Here each count,
shape and size is held against the bytes that are there before any memory is taken.

A file is: 0x112, 0, the number of arrays, the arrays, the number of names, the names. An array is a
magic number that tells its age, a shape, a device, a dtype flag and its bytes; all little-endian.
"""

import math
import struct
from typing import Any, Dict, Iterator, Tuple

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError
from mxloop.validation import one_line, shown

Arrays = Dict[str, mx.nd.NDArray]

FILE_MAGIC = 0x112
# The ages of an array: no magic number at all (32-bit sizes), then 64-bit sizes, then storage
# types, then NumPy's shapes, in which () and (0,) are shapes like any other.
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
DTYPES = {
    0: np.dtype("float32"),
    1: np.dtype("float64"),
    2: np.dtype("float16"),
    3: np.dtype("uint8"),
    4: np.dtype("int32"),
    5: np.dtype("int8"),
    6: np.dtype("int64"),
    7: np.dtype("bool"),
    12: BFLOAT16,
}
FLAGS = {dtype: flag for flag, dtype in DTYPES.items()}
BOOL, INT64 = 7, 6
DEVICES = (1, 2, 3, 5)  # cpu, gpu, cpu_pinned, cpu_shared
STORAGE = {"default": 0, "row_sparse": 1, "csr": 2}
INDICES = {1: ("indices",), 2: ("indptr", "indices")}  # arrays that go with a sparse one, in order

MOST_DIMENSIONS = 32
MOST_ELEMENTS = 2**31 - 1  # of this build of MXNet
MOST_ARRAYS = 100_000  # each takes about 1 kB of memory, however small it is in the file
LEAST_ARRAY, LEAST_NAME = 4 * 5, 8  # bytes


def ending(where: Any, limit: int = 60) -> str:
    """A file's name as a piece of a message; of a long one the end, which tells more."""
    text = shown(where, 4096)
    return text if len(text) <= limit else "..." + text[3 - limit :]


def encode(arrays: Arrays) -> bytes:
    """Write named arrays as ``mx.nd.save`` does, byte for byte.

    Parameters
    ----------
    arrays : dict of str to NDArray
        Dense, row_sparse or csr, of any dtype and on any device.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If something is no array, or an array has a shape that the format cannot hold.
    """
    return b"".join(chunks(arrays))


def chunks(arrays: Arrays) -> Iterator[Any]:
    """Give the buffers whose sum is `encode`; only one array at a time is copied."""
    yield struct.pack("<QQQ", FILE_MAGIC, 0, len(arrays))
    for name, array in arrays.items():
        yield from _array_chunks(name, array)
    yield struct.pack("<Q", len(arrays))
    for name in arrays:
        text = _name_bytes(name)
        yield struct.pack("<Q", len(text)) + text


def _name_bytes(name):
    try:
        return name.encode("utf-8")
    except (AttributeError, UnicodeEncodeError) as error:
        raise ArgumentTypeError(
            f"an array is named {shown(ascii(name))}; names in a file are text that UTF-8 can write"
        ) from error


def _array_chunks(name, array):
    if not isinstance(array, mx.nd.NDArray):
        raise ArgumentTypeError(
            f"{shown(repr(name))} is {shown(repr(array))}; a file of arrays holds mx.nd.NDArray"
        )
    as_numpy = mx.util.is_np_shape()
    if array.ndim == 0 and not as_numpy:
        raise ArgumentError(
            f"{shown(repr(name))} has no dimension, and MXNet cannot read such an array back; "
            "reshape it to (1,)"
        )
    if array.stype != "default":
        yield from _sparse_chunks(array)
        return
    values = array.asnumpy()
    yield struct.pack("<Ii", V3 if as_numpy else V2, STORAGE["default"]) + _shape_bytes(array.shape)
    yield _device_bytes(array) + struct.pack("<i", FLAGS[values.dtype])
    yield _raw(values)


def _sparse_chunks(array):
    storage = STORAGE[array.stype]
    # How much is stored is known only when it is computed; MXNet's own save does not wait for that.
    array.wait_to_read()
    # An array without any row or element stored has parts of zero size, which only NumPy's shapes
    # tell from unknown ones.
    with mx.util.np_shape(True):
        values = array.data.asnumpy()
        indices = [getattr(array, part).asnumpy() for part in INDICES[storage]]
    yield struct.pack("<Ii", V2, storage) + _shape_bytes(values.shape) + _shape_bytes(array.shape)
    yield _device_bytes(array) + struct.pack("<i", FLAGS[values.dtype])
    for index in indices:
        yield struct.pack("<i", FLAGS[index.dtype]) + _shape_bytes(index.shape)
    for part in (values, *indices):
        yield _raw(part)


def _shape_bytes(shape):
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


def _device_bytes(array):
    return struct.pack("<ii", array.context.device_typeid, array.context.device_id)


def _raw(values):
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def decode(data: Any, where: str = "the file") -> Arrays:
    """Read named arrays of any age of the format, all onto the CPU.

    Parameters
    ----------
    data : bytes-like
    where : str
        What a message calls the data.

    Returns
    -------
    dict of str to NDArray

    Raises
    ------
    DataError
        If the data are anything but a whole and sound file of named arrays.
    """
    reader = Reader(data, where)
    reader.header()
    arrays = [reader.array() for _ in range(reader.count("array", LEAST_ARRAY))]
    names = [reader.name() for _ in range(reader.count("name", LEAST_NAME))]
    reader.end()
    if len(names) != len(arrays):
        reader.refuse(f"{len(arrays)} arrays and {len(names)} names")
    if len(set(names)) != len(names):
        reader.refuse("several arrays of the same name")
    return dict(zip(names, arrays))


def decode_one(data: Any, where: str = "the array") -> mx.nd.NDArray:
    """Read a single array without a name, as MXNet pickles it.

    Raises
    ------
    DataError
        If the data are anything but one whole array.
    """
    reader = Reader(data, where)
    array = reader.array()
    reader.end()
    return array


class Reader:
    """A place in bytes, and what can be read from there."""

    def __init__(self, data: Any, where: str) -> None:
        self.data = memoryview(data).cast("B")
        self.where = where
        self.at = 0

    def refuse(self, came: str) -> None:
        """Say what is wrong with the file."""
        raise DataError(
            f"{ending(self.where)} is no whole .params file of MXNet: it holds {shown(came, 90)}; "
            "take another copy of it, or save it anew"
        )

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.data) - self.at

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if size > self.left:
            self.refuse(f"{len(self.data)} bytes and needs {size - self.left} more at {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, kind: str, count: int = 1) -> Tuple[int, ...]:
        """The next numbers, of a kind as in the module ``struct``."""
        layout = f"<{count}{kind}"
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def header(self) -> None:
        """The first sixteen bytes, the same in every file."""
        if self.left == 0:
            self.refuse("nothing")
        first, reserved = self.numbers("Q", 2)
        if first != FILE_MAGIC:
            self.refuse(f"{first:#x} where such a file has {FILE_MAGIC:#x}")
        if reserved != 0:
            self.refuse(f"{reserved:#x} in its second number, which is always 0")

    def count(self, what: str, least: int) -> int:
        """How many arrays or names follow, each of which takes at least so many bytes."""
        (count,) = self.numbers("Q")
        if count * least > self.left:
            self.refuse(f"a count of {count} {what}s and only {self.left} more bytes")
        if count > MOST_ARRAYS:
            self.refuse(f"{count} {what}s, and mxloop reads at most {MOST_ARRAYS}")
        return count

    def name(self) -> str:
        """The next name."""
        (length,) = self.numbers("Q")
        raw = bytes(self.take(length))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return self.refuse(f"the name {raw[:20]!r}, which is not UTF-8")

    def end(self) -> None:
        """Nothing may follow."""
        if self.left:
            self.refuse(f"{self.left} bytes after its end")

    def array(self) -> mx.nd.NDArray:
        """The next array, of any age and storage type."""
        (magic,) = self.numbers("I")
        if magic not in (V2, V3):
            shape = self.dims("q") if magic == V1 else self.dims("I", magic)
            return self.dense(shape)
        (storage,) = self.numbers("i")
        if storage == STORAGE["default"]:
            return self.dense(self.dims("q", least=0 if magic == V3 else 1))
        if storage not in INDICES:
            self.refuse(f"an array of storage type {storage}; MXNet knows {STORAGE}")
        return self.sparse(storage)

    def dims(self, kind: str, count: Any = None, least: int = 1) -> Tuple[int, ...]:
        """The next shape."""
        (count,) = self.numbers("i") if count is None else (count,)
        if not least <= count <= MOST_DIMENSIONS:
            self.refuse(f"an array of {count} dimensions; {least} to {MOST_DIMENSIONS} are allowed")
        shape = self.numbers(kind, count)
        if min(shape, default=0) < 0 or math.prod(max(dim, 1) for dim in shape) > MOST_ELEMENTS:
            self.refuse(f"an array of shape {shape}; at most {MOST_ELEMENTS} elements are allowed")
        return shape

    def dense(self, shape: Tuple[int, ...]) -> mx.nd.NDArray:
        """A dense array, from its device on."""
        return _array(self.values(shape, self.device_and_flag()))

    def sparse(self, storage: int) -> mx.nd.NDArray:
        """A row_sparse or csr array, from its storage shape on."""
        stored, shape = self.dims("q"), self.dims("q")
        flag = self.device_and_flag()
        index_shapes = [self.index_shape() for _ in INDICES[storage]]
        values = self.values(stored, flag)
        indices = [self.values(index_shape, INT64) for index_shape in index_shapes]
        flaw = _FLAWS[storage](shape, values, *indices)
        if flaw:
            self.refuse(f"a sparse array whose {flaw}")
        return _SPARSE[storage](shape, values, *indices)

    def device_and_flag(self) -> int:
        """The flag of an array's dtype; where the array was does not matter."""
        kind, number, flag = self.numbers("i", 3)
        if kind not in DEVICES or number < 0:
            self.refuse(f"an array on device {number} of type {kind}; types are {DEVICES}")
        if flag not in DTYPES:
            self.refuse(f"an array of dtype flag {flag}; MXNet knows {list(DTYPES)}")
        return flag

    def index_shape(self) -> Tuple[int, ...]:
        """The shape of one array of a sparse array's indices, which MXNet keeps as int64."""
        (flag,) = self.numbers("i")
        if flag != INT64:
            self.refuse(f"indices of dtype flag {flag}; {INT64} (int64) is allowed")
        return self.dims("q")

    def values(self, shape: Tuple[int, ...], flag: int) -> np.ndarray:
        """The elements of an array, as a view of the file's bytes."""
        dtype = DTYPES[flag]
        raw = self.take(math.prod(shape) * dtype.itemsize)
        if not raw:
            return np.empty(shape, dtype)
        if flag == BOOL and np.frombuffer(raw, np.uint8).max() > 1:
            self.refuse("a bool array with other values than 0 and 1")
        return np.frombuffer(raw, dtype).reshape(shape)


def _array(values):
    with one_line("make an array of a file's"), mx.util.np_shape(True):
        array = mx.nd.empty(values.shape, mx.cpu(), _mx_dtype(values.dtype))
        if values.size:
            array._sync_copyfrom(values)
    return array


def _mx_dtype(dtype):
    return dtype if dtype == BFLOAT16 else dtype.type


def _row_sparse_flaw(shape, values, rows):
    if rows.ndim != 1 or values.shape != (len(rows), *shape[1:]):
        return f"parts have shapes {values.shape} and {rows.shape}, which do not fit {shape}"
    return _order_flaw(rows, shape[0])


def _csr_flaw(shape, values, indptr, columns):
    if len(shape) != 2 or indptr.shape != (shape[0] + 1,) or values.shape != columns.shape:
        return f"parts have shapes {values.shape} and {indptr.shape}, which do not fit {shape}"
    if indptr[0] != 0 or indptr[-1] != len(columns) or (np.diff(indptr) < 0).any():
        return "row pointers do not rise from 0 to the number of elements"
    row = np.repeat(np.arange(shape[0]), np.diff(indptr))
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        return f"columns are not in 0 to {shape[1] - 1}"
    return _order_flaw(row * shape[1] + columns, shape[0] * shape[1])


def _order_flaw(index, size):
    if len(index) and not (index[0] >= 0 and index[-1] < size and (np.diff(index) > 0).all()):
        return f"indices do not rise within 0 to {size - 1}"
    return None


def _row_sparse(shape, values, rows):
    if not len(rows):
        return mx.nd.sparse.zeros("row_sparse", shape, mx.cpu(), values.dtype.type)
    parts = (_array(values), _array(rows))
    return mx.nd.sparse.row_sparse_array(parts, shape, mx.cpu(), values.dtype.type)


def _csr(shape, values, indptr, columns):
    if not len(columns):
        return mx.nd.sparse.zeros("csr", shape, mx.cpu(), values.dtype.type)
    parts = (_array(values), _array(columns), _array(indptr))
    return mx.nd.sparse.csr_matrix(parts, shape, mx.cpu(), values.dtype.type)


_FLAWS = {1: _row_sparse_flaw, 2: _csr_flaw}
_SPARSE = {1: _row_sparse, 2: _csr}
