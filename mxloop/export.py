"""Trained models for use elsewhere: ONNX, and Gluon."""

import json
import os
import re
import tempfile
from typing import Any, Dict, Optional
from unittest import mock

import numpy as np

from mxloop import storage
from mxloop.compat import mx
from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    InstallError,
    StateError,
)
from mxloop.heads import without_losses
from mxloop.labels import label_names
from mxloop.model import FeedForward
from mxloop.optional import need
from mxloop.validation import contexts, count, names, one_line, path_of, shown

__all__ = ["inference_form", "to_gluon", "to_onnx"]

TOLERANCE = 1e-4
# What MXNet's converter writes, and the version of the file format of that time.
OPSET, IR_VERSION = 13, 7
TRUE_BY_DEFAULT = re.compile(r"^(\w+) : boolean, optional, default=1$", re.MULTILINE)
UNSAID = {"Pooling": {"count_include_pad": "True"}}  # what None means there


def inference_form(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Replace loss heads by what they predict, and leave out outputs that need labels.

    Parameters
    ----------
    symbol : Symbol

    Returns
    -------
    Symbol
        With the outputs of `FeedForward.predict`; parameters keep their names.

    Raises
    ------
    ArgumentError
        If every output needs labels.
    """
    made, kept = without_losses(symbol)
    if not kept:
        raise ArgumentError(
            f"every output of the network needs the labels {names(label_names(symbol))}, so there "
            "is no prediction to export; give it an output besides the loss: "
            "mx.sym.Group([mx.sym.BlockGrad(prediction), loss])"
        )
    return mx.sym.Group([made[i] for i in kept])


# --- ONNX ---------------------------------------------------------------------------------------


def to_onnx(model: FeedForward, path: Any, shapes: Optional[Dict[str, tuple]] = None) -> float:
    """Write a model as an ONNX file, and see that onnxruntime predicts what mxloop does.

    The file takes any number of samples, as float32.

    Parameters
    ----------
    model : FeedForward
        With parameters.
    path : str or path-like
        Where to write; the file is there once it has been checked.
    shapes : dict of str to tuple, optional
        Each input's shape of one sample, as ``{'data': (1, 28, 28)}``; by default that of the data
        which the model was trained on.

    Returns
    -------
    float
        The largest difference between the two predictions of random samples, at most 1e-4.

    Raises
    ------
    InstallError
        Without onnx and onnxruntime.
    ArgumentError, ArgumentTypeError, DataError, StateError
        If the model cannot be exported, predicts otherwise, or the file cannot be written.
    """
    need("onnx", "onnx", "an export to ONNX")
    need("onnxruntime", "onnx", "an export to ONNX")
    _check_model(model)
    shapes = _sample_shapes(model, shapes)
    symbol = _explicit(inference_form(model.symbol))
    data = _converted(symbol, _params(model, symbol), shapes)
    difference = _difference(model, data, shapes)
    if not difference <= TOLERANCE:
        raise DataError(
            f"onnxruntime predicts otherwise than mxloop, by up to {difference:.2g}, with "
            f"{TOLERANCE} allowed: MXNet's converter gets an operator of this network wrong"
        )
    storage.write_all({path_of(path): data})
    return difference


def _check_model(model):
    if not isinstance(model, FeedForward):
        raise ArgumentTypeError(
            f"the model is {shown(repr(model))}; pass a FeedForward, as FeedForward.load gives it"
        )
    if model.arg_params is None:
        raise StateError("the model has no parameters to export yet; fit it or load it first")
    if not isinstance(model.symbol, mx.sym.Symbol):
        raise ArgumentTypeError(
            "the model makes a network a bucket; export one of them: FeedForward(sym_gen(key)[0], "
            "arg_params=model.arg_params, aux_params=model.aux_params)"
        )


def _inputs(model):
    """Names of the network's inputs, labels aside."""
    known = {*model.arg_params, *label_names(model.symbol)}
    return [name for name in model.symbol.list_arguments() if name not in known]


def _sample_shapes(model, given):
    """Each input's shape of one sample, in the network's order."""
    known = model.input_shapes if given is None else given
    if not isinstance(known, dict) or not all(isinstance(s, (tuple, list)) for s in known.values()):
        raise ArgumentTypeError(
            f"shapes is {shown(repr(given))}; pass a dict of input name to the shape of a sample"
        )
    wanted = _inputs(model)
    if not set(wanted) <= set(known):
        raise ArgumentError(
            f"nothing says what shape a sample of {names(n for n in wanted if n not in known)} "
            "has; pass shapes={'data': (1, 28, 28)} or --shape data=1,28,28, without the batch"
        )
    return {n: tuple(count(f"a side of {n!r}", side) for side in known[n]) for n in wanted}


def _explicit(symbol):
    """The network with its truths said: the converter takes what a file leaves out for false."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        described = getattr(getattr(mx.sym, node["op"], None), "__doc__", None) or ""
        truths = dict.fromkeys(TRUE_BY_DEFAULT.findall(described), "True")
        said = {**truths, **UNSAID.get(node["op"], {}), **node.get("attrs", {})}
        if said:
            node["attrs"] = said
    return mx.sym.load_json(json.dumps(graph))


def _params(model, symbol):
    """The parameters, with ones for a gamma that MXNet takes for one, whatever it is."""
    params = {**model.arg_params, **(model.aux_params or {})}
    nodes = json.loads(symbol.tojson())["nodes"]
    for node in nodes:
        if node["op"] == "BatchNorm" and node["attrs"]["fix_gamma"] in ("True", "1"):
            gamma = nodes[node["inputs"][1][0]]["name"]
            params[gamma] = mx.nd.ones_like(params[gamma])
    return params


def _converted(symbol, params, shapes):
    """The bytes of an ONNX file."""
    onnx = need("onnx", "onnx", "an export to ONNX")
    try:
        from mxnet.onnx import export_model
    except ImportError as error:  # onnx 1.19 took away what MXNet's converter uses
        raise _wrong_version(onnx) from error
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        # It checks its graph by the newest operators, and writes those of OPSET: checked below.
        unchecked = mock.patch.object(onnx.checker, "check_graph", lambda graph: None)
        try:
            with unchecked:
                export_model(
                    symbol,
                    params,
                    [(1, *shape) for shape in shapes.values()],
                    np.float32,
                    path,
                    dynamic=True,
                    dynamic_input_shapes=[("N", *shape) for shape in shapes.values()],
                )
            return _tidied(onnx, onnx.load(path))
        except ImportError as error:
            raise _wrong_version(onnx) from error
        except Exception as error:  # of whatever kind: it was not written for networks it lacks
            raise _not_convertible(error) from error


def _not_convertible(error):
    return ArgumentError(
        f"MXNet's converter cannot write this network as ONNX: {shown(error, 150)}"
    )


def _wrong_version(onnx):
    return InstallError(
        f"MXNet's converter does not work with onnx {onnx.__version__}; run pip install 'onnx<1.19'"
    )


def _tidied(onnx, made):
    """What was written, with the versions it keeps to, and its constants as constants."""
    made.opset_import[0].version, made.ir_version = OPSET, IR_VERSION
    graph = made.graph
    read = {name for node in graph.node for name in node.input}
    constants = [each for each in graph.initializer if each.name in read]
    fixed = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in fixed]
    for field, values in ((graph.initializer, constants), (graph.input, inputs)):
        kept = list(values)
        del field[:]
        field.extend(kept)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def _difference(model, data, shapes):
    """How far the two predictions are apart, for one sample and for three."""
    random = np.random.RandomState(0)
    found = [0.0]
    for rows in (1, 3):
        x = {n: random.uniform(size=(rows, *s)).astype(np.float32) for n, s in shapes.items()}
        expected = model.predict(x)
        expected = expected if isinstance(expected, list) else [expected]
        for own, other in zip(expected, _in_onnxruntime(data, x)):
            found.append(float(np.abs(own - other).max()))
    return max(found) if np.isfinite(found).all() else float("inf")


def _in_onnxruntime(data, x):
    runtime = need("onnxruntime", "onnx", "an export to ONNX")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return session.run(None, x)
    except Exception as error:  # onnxruntime's have no class in common
        raise _not_convertible(error) from error


# --- Gluon --------------------------------------------------------------------------------------


def to_gluon(model: FeedForward, ctx: Any = None) -> mx.gluon.SymbolBlock:
    """Make a Gluon block of a model: it predicts, and its parameters can be trained further.

    Parameters
    ----------
    model : FeedForward
        With parameters.
    ctx : Context or list of Context, optional

    Returns
    -------
    SymbolBlock
        With the model's inputs in the order of its network, without labels and losses.

    Raises
    ------
    ArgumentError, ArgumentTypeError, StateError
        If there is nothing to make a block of.
    """
    _check_model(model)
    symbol = inference_form(model.symbol)
    with one_line("make a Gluon block of the network"):
        block = mx.gluon.SymbolBlock(symbol, [mx.sym.var(name) for name in _inputs(model)])
    arrays = {**model.arg_params, **(model.aux_params or {})}
    for name, parameter in block.collect_params().items():
        parameter.shape = arrays[name].shape
        parameter.initialize(ctx=contexts(ctx))
        parameter.set_data(arrays[name])
    return block
