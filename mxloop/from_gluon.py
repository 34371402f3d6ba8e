"""A Gluon block and its loss as a network that FeedForward trains."""

import json
from typing import Any, Callable, Dict, Tuple

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError
from mxloop.validation import check_arrays, one_line, shown

loss_module = mx.gluon.loss
Params = Dict[str, mx.nd.NDArray]

# Losses of elements, each a mean over an output's axes but the first in Gluon and in MXNet's heads.
ELEMENTWISE = {
    loss_module.L1Loss: mx.sym.MAERegressionOutput,
    loss_module.L2Loss: mx.sym.LinearRegressionOutput,
    loss_module.SigmoidBinaryCrossEntropyLoss: mx.sym.LogisticRegressionOutput,
}


def convert(block: Any, loss: Callable) -> Tuple[mx.sym.Symbol, Params, Params]:
    """Make a network of a block, with an input 'data', and take over its parameters.

    Parameters
    ----------
    block : HybridBlock
        Of one input and one output. What is not initialised in it is left out.
    loss : mx.gluon.loss.Loss or callable
        (prediction, label) -> loss of each sample, written with Symbols.

    Returns
    -------
    symbol : Symbol
        With a head of MXNet for softmax cross-entropy, L1, L2 and sigmoid cross-entropy, which has
        Gluon's gradients, and gives predictions; else with two outputs, the prediction and the
        loss. What the block says of its parameters holds: none moves that needs no gradient, and
        weight decay reaches biases too, as in Gluon.
    arg_params, aux_params : dict of str to NDArray

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If block or loss are not what a Symbol can be made of.
    """
    if not isinstance(block, mx.gluon.HybridBlock):
        raise ArgumentTypeError(
            f"the block is a {shown(type(block).__name__)}; pass a HybridBlock, as "
            "nn.HybridSequential(), since only those can be written as a Symbol"
        )
    if not callable(loss):
        raise ArgumentTypeError(
            f"loss is {shown(repr(loss))}; pass one of mx.gluon.loss, as "
            "SoftmaxCrossEntropyLoss(), or a function of prediction and label"
        )
    prediction = _prediction(block)
    parameters = {p.name: p for p in block.collect_params().values()}
    frozen = [name for name, p in parameters.items() if p.grad_req == "null"]
    symbol = _without_steps(_with_loss(prediction, loss), frozen)
    known = {name: p.data(p.list_ctx()[0]) for name, p in parameters.items() if _is_filled(p)}
    own, aux = ({n: known[n].copy() for n in listed if n in known} for listed in _listed(symbol))
    check_arrays("the block", {**own, **aux}, finite=True)
    return symbol, own, aux


def _listed(symbol):
    return symbol.list_arguments(), symbol.list_auxiliary_states()


def _prediction(block):
    try:
        with one_line("write the block as a Symbol", ArgumentError):
            made = block(mx.sym.var("data"))
    except (TypeError, AttributeError, ValueError, AssertionError) as error:
        raise ArgumentError(
            f"the block cannot be written as a Symbol of one input: {shown(error, 120)}; let its "
            "hybrid_forward(F, x) use F alone, and no shape or value of x"
        ) from error
    if not isinstance(made, mx.sym.Symbol) or len(made.list_outputs()) != 1:
        raise ArgumentError(
            "the block has several outputs, and the loss compares one; write it as a Symbol with "
            "a head for each: mx.sym.Group([...])"
        )
    return made


def _is_filled(parameter):
    """Whether a parameter has values: neither fresh, nor waiting for the first data."""
    return parameter._data is not None


def _with_loss(prediction, loss):
    """The prediction under a head of MXNet, or beside the loss."""
    scale = 1.0 if getattr(loss, "_weight", None) is None else loss._weight
    if type(loss) is loss_module.SoftmaxCrossEntropyLoss and _is_usual(loss, prediction):
        return mx.sym.SoftmaxOutput(prediction, grad_scale=scale, name="softmax")
    plain = getattr(loss, "_batch_axis", None) == 0 and not getattr(loss, "_from_sigmoid", False)
    if type(loss) in ELEMENTWISE and plain:
        return ELEMENTWISE[type(loss)](prediction, grad_scale=scale, name="prediction")
    own = loss(prediction, mx.sym.var("prediction_label"))
    if not isinstance(own, mx.sym.Symbol):
        raise ArgumentTypeError(
            f"loss gave {shown(repr(own))} for Symbols; write it with the methods of its "
            "arguments, as (prediction - label).abs()"
        )
    shown_prediction = mx.sym.BlockGrad(prediction, name="prediction")
    return mx.sym.Group([shown_prediction, mx.sym.MakeLoss(own, name="loss")])


def _is_usual(loss, prediction):
    """Whether it compares a row of scores with the number of a class, as SoftmaxOutput does."""
    return (
        loss._sparse_label
        and not loss._from_logits
        and loss._batch_axis == 0
        and loss._axis in (-1, 1)
        and _is_matrix(prediction)
    )


def _is_matrix(prediction):
    """Whether an output surely has two axes: SoftmaxOutput means other things by more."""
    graph = json.loads(prediction.tojson())
    node = graph["nodes"][graph["heads"][0][0]]
    while node["op"] in ("Activation", "Dropout", "LeakyReLU"):  # these keep the shape
        node = graph["nodes"][node["inputs"][0][0]]
    flattens = node.get("attrs", {}).get("flatten", "True") in ("True", "1")
    return node["op"] == "Flatten" or (node["op"] == "FullyConnected" and flattens)


def _without_steps(symbol, frozen):
    """The network with parameters that no optimizer moves."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        if node["op"] == "null" and node["name"] in frozen:
            node["attrs"] = {**node.get("attrs", {}), "__lr_mult__": "0.0"}
    return mx.sym.load_json(json.dumps(graph))
