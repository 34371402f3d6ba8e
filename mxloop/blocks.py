"""Parameters side by side in one array, so that one operator or message serves them all.

Measured: an optimizer's operator on one block costs less than half of what it costs on each of its
parameters, and gives the same bits, as all arithmetic is by element.
"""

import json
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxloop.compat import mx

# Elements: each parameter begins at a multiple, so that no row of a block belongs to two of them.
ROW = 64
CONVOLUTIONS = ("Convolution", "Convolution_v1", "Deconvolution")


class Layout(NamedTuple):
    """Where parameters of one dtype lie in a block of `size` elements."""

    names: List[str]
    shapes: List[Tuple[int, ...]]
    starts: List[int]
    size: int
    dtype: type

    def views(self, array: mx.nd.NDArray) -> Dict[str, mx.nd.NDArray]:
        """Each parameter's part of a block, in its own shape."""
        return {
            name: array[start : start + int(np.prod(shape))].reshape(shape)
            for name, shape, start in zip(self.names, self.shapes, self.starts)
        }


class Block(NamedTuple):
    """Parameters that are summed, sent and copied as one.

    Attributes
    ----------
    layout : Layout or None
        None for a parameter that has arrays of its own.
    names : list of str
    weights, grads : list of NDArray
        One a device; of one axis where there is a layout.
    """

    layout: Optional[Layout]
    names: List[str]
    weights: List[mx.nd.NDArray]
    grads: List[mx.nd.NDArray]

    @property
    def key(self) -> str:
        """A name for messages, that no other parameters share."""
        return self.names[0] if self.layout is None else "+".join(self.names)


def layouts(
    symbol: mx.sym.Symbol, shapes: Dict[str, Tuple[int, ...]], dtypes: Dict[str, type]
) -> List[Layout]:
    """Lay out those parameters of a network that may share a block.

    Parameters
    ----------
    shapes, dtypes : dict by name
        Of the parameters that get gradients.

    Returns
    -------
    list of Layout
        One a dtype; parameters whose names end alike, which optimizers treat alike, lie together.
    """
    alone = _weights_of_convolutions(symbol)
    names = [name for name in shapes if name not in alone]
    kinds = {name: name.rsplit("_", 1)[-1] for name in names}
    order = list(dict.fromkeys(kinds.values()))
    names.sort(key=lambda name: order.index(kinds[name]))
    return [
        _layout([name for name in names if dtypes[name] == dtype], shapes, dtype)
        for dtype in dict.fromkeys(dtypes[name] for name in names)
    ]


def _layout(names, shapes, dtype):
    starts, end = [], 0
    for name in names:
        starts.append(end)
        end += -(-int(np.prod(shapes[name])) // ROW) * ROW
    return Layout(names, [shapes[name] for name in names], starts, end, dtype)


def _weights_of_convolutions(symbol):
    """Inference reorders these in place, into another format, which breaks what lies beside."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return {
        nodes[entry[0]]["name"]
        for node in nodes
        if node["op"] in CONVOLUTIONS or "Convolution" in node["op"]
        for entry in node["inputs"][1:]
    }


def is_dense(symbol: mx.sym.Symbol) -> bool:
    """Whether all of a network's parameters and gradients are ordinary arrays."""
    return not any(
        each.get("__storage_type__", "0") not in ("0", "-1")
        or each.get("sparse_grad") in ("True", "1")
        for each in symbol.attr_dict().values()
    )


def runs(alike: Sequence) -> List[Tuple[int, int]]:
    """Cut a sequence where neighbours differ: pairs of first place and the one after the last."""
    cuts = [i for i in range(1, len(alike)) if alike[i] != alike[i - 1]]
    return list(zip([0, *cuts], [*cuts, len(alike)]))
