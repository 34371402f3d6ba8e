"""The limit: forward, backward and one fused update, on a batch that is already there."""

import numpy as np
import stock
import twins
from work import DECAY, LEARNING_RATE, MOMENTUM


def train(work, epoch_done):
    mx = stock.import_mxnet()
    symbol = twins.symbol(mx, work.network)
    arrays, blocks = lay_out(mx, work)
    executor = bind(mx, work, symbol, dict(zip(stock.param_names(symbol), arrays)))
    step = update(mx, work, blocks)
    for _ in range(work.epochs):
        for _ in range(work.steps):
            executor.forward(is_train=True)
            executor.backward()
            step()
        mx.nd.waitall()
        epoch_done(work.steps * work.batch, None)
    return [weight.asnumpy() for weight, _ in arrays]


def update(mx, work, blocks):
    """One fused update a block."""
    settings = {"lr": LEARNING_RATE, "momentum": MOMENTUM, "wd": DECAY}
    settings["rescale_grad"] = 1 / work.batch

    def step():
        for weight, grad, state in blocks:
            mx.nd.sgd_mom_update(weight, grad, state, out=weight, **settings)

    return step


def lay_out(mx, work):
    """(weight, gradient) of each parameter, and the blocks of (weight, gradient, state).

    Weights of convolutions are blocks of their own: MKLDNN lays them out anew, so they cannot be
    parts of another array.
    """
    initial = work.initial()
    together = np.concatenate([array.ravel() for array in initial if array.ndim != 4])
    block = [mx.nd.array(together), mx.nd.zeros(together.shape), mx.nd.zeros(together.shape)]
    arrays, blocks, at = [], [block], 0
    for array in initial:
        if array.ndim == 4:
            own = [mx.nd.array(array), mx.nd.zeros(array.shape), mx.nd.zeros(array.shape)]
            blocks.append(own)
            arrays.append(own[:2])
        else:
            end = at + array.size
            arrays.append([part[at:end].reshape(array.shape) for part in block[:2]])
            at = end
    return arrays, blocks


def bind(mx, work, symbol, arrays):
    x, y = (mx.nd.array(part[: work.batch]) for part in work.arrays())
    aux_shapes = symbol.infer_shape(data=x.shape)[2]
    aux = {
        name: mx.nd.ones(shape) if name.endswith("var") else mx.nd.zeros(shape)
        for name, shape in zip(symbol.list_auxiliary_states(), aux_shapes)
    }
    return symbol.bind(
        mx.cpu(0),
        {"data": x, "softmax_label": y, **{name: weight for name, (weight, _) in arrays.items()}},
        {name: grad for name, (_, grad) in arrays.items()},
        {name: "write" if name in arrays else "null" for name in symbol.list_arguments()},
        aux,
    )
