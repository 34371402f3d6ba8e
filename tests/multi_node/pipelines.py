"""Networks to cut, and what training them in stages and as a whole gives."""

import nets
import numpy as np

from mxloop import FeedForward, model
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.multi_node import Pipeline, PipelineFeedForward

CUTS = {1: [], 2: ["act2"], 3: ["act1", "fc2"]}
SYMBOL = nets.mlp(widths=(16, 12))
SETTINGS = {"num_epoch": 3, "learning_rate": 0.1, "momentum": 0.9}


def data(rows=43, batch_size=16):
    """Not a whole number of batches, nor of micro-batches."""
    return ArrayIter(*nets.samples(rows), batch_size, shuffle=True, seed=4)


def begin(symbol=SYMBOL, **shapes):
    shapes = shapes or {"data": (16, 10)}
    return nets.params(symbol, softmax_label=(16,), **shapes)


def whole(symbol=SYMBOL, batches=data, **shapes):
    args, aux = begin(symbol, **shapes)
    found = FeedForward(symbol, mx.cpu(), arg_params=args, aux_params=aux, **SETTINGS)
    return found.fit(batches(), eval_data=batches(), kvstore=None)


def in_stages(cuts, symbol=SYMBOL, batches=data, shapes=None, **settings):
    args, aux = begin(symbol, **(shapes or {}))
    found = PipelineFeedForward(
        symbol, cuts, arg_params=args, aux_params=aux, **settings, **SETTINGS
    )
    return found.fit(batches(), eval_data=batches())


def compare(found, wanted, exactly):
    check = nets.assert_equal if exactly else nets.assert_close
    check(found.arg_params, wanted.arg_params)
    for one, other in zip(found.history, wanted.history):
        for name in ("train_accuracy", "val_accuracy"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6)


def by_hand(cuts, steps=4, **settings):
    """The loop of `custom_loop.py`, on a pipeline."""
    args, aux = begin()
    manager = Pipeline(SYMBOL, cuts, data(), **settings)
    manager.set_params(args, aux)
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    updater = mx.optimizer.get_updater(optimizer)
    metric = mx.metric.create("acc")
    for batch in list(data())[:steps]:
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        optimizer.rescale_grad = 1 / manager.num_samples
        model.update_params(manager.param_arrays, manager.grad_arrays, updater, 1)
        manager.update_metric(metric, batch.label)
    params = {}
    manager.copy_to(params, {})
    return params, metric.get()[1]
