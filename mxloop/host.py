"""NumPy's side of NDArrays that live in the computer's own memory."""

import atexit
import ctypes
import math
import os
import threading
from typing import Optional

import numpy as np

from mxloop.compat import mx

nd = mx.nd.ndarray  # where MXNet keeps the structures of DLPack


def view(array: mx.nd.NDArray) -> np.ndarray:
    """Look at a dense CPU array's memory as NumPy, without a copy and without waiting.

    It is the caller who knows that no operator still writes or reads it. The array lives as long.
    """
    dtype, shape = np.dtype(array.dtype), array.shape
    size = math.prod(shape)
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


class _Shared(mx.nd.NDArray):
    """An NDArray in the memory of a NumPy array, which it keeps until no operator reads it.

    Take no slices of it: those would not keep the memory.
    """

    def __init__(self, handle, memory):
        super().__init__(handle)
        self._memory, self._process = memory, os.getpid()

    def __del__(self):
        if _engine_runs(self._process):
            mx.base._LIB.MXNDArrayWaitToWrite(self.handle)
        else:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # somebody may still read it
        super().__del__()


_ended = threading.Event()
atexit.register(_ended.set)


def _engine_runs(process):
    """Whether MXNet's engine still works in this process, and for another thread than this one.

    Its own threads, unknown to Python, must not wait for themselves.
    """
    own = isinstance(threading.current_thread(), threading._DummyThread)
    return not (own or _ended.is_set()) and process == os.getpid()


def shared(array: np.ndarray) -> Optional[mx.nd.NDArray]:
    """Make an NDArray on cpu(0) of an array's own memory, without a copy; it must not be written.

    Parameters
    ----------
    array : ndarray
        In C order.

    Returns
    -------
    NDArray or None
        None where MXNet cannot: for 2**31 elements and more, and for some dtypes.
    """
    if array.size >= 2**31 or array.dtype.name not in nd.DLDataType.TYPE_MAP:
        return None
    tensor = nd.DLTensor()
    tensor.data = array.ctypes.data_as(ctypes.c_void_p)
    tensor.ctx = nd.DLContext(1, 0)  # the CPU
    tensor.ndim = array.ndim
    tensor.dtype = nd.DLDataType.TYPE_MAP[array.dtype.name]
    tensor.shape = array.ctypes.shape_as(ctypes.c_int64)
    managed = nd.DLManagedTensor()
    managed.dl_tensor = tensor
    handle = mx.base.NDArrayHandle()
    mx.base.check_call(
        mx.base._LIB.MXNDArrayFromDLPackEx(ctypes.byref(managed), True, ctypes.byref(handle))
    )
    return _Shared(handle, array)
