"""Arrays, RecordIO files and the embedded digits, turned into batches.

Whatever the source, one pass over an iterator shows every sample once, and the order of a pass is
a function of (seed, epoch) alone: that is what lets a run be repeated, and resumed in mid-epoch.
"""

import gzip
import logging
import math
import numbers
import os
import re
import struct
import warnings
import zlib
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError
from mxloop.prefetch import Prefetch
from mxloop.records import count_records
from mxloop.rows import RowsBatch, Tables
from mxloop.validation import SHOWN, check_known, check_seed, count, one_line, shown

__all__ = [
    "ArrayIter",
    "Prefetch",
    "RecordIter",
    "as_iterator",
    "load_digits28",
    "load_mnist",
    "read_idx",
    "record_iterator",
]

LAST_BATCH = ("keep", "pad", "discard", "roll_over")
DTYPES = ("float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bool")
MAX_DENSE_BYTES = 2 << 30
REAL = (numbers.Real, np.bool_)
DIGITS_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.npz")

logger = logging.getLogger(__name__)

Arrays = Union[Any, Dict[str, Any]]
Path = Union[str, "os.PathLike[str]"]
Split = Tuple[np.ndarray, np.ndarray]


# --- What a user hands in -> named, dense, real arrays ------------------------------------------


def _end_of(path):
    """A path as one short piece of a message; of a long one, the end says most."""
    text = " ".join(path.split())
    return text if len(text) <= SHOWN else "..." + text[3 - SHOWN :]


def _checked_path(path):
    """A path as str that the operating system can open."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise ArgumentTypeError(
            f"the path is {shown(repr(path))}; pass it as str or pathlib.Path, without NUL"
        )
    return str(path)


def _type_name(value):
    return shown(type(value).__name__)


def _named_dtype(name, dtype):
    """The NumPy dtype asked for an array: one for all, or a dict that names some."""
    wanted = dtype.get(name, "float32") if isinstance(dtype, dict) else dtype or "float32"
    try:
        found = np.dtype(wanted)
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise ArgumentError(
            f"dtype {shown(repr(wanted))} of {name!r} is none that MXNet trains with; "
            f"use one of {', '.join(DTYPES)}"
        )
    return found.newbyteorder("=")


def _named(values, default_name, role):
    """One array or a dict of arrays -> a dict in the caller's order."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        return {default_name: values}
    for name in values:
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(
                f"{role} has the key {shown(repr(name))}; the keys name inputs of the symbol: "
                "use non-empty strings"
            )
    return values


def _dense_from_sparse(name, value):
    size = math.prod(value.shape) * value.dtype.itemsize
    if size > MAX_DENSE_BYTES:
        raise DataError(
            f"{name!r} is sparse and would fill {size / 2**30:.1f} GiB when made dense; "
            f"{MAX_DENSE_BYTES >> 30} GiB is the limit: select columns or feed parts of the rows"
        )
    return value.toarray()


def _from_sequence(name, value):
    rows = [row.asnumpy() if isinstance(row, mx.nd.NDArray) else row for row in value]
    try:
        with warnings.catch_warnings():
            # Older NumPy only warns of ragged rows, and makes an object array that fails below.
            warnings.simplefilter("ignore")
            return np.asarray(rows)
    except ValueError:
        raise DataError(
            f"{name!r} is a {_type_name(value)} whose rows differ in shape; all rows need one "
            "shape: pad them, or pass several inputs as a dict of name to array"
        ) from None


def _to_numpy(name, value):
    """Any array-like -> NumPy; pandas and SciPy are known by their methods, never imported."""
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy()
    if hasattr(value, "toarray"):
        return _dense_from_sparse(name, value)
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    if isinstance(value, (list, tuple)):
        return _from_sequence(name, value)
    if np.ma.is_masked(value):
        raise DataError(
            f"{name!r} has masked values, which would train as ordinary ones; "
            "fill them first, as with its filled() method"
        )
    return np.asarray(value)


def _real(name, value, array):
    """The array with a real dtype; objects are let in when every one of them is a real number."""
    if array.dtype.kind == "O" and all(isinstance(item, REAL) for item in array.flat):
        return array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{name!r} ({_type_name(value)}) holds {array.dtype.name} values; only real "
            "numbers train: pass float, integer or bool values, encode text and categories first"
        )
    return array


def _check_finite(name, array):
    """One NaN would make every parameter NaN at the first step."""
    if array.dtype.kind != "f":
        return
    bad = ~np.isfinite(array)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise DataError(
            f"{name!r} holds {np.count_nonzero(bad)} NaN or infinite values, the first in row "
            f"{row}; remove or fill them"
        )


