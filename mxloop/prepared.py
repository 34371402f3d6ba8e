"""Operators made ready once, for arrays that stay the same from step to step.

`mx.nd` looks up, checks and converts all arguments of an operator each time, which takes several
times as long as to hand it to the engine.
"""

import ctypes
from typing import Any, Dict, Sequence

from mxloop.compat import mx

_LIB = mx.base._LIB
_invoke = _LIB.MXImperativeInvokeEx
Handle = mx.base.NDArrayHandle


class Prepared:
    """One operator on arrays that are known beforehand.

    Parameters
    ----------
    name : str
        MXNet's name of the operator, as 'sgd_update'.
    inputs, outputs : sequence of NDArray
    **settings
        The operator's parameters.

    Raises
    ------
    MXNetError
        If MXNet has no such operator; when it is run, if it does not take arrays or settings.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[mx.nd.NDArray],
        outputs: Sequence[mx.nd.NDArray],
        **settings: Any,
    ):
        self._arrays = (list(inputs), list(outputs))  # which must live as long as their handles
        self._inputs = mx.base.c_handle_array(inputs)
        self._outputs = ctypes.cast(mx.base.c_handle_array(outputs), ctypes.POINTER(Handle))
        operator = ctypes.c_void_p()
        mx.base.check_call(_LIB.NNGetOpHandle(mx.base.c_str(name), ctypes.byref(operator)))
        self._head = (operator, ctypes.c_int(len(inputs)), self._inputs)
        self._head += (ctypes.byref(ctypes.c_int(len(outputs))), ctypes.byref(self._outputs))
        self.set(settings)

    def set(self, settings: Dict[str, Any]) -> None:
        """Take other values of the operator's parameters, where they are others."""
        if settings == getattr(self, "_settings", None):
            return
        self._settings = dict(settings)
        keys = mx.base.c_str_array(list(settings))
        values = mx.base.c_str_array([str(value) for value in settings.values()])
        stypes = ctypes.POINTER(ctypes.c_int)()
        tail = (ctypes.c_int(len(settings)), keys, values, ctypes.byref(stypes))
        self._arguments = (*self._head, *tail)

    def __call__(self) -> None:
        """Run it; asynchronous."""
        if _invoke(*self._arguments):
            raise mx.base.get_last_ffi_error()

    def on(self, array: mx.nd.NDArray, place: int = 0) -> None:
        """Run it with another array as one of its inputs; asynchronous."""
        self._arrays[0][place] = array
        self._inputs[place] = array.handle
        self()

    def wait(self) -> None:
        """Wait until it has run."""
        self._arrays[1][0].wait_to_read()
