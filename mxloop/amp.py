"""Mixed precision: layers that are products of matrices in bfloat16, everything else in float32.

Parameters, their gradients and running statistics are float32 outside of these layers; MXNet's
casts stand inside the network, and its files are written without them. bfloat16 has the range of
float32, so losses need no scale.
"""

import functools
import json
from typing import Any, List, Optional, Sequence

from mxloop.compat import mx
from mxloop.errors import ArgumentError
from mxloop.validation import shown

PRODUCTS = ("Convolution", "FullyConnected")
# What stays in bfloat16 behind these; of some, only the kinds for which MXNet has it both ways.
FOLLOWERS = ("Activation", "BatchNorm", "Concat", "Pooling", "elemwise_add", "relu")
KINDS = {
    "Activation": ("act_type", ("relu", "sigmoid", "tanh")),
    "Pooling": ("pool_type", ("max", "avg")),
}


def check(dtype: Optional[str], ctx: Sequence[mx.Context] = (), group2ctxs: Any = None) -> None:
    """Tell whether the devices compute in this type; None is float32, which all do.

    Parameters
    ----------
    dtype : {None, 'bfloat16'}
    ctx : list of Context
    group2ctxs : dict or list of dict, optional
        As of `mxloop.DataParallelExecutorManager`.

    Raises
    ------
    ArgumentError
        If the type is another one, or the devices lack it.
    """
    if dtype is None:
        return
    if not isinstance(dtype, str) or dtype != "bfloat16":
        raise ArgumentError(
            f"amp is {shown(repr(dtype))}; use 'bfloat16', or None for float32 alone (float16 is "
            "not offered: MXNet has it on GPUs alone)"
        )
    odd = [device for device in ctx if device.device_type != "cpu"]
    if odd:
        raise ArgumentError(
            f"amp is {dtype!r} and ctx holds {odd[0]}; MXNet has bfloat16 on CPUs alone: use "
            "mx.cpu(), or leave amp out"
        )
    if group2ctxs is not None:
        raise ArgumentError(
            f"amp is {dtype!r}, and group2ctxs spreads the network over contexts, of which MXNet's "
            "casts know nothing; leave one of them out"
        )
    if not is_there():
        raise ArgumentError(
            f"amp is {dtype!r}, which MXNet computes with oneDNN on CPUs with AVX-512 alone "
            "(avx512bw, avx512vl and avx512dq), and not on this one; leave amp out"
        )


@functools.lru_cache(maxsize=None)
def is_there() -> bool:
    """Whether this CPU and this MXNet compute layers in bfloat16; found out by trying one."""
    ones = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="probe")
    probe = _cast(ones, "bfloat16", []).bind(
        mx.cpu(), {"data": mx.nd.ones((1, 2)), "probe_weight": mx.nd.ones((1, 2))}, grad_req="null"
    )
    try:
        return bool(probe.forward(is_train=False)[0].asnumpy() == 2)
    except mx.base.MXNetError:
        return False


def convert(
    symbol: mx.sym.Symbol, dtype: Optional[str] = "bfloat16", adding: Sequence[str] = ()
) -> mx.sym.Symbol:
    """Make the network that computes in mixed precision; names of all inputs and outputs stay.

    Convolution and FullyConnected take bfloat16, and so do the activations, poolings,
    normalisations (with float32 statistics) and sums that read nothing else. What the network gives
    out is float32, and so is a layer that does so directly.

    Parameters
    ----------
    symbol : Symbol
        A network in float32.
    dtype : {None, 'bfloat16'}
        None gives the network as it is.
    adding : list of str
        Arguments whose gradients will be added to what is there (``grad_req='add'``).

    Returns
    -------
    Symbol
        To be bound to arrays whose types are those of `symbol`; from it, types cannot be inferred.

    Raises
    ------
    ArgumentError
        If MXNet does not compute in this type here.
    """
    check(dtype)
    if dtype is None:
        return symbol
    return _cast(_with_copies(symbol, adding), dtype, kept_float32(symbol))


def _with_copies(symbol, adding):
    """Put a copy behind arguments: MXNet's cast loses a gradient that is to be added, and no copy
    does.
    """
    inner = symbol.get_internals()
    copies = {name: mx.sym.identity(inner[name], name=f"{name}_copy") for name in adding}
    return symbol(**copies) if copies else symbol


def _cast(symbol, dtype, kept):
    from mxnet.contrib import amp

    return amp.convert_symbol(symbol, dtype, excluded_sym_names=kept)


def kept_float32(symbol: mx.sym.Symbol) -> List[str]:
    """Names of the operators that do not take bfloat16, in the order of the network."""
    graph = json.loads(symbol.tojson())
    heads = {entry[0] for entry in graph["heads"]}
    low: List[bool] = []
    for number, node in enumerate(graph["nodes"]):
        low.append(number not in heads and _is_low(node, low))
    nodes = zip(graph["nodes"], low)
    return [node["name"] for node, is_low in nodes if node["op"] != "null" and not is_low]


def _is_low(node, low):
    """Whether a node takes bfloat16, given whether those before it do."""
    if node["op"] not in FOLLOWERS:
        return node["op"] in PRODUCTS
    name, kinds = KINDS.get(node["op"], ("", ("max",)))
    if node.get("attrs", {}).get(name, "max") not in kinds:  # "max" is Pooling's own default
        return False
    read = node["inputs"][:1] if node["op"] == "BatchNorm" else node["inputs"]
    return all(low[number] and output == 0 for number, output, *_ in read)