def _check_rounding(name, array, dtype):
    """Warn of whole numbers, such as ids, that the float type merges with their neighbours."""
    if array.dtype.kind not in "iu" or dtype.kind != "f" or not array.size:
        return
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    if int(array.max()) > exact or int(array.min()) < -exact:
        logger.warning(
            "%r holds whole numbers beyond %d, which %s rounds; ids need an integer dtype=",
            name,
            exact,
            dtype.name,
        )


def _cast(name, array, dtype):
    _check_rounding(name, array, dtype)
    with np.errstate(over="ignore"):  # older NumPy says nothing either, so look at the result
        result = array.astype(dtype, order="C", copy=False)
    if result is not array and np.isinf(result).any():
        raise DataError(
            f"{name!r} holds values too large for {dtype.name}; scale the data or pass a wider "
            "dtype="
        )
    return result


def _as_array(name, value, dtype):
    array = _real(name, value, _to_numpy(name, value))
    if not array.ndim or not array.size:
        raise DataError(
            f"{name!r} has shape {shown(array.shape)}, so no rows to train on; the first axis "
            "counts the samples: pass at least one, with at least one value"
        )
    _check_finite(name, array)
    return _cast(name, array, _named_dtype(name, dtype))


def _as_arrays(values, default_name, role, dtype):
    named = _named(values, default_name, role)
    return {name: _as_array(name, value, dtype) for name, value in named.items()}


def _check_together(data, label):
    """Inputs and labels must have names of their own and one number of rows."""
    if not data:
        raise ArgumentError("data is an empty dict or None; pass at least one array of samples")
    shared = sorted(set(data) & set(label))
    if shared:
        raise ArgumentError(
            f"{shown(shared)} named both as data and as label; give each its own name "
            "(data_name=, label_name=, or the keys of the dicts)"
        )
    first, rows = next((name, len(array)) for name, array in data.items())
    for name, array in {**data, **label}.items():
        if len(array) != rows:
            raise DataError(
                f"{first!r} has {rows} rows and {name!r} has {len(array)}; every input and label "
                "needs one row a sample: pass equally many"
            )
    return rows


# --- Arrays -> batches --------------------------------------------------------------------------


