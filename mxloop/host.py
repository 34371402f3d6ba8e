"""NumPy's side of NDArrays that live in the computer's own memory."""

import ctypes

import numpy as np

from mxloop.compat import mx


def view(array: mx.nd.NDArray) -> np.ndarray:
    """Look at a dense CPU array's memory as NumPy, without a copy and without waiting.

    It is the caller who knows that no operator still writes or reads it. The array lives as long.
    """
    dtype, shape = np.dtype(array.dtype), array.shape
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        return np.empty(shape, dtype)
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer.value)
    memory.owner = array  # which frees the memory when it goes
    return np.frombuffer(memory, dtype, size).reshape(shape)


def gather(array: np.ndarray, rows: np.ndarray) -> mx.nd.NDArray:
    """Take rows of an array in one pass into a new NDArray on the CPU.

    Parameters
    ----------
    array : ndarray, shape (n, ...)
    rows : ndarray of int
        From 0 to n - 1.
    """
    gathered = mx.nd.empty((len(rows), *array.shape[1:]), mx.cpu(), array.dtype)
    # Nothing knows of the new array yet, so nothing has to be waited for. Indices are right by
    # construction; mode 'raise' would gather into a copy first.
    array.take(rows, axis=0, out=view(gathered), mode="clip")
    return gathered
