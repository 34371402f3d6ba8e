"""Functions of one's own in MXNet's autograd graph.

`mx.autograd.Function` of MXNet 1.9.1 loses gradients: those of the inputs that follow one without
gradient, and those of leaves with ``grad_req='add'``. This makes the same call into MXNet's
library and answers it in full.
"""

import ctypes
import itertools
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from mxloop.compat import mx
from mxloop.multi_node import failures

Grads = Sequence[Optional[mx.nd.NDArray]]

SKIP, ADD = 0, 3  # of MXNet's four requests; the others write

_BACKWARD = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.c_void_p,
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ANY = ctypes.CFUNCTYPE(ctypes.c_int)


class _Step(NamedTuple):
    """What MXNet's library calls back for, and the memory that it reads until then."""

    backward: Callable[..., Grads]
    doing: str
    described: mx.base.MXCallbackList


_steps: Dict[int, _Step] = {}
_numbers = itertools.count(1)  # MXNet hands them back as pointers, where 0 would be None


def record(
    inputs: Sequence[mx.nd.NDArray],
    outputs: Sequence[mx.nd.NDArray],
    backward: Callable[..., Grads],
    doing: str,
) -> None:
    """Enter the step from inputs to outputs into the graph that is being recorded.

    Parameters
    ----------
    inputs, outputs : list of NDArray
        Outputs are new arrays that hold their values.
    backward : callable(*output_grads)
        Gives one gradient an input, or None for zero. It is called once for each backward pass, in
        a thread of MXNet's, also where no input needs a gradient.
    doing : str
        What it does, for the message if that fails; this ends all ranks, as nobody could catch it.
    """
    # Without an input that wants a gradient, MXNet would not go backward through this step.
    anchor = mx.nd.zeros((1,))
    anchor.attach_grad()
    inputs = [*inputs, anchor]
    number = next(_numbers)
    described = _described(number)
    _steps[number] = _Step(backward, doing, described)
    mx.base.check_call(
        mx.base._LIB.MXCustomFunctionRecord(
            len(inputs),
            mx.base.c_handle_array(inputs),
            len(outputs),
            mx.base.c_handle_array(outputs),
            ctypes.byref(described),
        )
    )


def _described(number):
    functions = (_ANY * 2)(ctypes.cast(_on_backward, _ANY), ctypes.cast(_on_delete, _ANY))
    states = (ctypes.c_void_p * 2)(number, number)
    return mx.base.MXCallbackList(
        2,
        ctypes.cast(functions, ctypes.POINTER(_ANY)),
        ctypes.cast(states, ctypes.POINTER(ctypes.c_void_p)),
    )


@_BACKWARD
def _on_backward(num_out, num_in, pointers, requests, is_train, number):
    step = _steps[number]
    try:
        grads = [_array(pointers[i], i >= num_out) for i in range(num_out + num_in)]
        answers = [*step.backward(*grads[:num_out]), None]  # None is the anchor's
        for i, answer in enumerate(answers):
            _write(grads[num_out + i], answer, requests[i])
    except BaseException:
        failures.fail(step.doing)
        return 0
    return 1


@_DELETE
def _on_delete(number):
    _steps.pop(number)
    return 1


def _array(pointer, writable):
    return mx.nd.NDArray(ctypes.cast(pointer, mx.base.NDArrayHandle), writable=writable)


def _write(grad, answer, request):
    if request == SKIP:
        return
    if request == ADD:
        if answer is not None:
            grad[:] += answer
    elif answer is None:
        grad[:] = 0
    else:
        grad[:] = answer
