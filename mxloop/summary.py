"""A network in a table: layers, output shapes, parameters, operations of a forward pass."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.labels import label_names
from mxloop.validation import names, one_line

Shape = Tuple[int, ...]


class Layer(NamedTuple):
    """One operator of a network.

    Attributes
    ----------
    name, operator : str
    shape : tuple of int or None
        Of its first output; None where it is not known.
    parameters : int
        Numbers in the parameters and auxiliary states that it is the first to read.
    operations : int or None
        Floating-point operations of the whole batch's forward pass, a multiplication and an
        addition being two; None where they are not counted.
    """

    name: str
    operator: str
    shape: Optional[Shape]
    parameters: int
    operations: Optional[int]


class Summary(NamedTuple):
    """The layers of a network, and their sums.

    Attributes
    ----------
    layers : list of Layer
    parameters, auxiliary : int
        Numbers that are trained, and running statistics.
    rows : int or None
        Samples in the batch that the shapes are of.
    """

    layers: List[Layer]
    parameters: int
    auxiliary: int
    rows: Optional[int]

    @property
    def operations(self) -> Optional[float]:
        """Floating-point operations of a forward pass of one sample, as far as counted."""
        if not self.rows:
            return None
        return sum(layer.operations or 0 for layer in self.layers) / self.rows

    def table(self) -> List[List[str]]:
        """Rows of text, the titles first."""
        rows = [["layer", "operator", "output", "parameters", "operations / sample"]]
        for layer in self.layers:
            shape = "?" if layer.shape is None else " x ".join(map(str, layer.shape))
            done = "" if not layer.operations else f"{layer.operations / self.rows:,.0f}"
            count = f"{layer.parameters:,}" if layer.parameters else ""
            rows.append([layer.name, layer.operator, shape, count, done])
        return rows

    def total(self) -> str:
        """The sums in one line."""
        text = f"{self.parameters:,} parameters"
        if self.auxiliary:
            text += f", {self.auxiliary:,} running statistics"
        if self.operations is not None:
            text += (
                f", {self.operations:,.0f} operations a sample (products of matrices and "
                "convolutions, forward)"
            )
        return text

    def __str__(self) -> str:
        """The table and the sums, in columns."""
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [
            "  ".join(
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in table
        ]
        lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
        return "\n".join([*lines, self.total()])


def summarize(
    symbol: mx.sym.Symbol,
    shapes: Optional[Dict[str, Shape]] = None,
    params: Optional[Dict[str, Any]] = None,
) -> Summary:
    """List a network's layers.

    Parameters
    ----------
    symbol : Symbol
    shapes : dict of str to tuple of int, optional
        Shapes of the inputs, batch first. Without them output shapes and operations stay unknown.
    params : dict of str to NDArray, optional
        Parameters and auxiliary states, for the shapes that the inputs do not tell.

    Raises
    ------
    DataError
        If the shapes do not fit the network.
    """
    known = {name: tuple(array.shape) for name, array in (params or {}).items()}
    known.update(shapes or {})
    inferred = _inferred(symbol, known)
    auxiliary = set(symbol.list_auxiliary_states())
    inputs = {*(shapes or {}), *label_names(symbol)} | _without_shape(symbol, known, shapes)
    layers, seen = [], set(inputs)
    for node, reads in _operators(symbol):
        own = [name for name in reads if name in inferred[0] and name not in seen]
        seen.update(own)
        size = sum(_size(inferred[0][name]) for name in own)
        in_shapes = [inferred[0].get(name) or inferred[1].get(name) for name in reads]
        shape = inferred[1].get(node["name"])
        work = _operations(node["op"], in_shapes, shape)
        layers.append(Layer(node["name"], node["op"], shape, size, work))
    sizes = {n: _size(s) for n, s in inferred[0].items() if n not in inputs}
    moving = sum(size for name, size in sizes.items() if name in auxiliary)
    rows = next(iter(shapes.values()))[0] if shapes else None
    return Summary(layers, sum(sizes.values()) - moving, moving, rows)


def _without_shape(symbol, known, shapes):
    """Inputs, where nobody gave their shapes: what no parameter is known of."""
    return set() if shapes else {n for n in symbol.list_arguments() if n not in known}


def _inferred(symbol, known):
    """Shapes of variables by name, and of each operator's first output by its name."""
    inside = symbol.get_internals()
    wanted = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    unknown = [name for name in known if name not in wanted]
    if unknown:
        raise DataError(
            f"the network has no {names(unknown)}; its arguments are "
            f"{names(symbol.list_arguments(), 120)}"
        )
    with one_line("infer the shapes of the network"):
        args, outputs, auxs = inside.infer_shape_partial(**_of_arguments(symbol, known))
    variables = dict(zip(inside.list_arguments(), args))
    variables.update(zip(inside.list_auxiliary_states(), auxs))
    variables.update(known)
    by_node: Dict[str, Optional[Shape]] = {}
    for output, shape in zip(inside, outputs):
        by_node.setdefault(output.name, _whole(shape))
    return {n: s for n, s in variables.items() if _whole(s)}, by_node


def _of_arguments(symbol, shapes):
    arguments = set(symbol.list_arguments())
    return {name: shape for name, shape in shapes.items() if name in arguments}


def _whole(shape):
    return tuple(shape) if shape and all(side > 0 for side in shape) else None


def _operators(symbol):
    """(node, names of what it reads) of each operator, in order."""
    nodes = json.loads(symbol.tojson())["nodes"]
    for node in nodes:
        if node["op"] != "null":
            yield node, [nodes[entry[0]]["name"] for entry in node["inputs"]]


def _size(shape):
    return int(np.prod(shape, dtype=np.int64))


def _operations(operator: str, inputs: Sequence[Optional[Shape]], output: Optional[Shape]):
    """Operations of a batch: two for every product that is added up, one for each bias."""
    if output is None or len(inputs) < 2 or inputs[1] is None:
        return None
    weight = inputs[1]
    bias = _size(output) if len(inputs) > 2 else 0
    if operator == "FullyConnected":
        return 2 * _size(output) * weight[1] + bias
    if operator == "Convolution":
        return 2 * _size(output) * _size(weight[1:]) + bias
    if operator == "Deconvolution" and inputs[0] is not None:
        return 2 * _size(inputs[0]) * _size(weight[1:]) + bias
    return None
