"""What a network's parameters begin with: given arrays, or what an initializer fills in."""

import logging
from typing import Any, Callable, Dict, Optional, Tuple

from mxloop.compat import mx
from mxloop.errors import ArgumentError, DataError
from mxloop.executor_manager import as_descs, check_params
from mxloop.labels import label_names
from mxloop.log import say
from mxloop.validation import check_arrays, names, one_line, shown

logger = logging.getLogger(__name__)

Params = Dict[str, mx.nd.NDArray]


def init_params(
    symbol: mx.sym.Symbol,
    inputs: Any,
    initializer: Callable,
    arg_params: Optional[Params] = None,
    aux_params: Optional[Params] = None,
    allow_extra_params: bool = False,
) -> Tuple[Params, Params]:
    """Make a network's parameters and auxiliary states: given ones copied, the rest initialised.

    Parameters
    ----------
    symbol : Symbol
    inputs : list of DataDesc or (name, shape), or dict of name to shape
        All data and labels.
    initializer : callable(InitDesc, NDArray)
        As those of `mx.init`; what a variable's own ``init=`` says comes first.
    arg_params, aux_params : dict of str to NDArray, optional
    allow_extra_params : bool
        Whether unknown names among the given ones are left out without an error.

    Returns
    -------
    arg_params, aux_params : dict of str to NDArray
        New arrays on the CPU.

    Raises
    ------
    DataError
        If a given array has an unknown name or another shape, or shapes cannot be inferred.
    """
    if not inputs:
        raise ArgumentError(
            f"inputs is {inputs!r}; pass the name and shape of all data and labels, as "
            "{'data': (32, 10), 'softmax_label': (32,)}"
        )
    shapes, aux_shapes = _infer(symbol, _input_descs(inputs))
    attrs = symbol.attr_dict()
    made = []
    check_arrays("arg_params", {} if arg_params is None else arg_params, finite=True)
    check_arrays("aux_params", {} if aux_params is None else aux_params, finite=True)
    for wanted, given in ((shapes, arg_params), (aux_shapes, aux_params)):
        given = given or {}
        check_params(wanted, given, allow_missing=True, allow_extra=allow_extra_params)
        made.append(
            {
                name: _parameter(name, array, given.get(name), initializer, attrs)
                for name, array in wanted.items()
            }
        )
    _say_initialised(made, arg_params, aux_params)
    return made[0], made[1]


def _say_initialised(made, arg_params, aux_params):
    if arg_params or aux_params:
        new = [
            n for n in [*made[0], *made[1]] if n not in {**(arg_params or {}), **(aux_params or {})}
        ]
        if new:
            say(logger, f"initialised {names(new, 200)}; the other parameters are the given ones")


def _input_descs(inputs):
    return as_descs(inputs.items() if isinstance(inputs, dict) else inputs)


def _infer(symbol, descs):
    """Name -> (array on the CPU,) for each parameter and auxiliary state, not filled yet."""
    with one_line("infer the shapes of the network"):
        arg_shapes, _, aux_shapes = symbol.infer_shape(
            **{d.name: d.shape for d in _known(symbol, descs)}
        )
        arg_types, _, aux_types = symbol.infer_type(
            **{d.name: d.dtype for d in _known(symbol, descs)}
        )
    if arg_shapes is None:
        raise DataError(
            f"the shapes of {names([d.name for d in descs])} do not determine those of the "
            "network; give the shapes of all inputs"
        )
    others = {d.name for d in descs} | set(label_names(symbol))
    arrays = [
        {
            name: (mx.nd.zeros(shape, mx.cpu(), dtype),)
            for name, shape, dtype in zip(wanted, shapes, types)
            if name not in others
        }
        for wanted, shapes, types in (
            (symbol.list_arguments(), arg_shapes, arg_types),
            (symbol.list_auxiliary_states(), aux_shapes, aux_types),
        )
    ]
    return arrays[0], arrays[1]


def _known(symbol, descs):
    arguments = set(symbol.list_arguments())
    return [desc for desc in descs if desc.name in arguments]


def _parameter(name, arrays, given, initializer, attrs):
    (array,) = arrays
    if given is not None:
        array[:] = given
    else:
        _fill(name, array, initializer, attrs.get(name))
    return array


def _fill(name, array, initializer, attrs):
    try:
        initializer(mx.init.InitDesc(name, attrs), array)
    except ValueError as error:
        if "Unknown initialization pattern" not in str(error):
            raise
        raise DataError(
            f"nothing says what {shown(repr(name))} begins with: if it is an input or a label, let "
            "the data bring it under that name; if a parameter, give its variable an init="
        ) from error