class ArrayIter(mx.io.DataIter):
    """Batches of arrays in memory, in an order that a seed repeats.

    The order of epoch `e` depends on (`seed`, `e`) alone, through the frozen stream of
    ``numpy.random.RandomState``; with the place in it, that is the whole state.

    Parameters
    ----------
    data, label : array or dict of str to array
        Shape (rows, ...). NumPy, NDArray, list, tuple, pandas, SciPy sparse; any real dtype. Arrays
        that have the wanted dtype already are kept by reference: do not change them meanwhile.
    batch_size : int
        Rows in a batch, at least 1; more than there are makes one short batch.
    shuffle : bool
        A new order every epoch.
    last_batch : {'keep', 'pad', 'discard', 'roll_over'}
        What becomes of rows that do not fill a batch: a short batch; a full one, wrapped around,
        with the number of padding rows in `batch.pad`; nothing; they open the next epoch.
    seed : int, optional
        From 0 to 2**32 - 1. Without it, one is drawn from NumPy's global generator.
    data_name, label_name : str
        Names of arrays given without one.
    dtype : dtype or dict of str to dtype, optional
        float32 where nothing is said.

    Attributes
    ----------
    order : ndarray of int64, shape (rows of this epoch,)
        Sample numbers as this epoch visits them: first what rolled over; at the end what fills no
        batch, where `last_batch` leaves that out.
    epoch, position : int
        The present epoch and the number of its batches that were read.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DataError
        In one line, for settings and arrays that cannot be trained on.
    """

    gives_rows = True  # batches of which CPU contexts take the rows themselves

    def __init__(
        self,
        data: Arrays,
        label: Optional[Arrays] = None,
        batch_size: int = 128,
        shuffle: bool = False,
        last_batch: str = "keep",
        seed: Optional[int] = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = None,
    ):
        super().__init__(count("batch_size", batch_size))
        self._data = _as_arrays(data, data_name, "data", dtype)
        self._label = _as_arrays(label, label_name, "label", dtype)
        self._tables = Tables(list(self._data.values()), list(self._label.values()))
        self.num_data = _check_together(self._data, self._label)
        self.last_batch = self._check_last_batch(last_batch)
        self.shuffle = bool(shuffle)
        self.seed = self._draw_seed() if seed is None else check_seed(seed)
        self._open(epoch=0)

    def _check_last_batch(self, last_batch):
        check_known(last_batch, LAST_BATCH, "last_batch")
        if last_batch in ("discard", "roll_over") and self.num_data < self.batch_size:
            raise ArgumentError(
                f"last_batch={last_batch!r} leaves no batch of {self.batch_size} from "
                f"{self.num_data} rows; lower batch_size or use 'keep' or 'pad'"
            )
        return last_batch

    def _draw_seed(self):
        # An unshuffled iterator needs no seed, and must not move the user's generator.
        return int(np.random.randint(0, 2**32, dtype=np.uint64)) if self.shuffle else 0

    def _permutation(self, epoch):
        if not self.shuffle:
            return np.arange(self.num_data)
        return np.random.RandomState([self.seed, epoch]).permutation(self.num_data)

    def _carried(self, epoch):
        """Rows that roll over into an epoch: known from its number alone, so never stored."""
        left_over = epoch * self.num_data % self.batch_size
        if self.last_batch != "roll_over" or not left_over:
            return np.arange(0)
        return self._permutation(epoch - 1)[-left_over:]

    def _open(self, epoch, position=0):
        self.epoch = epoch
        self.position = position
        self.order = np.concatenate([self._carried(epoch), self._permutation(epoch)])
        self._rows, self._pad = None, 0
        self._numbers = None

    def __len__(self) -> int:
        """Number of batches in the present epoch."""
        whole, rest = divmod(len(self.order), self.batch_size)
        return whole + bool(rest and self.last_batch in ("keep", "pad"))

    @property
    def provide_data(self) -> List[mx.io.DataDesc]:
        """Name, shape of a full batch and dtype of every input, as a list of DataDesc."""
        return self._describe(self._data)

    @property
    def provide_label(self) -> List[mx.io.DataDesc]:
        """Name, shape of a full batch and dtype of every label; empty without labels."""
        return self._describe(self._label)

    def _describe(self, arrays):
        return [
            mx.io.DataDesc(name, (self.batch_size,) + array.shape[1:], array.dtype)
            for name, array in arrays.items()
        ]

    def reset(self) -> None:
        """Move on to the next epoch; stay where nothing of the present one was read."""
        if self.position:
            self._open(self.epoch + 1)

    def iter_next(self) -> bool:
        """Step to the next batch; False at the end of the epoch."""
        if self.position >= len(self):
            return False
        start = self.position * self.batch_size
        self._rows = self.order[start : start + self.batch_size]
        self._pad = self.batch_size - len(self._rows) if self.last_batch == "pad" else 0
        if self._pad:
            self._rows = np.concatenate([self._rows, np.resize(self.order, self._pad)])
        self.position += 1
        return True

    def next(self) -> mx.io.DataBatch:
        """Return the next batch; its arrays are gathered when somebody looks at them."""
        if not self.iter_next():
            raise StopIteration
        return RowsBatch(self._tables, self._rows, self._numbers_of_rows(), self._pad)

    def _numbers_of_rows(self):
        """The real rows' numbers, for devices to take; an epoch's are copied to MXNet at once."""
        if self._tables.shared is None:
            return None
        if self._numbers is None:
            self._numbers = mx.nd.array(self.order, dtype="int64")
        start = (self.position - 1) * self.batch_size
        return self._numbers[start : start + len(self._rows) - self._pad]

    @property
    def labels_at_hand(self) -> List[np.ndarray]:
        """All labels, in the order of `provide_label`."""
        return list(self._label.values())

    def getdata(self) -> List[mx.nd.NDArray]:
        """The present batch's inputs, a list of NDArray."""
        return self._tables.gather("data", self._rows)

    def getlabel(self) -> List[mx.nd.NDArray]:
        """The present batch's labels, a list of NDArray."""
        return self._tables.gather("label", self._rows)

    def getindex(self) -> np.ndarray:
        """Sample numbers of the present batch's rows, padding included."""
        return self._rows

    def getpad(self) -> int:
        """Number of rows at the end of the present batch that only fill it."""
        return self._pad

    def state_dict(self) -> Dict[str, Any]:
        """What `load_state_dict` needs to go on with the very next batch; fit for JSON."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            **self._shape_of_epochs(),
        }

    def _shape_of_epochs(self):
        return {
            "num_data": self.num_data,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "last_batch": self.last_batch,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on where the iterator that gave `state` stood.

        Raises
        ------
        DataError
            If the state is damaged, or of other data or settings than this iterator's.
        """
        seed, epoch, position = _checked_state(state, self._shape_of_epochs())
        self.seed = seed
        self._open(epoch, position)


