"""A network on two ranks learns as it does on one."""

import numpy as np

from mxloop.compat import mx
from mxloop.data import load_digits28
from mxloop.multi_node import MultiNodeChainList

STEPS, ROWS = 150, 32


def dense(number, units, inputs, act="relu"):
    layer = mx.gluon.nn.Dense(units, activation=act, in_units=inputs)
    layer.initialize()
    weight = np.random.RandomState(number).uniform(-0.1, 0.1, (units, inputs))
    layer.weight.set_data(mx.nd.array(weight))
    return layer


def layers():
    return [dense(0, 32, 784), dense(1, 32, 32), dense(2, 10, 32, None)]


def curve(net, loss_of, **settings):
    """The losses of 150 steps; None where another rank has them."""
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=None)
    (x, y), _ = load_digits28()
    losses = []
    for step in range(STEPS):
        rows = np.random.RandomState(step).choice(len(x), ROWS)
        batch = mx.nd.array(x[rows].reshape(ROWS, -1)), mx.nd.array(y[rows])
        with mx.autograd.record():
            head = loss_of(net, *batch)
        head.backward()
        trainer.step(ROWS)
        losses.append(head.asnumpy())
    return losses


def loss(net, x, y):
    return mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)


def check_the_loss_curve_is_that_of_one_process_to_the_bit(comm):
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    first, middle, last = layers()
    net = MultiNodeChainList(comm)
    if comm.rank == 0:
        net.add_link(first, rank_out=1)
        net.add_link(last, rank_in=1)
        found = curve(net, loss, **settings)
    else:
        net.add_link(middle, rank_in=0, rank_out=0)
        curve(net, lambda net, x, y: net(), **settings)
        return
    whole = mx.gluon.nn.Sequential()
    whole.add(*layers())
    wanted = curve(whole, loss, **settings)
    np.testing.assert_array_equal(found, wanted)
    assert np.mean(found[-1]) < np.mean(found[0]) / 5
