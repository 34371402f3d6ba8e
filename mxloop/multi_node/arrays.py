"""MXNet's arrays as memory that MPI can read and write."""

from typing import Any, List, Tuple, Union

import numpy as np

from mxloop import host
from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError
from mxloop.validation import names, shown

Array = Union[np.ndarray, mx.nd.NDArray]

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")


def is_array(value: Any) -> bool:
    """Whether this is an array of MXNet or of NumPy."""
    return isinstance(value, (mx.nd.NDArray, np.ndarray))


def check(value: Any) -> Array:
    """Raise ArgumentTypeError unless this is an array of numbers that ranks can exchange."""
    if not is_array(value):
        raise ArgumentTypeError(
            f"got {shown(repr(value))} where an array goes to other ranks; pass an NDArray or a "
            "NumPy array, or use the communicator's *_obj methods"
        )
    if np.dtype(value.dtype).name not in DTYPES:
        raise ArgumentTypeError(
            f"an array of {np.dtype(value.dtype).name} cannot go to other ranks; cast it to one "
            f"of {names(DTYPES)}"
        )
    if isinstance(value, mx.nd.NDArray) and value.stype != "default":
        raise ArgumentTypeError(
            f"a {value.stype} array cannot go to other ranks; pass x.tostype('default')"
        )
    return value


def check_all(values: Any) -> List[Array]:
    """Check a list or tuple of arrays."""
    return [check(value) for value in values]


def view(array: mx.nd.NDArray) -> np.ndarray:
    """Show a CPU array's memory to NumPy, without a copy, once nothing is about to write it.

    It must not be read or written any more once the array is given to another operator.
    """
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
    return host.view(array)


def is_on_cpu(array: Array) -> bool:
    """Whether MPI can reach the memory."""
    return isinstance(array, np.ndarray) or array.context.device_type.startswith("cpu")


def to_memory(array: Array) -> Tuple[np.ndarray, Any]:
    """The values as contiguous memory to read, and what must be kept for as long as that."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(array.shape), array
    if not is_on_cpu(array):
        return array.asnumpy(), None
    array.wait_to_read()
    return host.view(array), array


def empty(shape: Tuple[int, ...], dtype: str, is_mxnet: bool) -> Tuple[Array, np.ndarray]:
    """A new array, and its memory to write to."""
    if not is_mxnet:
        array = np.empty(shape, dtype)
        return array, array
    array = mx.nd.empty(shape, mx.cpu(), dtype)
    return array, view(array)