def _checked_state(state, expected):
    """Seed, epoch and position of a state that fits the iterator's own settings."""
    if not isinstance(state, dict):
        raise DataError(f"an iterator state must be the dict of state_dict(), not {shown(state)}")
    for key, own in expected.items():
        if state.get(key) != own:
            raise DataError(
                f"the saved iterator state has {key}={shown(repr(state.get(key)))}, this iterator "
                f"{key}={shown(repr(own))}; make it as it was, or start without the saved state"
            )
    for key in ("seed", "epoch", "position"):
        if type(state.get(key)) is not int or not 0 <= state[key] < 2**32:
            raise DataError(
                f"the saved iterator state has {key}={shown(repr(state.get(key)))}; it must be an "
                "integer from 0 to 2**32 - 1: the state is damaged, start without it"
            )
    return state["seed"], state["epoch"], state["position"]


def is_iterator(value: Any) -> bool:
    """Whether a value gives batches by itself, and so is no array."""
    return hasattr(value, "provide_data") and hasattr(value, "reset")


def as_iterator(
    X: Any,
    y: Optional[Arrays] = None,
    batch_size: int = 128,
    shuffle: bool = False,
    last_batch: str = "keep",
    seed: Optional[int] = None,
    data_name: str = "data",
    label_name: str = "softmax_label",
    dtype: Any = None,
) -> mx.io.DataIter:
    """Make a data iterator of whatever a user calls data.

    Parameters
    ----------
    X : DataIter, array or dict of str to array
        An iterator (`provide_data`, `reset`) comes back as it is.
    y : array or dict of str to array, optional
        Labels of the arrays in `X`.
    batch_size, shuffle, last_batch, seed, data_name, label_name, dtype
        As in `ArrayIter`; they do not concern an iterator.

    Returns
    -------
    DataIter

    Raises
    ------
    ArgumentError, ArgumentTypeError, DataError
        If `y` accompanies an iterator, or the arrays cannot be trained on.
    """
    if not is_iterator(X):
        return ArrayIter(X, y, batch_size, shuffle, last_batch, seed, data_name, label_name, dtype)
    if y is not None:
        raise ArgumentError(
            f"X is an iterator ({_type_name(X)}), which brings its own labels, and y came "
            "besides; leave y out, or pass X as an array"
        )
    return X


# --- Data sets in files -------------------------------------------------------------------------


NUM_TRAIN = 1500


def load_digits28() -> Tuple[Split, Split]:
    """Load the embedded handwritten digits, enlarged from 8x8 to MNIST's 28x28 pixels.

    These are scikit-learn's digits (UCI, E. Alpaydin), every pixel repeated 3 x 3 and a border of
    2 added; see the note beside the file.

    Returns
    -------
    ((train_x, train_y), (test_x, test_y))
        x float32 of shape (n, 1, 28, 28) in 0..1, y float32 of shape (n,): 1,500 samples to train
        and the other 297 to test, in a fixed random split. (The file is in the order of its
        writers: its end is by people whom its beginning has not seen.)
    """
    with np.load(DIGITS_FILE, allow_pickle=False) as digits:
        order = np.random.RandomState(0).permutation(len(digits["labels"]))
        images, labels = digits["images"][order], digits["labels"][order]
    large = images.repeat(3, axis=1).repeat(3, axis=2)
    x = np.pad(large, ((0, 0), (2, 2), (2, 2)), mode="constant")[:, None].astype(np.float32) / 16
    y = labels.astype(np.float32)
    return (x[:NUM_TRAIN], y[:NUM_TRAIN]), (x[NUM_TRAIN:], y[NUM_TRAIN:])


IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_IDX_AXES = 32
MAX_DEFLATE_RATIO = 1032
READ_ERRORS = (OSError, EOFError, zlib.error)


def read_idx(path: Path) -> np.ndarray:
    """Read an array from a file in the IDX format of the MNIST data sets, plain or gzipped.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    ndarray
        Of the file's shape and its dtype (uint8, int8, int16, int32, float32 or float64).

    Raises
    ------
    DataError
        If the file cannot be read, or is not what its header announces.
    """
    path = _checked_path(path)
    try:
        with open(path, "rb") as raw:
            # No deflate stream unpacks to more than this, so a header cannot ask for memory
            # that the file could not fill.
            zipped = raw.read(2) == b"\x1f\x8b"
            limit = os.fstat(raw.fileno()).st_size * (MAX_DEFLATE_RATIO if zipped else 1)
            raw.seek(0)
            return _parse_idx(path, gzip.GzipFile(fileobj=raw) if zipped else raw, limit)
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {_end_of(path)}: {shown(reason)}; pass an IDX file, plain or .gz"
        ) from None


def _parse_idx(path, stream, limit):
    dtype, axes = _idx_type(path, stream.read(4))
    sizes = stream.read(4 * axes)
    if len(sizes) < 4 * axes:
        raise _idx_error(path, f"ends inside its header of {axes} axes")
    shape = struct.unpack(f">{axes}I", sizes)
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise _idx_error(path, f"announces {size} bytes of values, more than it can hold")
    values = stream.read(size + 1)
    if len(values) != size:
        raise _idx_error(path, f"announces {size} bytes of values and holds {_held(values, size)}")
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _held(values, size):
    return "more" if len(values) > size else len(values)


def _idx_type(path, magic):
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
        raise _idx_error(path, f"begins with the bytes {magic.hex() or '(none)'}")
    if not 1 <= magic[3] <= MAX_IDX_AXES:
        raise _idx_error(path, f"announces {magic[3]} axes")
    return np.dtype(IDX_TYPES[magic[2]]), magic[3]


def _idx_error(path, what):
    return DataError(
        f"{_end_of(path)} {what}; that is no intact IDX file: fetch or unpack it again"
    )


MNIST_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def load_mnist(folder: Path) -> Tuple[Split, Split]:
    """Load MNIST, or Fashion-MNIST, from a folder with its four usual files, plain or ``.gz``.

    Parameters
    ----------
    folder : str or path-like

    Returns
    -------
    ((train_x, train_y), (test_x, test_y))
        x float32 of shape (n, 1, 28, 28) in 0..1, y float32 of shape (n,).

    Raises
    ------
    DataError
        If a file is missing, damaged, or does not go with its companion.
    """
    found = [[_find_idx(folder, name) for name in pair] for pair in MNIST_FILES]
    return tuple(_load_pair(*pair) for pair in found)


def _find_idx(folder, name):
    path = os.path.join(_checked_path(folder), name)
    for candidate in (path, path + ".gz"):
        if os.path.isfile(candidate):
            return candidate
    raise DataError(
        f"no {name}[.gz] in {_end_of(str(folder))}; name the folder with the train and t10k images "
        "and labels of MNIST's site, or of Debian's package dataset-fashion-mnist"
    )


def _load_pair(image_path, label_path):
    images, labels = read_idx(image_path), read_idx(label_path)
    if images.dtype != np.uint8 or images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{_end_of(image_path)} holds {images.dtype} of shape {shown(images.shape, 40)} "
            f"and its labels {shown(labels.shape, 40)}; (n, rows, columns) of uint8 and (n,) "
            "are needed"
        )
    return images[:, None].astype(np.float32) / 255, labels.astype(np.float32)


# --- RecordIO -----------------------------------------------------------------------------------


RECORD_MAGIC = struct.pack("<I", 0xCED7230A)
RECORD_SIZE_BITS = 29
TAIL_BLOCK = 1 << 20


class RecordIter(mx.io.DataIter):
    """Batches of images from a RecordIO file: `mx.io.ImageRecordIter`, every record once an epoch.

    MXNet's iterator fills a last batch from the start of the file and leaves those records out of
    its next pass, and announces wrong `pad` values after a reset; only its first pass is right. So
    every epoch here is the first pass of a new one, with a seed of its own.

    Parameters
    ----------
    path_imgrec : str
        The ``.rec`` file, as packed by `mx.recordio`.
    data_shape : tuple of int
        (channels, rows, columns) of an image as the network sees it.
    batch_size : int
        At least 1, at most the number of records. The last batch is filled up, with the number of
        rows that only fill it in `batch.pad`.
    seed : int
        Epoch `e` shuffles and augments with `seed` + `e`.
    **kwargs
        Passed on to `mx.io.ImageRecordIter` (`shuffle`, `rand_crop`, `mean_r`, ...).

    Raises
    ------
    ArgumentError, ArgumentTypeError, DataError
        If the file is missing or damaged, or MXNet refuses a setting.
    """

    def __init__(
        self,
        path_imgrec: Path,
        data_shape: Tuple[int, int, int],
        batch_size: int,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(count("batch_size", batch_size))
        self.seed = check_seed(seed)
        self._settings = {
            "verbose": False,
            **_known_settings(kwargs),
            "path_imgrec": _checked_record_file(path_imgrec),
            "data_shape": data_shape,
            "batch_size": self.batch_size,
            "round_batch": True,
        }
        self._length: Optional[int] = None
        self._open(epoch=0)

    def __len__(self) -> int:
        """Number of batches in an epoch; the first call counts the records of the file."""
        if self._length is None:
            settings = self._settings
            part = settings.get("part_index", 0), settings.get("num_parts", 1)
            self._length = -(-count_records(settings["path_imgrec"], *part) // self.batch_size)
        return self._length

    def _open(self, epoch):
        self.epoch = epoch
        self.position = 0
        seed = (self.seed + epoch) % 2**31
        with one_line("open the record file"):
            self._pass = mx.io.ImageRecordIter(seed=seed, **{"seed_aug": seed, **self._settings})

    @property
    def provide_data(self) -> List[mx.io.DataDesc]:
        """Name, shape and dtype of the images, as a list of DataDesc."""
        return self._pass.provide_data

    @property
    def provide_label(self) -> List[mx.io.DataDesc]:
        """Name, shape and dtype of the labels, as a list of DataDesc."""
        return self._pass.provide_label

    def reset(self) -> None:
        """Move on to the next epoch; stay where nothing of the present one was read."""
        if self.position:
            self._open(self.epoch + 1)

    def next(self) -> mx.io.DataBatch:
        """Return the next DataBatch."""
        with one_line("read on in the record file"):
            batch = self._pass.next()
        self.position += 1
        return batch

    def state_dict(self) -> Dict[str, Any]:
        """What `load_state_dict` needs to go on with the very next batch; fit for JSON."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on where the iterator that gave `state` stood, by reading up to that place."""
        expected = {"batch_size": self.batch_size}
        self.seed, epoch, position = _checked_state(state, expected)
        self._open(epoch)
        try:
            for _ in range(position):
                self.next()
        except StopIteration as error:
            raise DataError(
                f"the saved iterator state is at batch {position}, and the file has "
                f"{self.position}; read the file that it was made with"
            ) from error


def record_iterator(
    path_imgrec: Path, data_shape: Tuple[int, int, int], batch_size: int, **kwargs: Any
) -> RecordIter:
    """Make a `RecordIter`, under the name and with the keywords of the functions around it."""
    return RecordIter(path_imgrec, data_shape, batch_size, **kwargs)


def _known_settings(settings):
    """The settings, if MXNet has them all: a misspelt one it would pass over in silence."""
    known = re.findall(r"^(\w+) : ", mx.io.ImageRecordIter.__doc__, re.MULTILINE)
    for name in settings:
        check_known(name, set(known), "setting of mx.io.ImageRecordIter")
    return settings


def _checked_record_file(path):
    """The path as str, once the file's two ends are sound: MXNet aborts the process otherwise."""
    path = _checked_path(path)
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            head = stream.read(4)
            whole = size % 4 == 0 and head == RECORD_MAGIC and _ends_whole(stream, size)
    except OSError as error:
        raise DataError(
            f"cannot read {_end_of(path)}: {error.strerror}; pass the path of a .rec file"
        ) from None
    if not whole:
        raise DataError(
            f"{_end_of(path)} is no intact RecordIO file ({size} bytes, beginning with "
            f"{head.hex() or 'nothing'}); pack it with mx.recordio, or fetch it again"
        )
    return path


def _ends_whole(stream, size):
    """Whether the last record reaches exactly to the end of the file.

    RecordIO splits payloads so that the magic stands at a multiple of 4 in front of records only:
    the last one can be found from the end, without walking through the file.
    """
    start = _last_header(stream, size)
    stream.seek(start)
    header = stream.read(8)
    if len(header) < 8:
        return False
    part, length = divmod(struct.unpack("<4xI", header)[0], 1 << RECORD_SIZE_BITS)
    return part in (0, 3) and start + 8 + (length + 3) // 4 * 4 == size


def _last_header(stream, size):
    for start in range((size - 1) // TAIL_BLOCK * TAIL_BLOCK, -1, -TAIL_BLOCK):
        stream.seek(start)
        words = np.frombuffer(stream.read(TAIL_BLOCK), "<u4")
        hits = np.flatnonzero(words == struct.unpack("<I", RECORD_MAGIC)[0])
        if len(hits):
            return start + 4 * int(hits[-1])
    return 0
