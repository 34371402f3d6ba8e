"""MXNet: a Gluon Trainer loop, hybridized with static memory."""

import stock
import twins
from work import DECAY, LEARNING_RATE, MOMENTUM


def train(work, epoch_done):
    mx = stock.import_mxnet()
    devices = stock.contexts(mx, work)
    net, loss = _net(mx, work, devices), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    net.hybridize(static_alloc=True, static_shape=True)
    loss.hybridize(static_alloc=True, static_shape=True)
    options = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM, "wd": DECAY}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=work.kvstore)
    metric = mx.metric.create(work.metric)
    batches = BATCHES[work.source](mx, work)
    for epoch in range(work.epochs):
        metric.reset()
        for data, label in batches(epoch):
            xs = mx.gluon.utils.split_and_load(data, devices)
            ys = mx.gluon.utils.split_and_load(label, devices)
            with mx.autograd.record():
                outs = [net(x) for x in xs]
                losses = [loss(out, y) for out, y in zip(outs, ys)]
            mx.autograd.backward(losses)
            trainer.step(work.batch)
            metric.update(ys, outs)
        mx.nd.waitall()
        epoch_done(*stock.counted(metric))
    return [param.data(devices[0]).asnumpy() for param in _trained(net)]


def _net(mx, work, devices):
    net = twins.gluon(mx, work.network)
    net.initialize(ctx=devices)
    for param, value in zip(_trained(net), work.initial()):
        param.set_data(mx.nd.array(value))
        # As MXNet's other loops do it, biases do not decay.
        param.wd_mult = float(param.name.endswith(("weight", "gamma")))
    return net


def _trained(net):
    return [param for param in net.collect_params().values() if param.grad_req != "null"]


def _loader(mx, work):
    """What Gluon has for arrays."""
    data = mx.gluon.data
    loader = data.DataLoader(data.ArrayDataset(*work.arrays()), work.batch, shuffle=work.shuffle)
    return lambda epoch: loader


def _gathered(mx, work):
    """Rows of NumPy arrays."""
    x, y = work.arrays()

    def batches(epoch):
        order = work.order(epoch)
        for at in range(0, work.samples, work.batch):
            rows = order[at : at + work.batch]
            yield mx.nd.array(x[rows]), mx.nd.array(y[rows])

    return batches


def _iterated(mx, work):
    """The stock iterator."""
    iterator = stock.iterator(mx, work)

    def batches(epoch):
        iterator.reset()
        return ((batch.data[0], batch.label[0]) for batch in iterator)

    return batches


BATCHES = {"arrays": _loader, "memory": _gathered, "iterator": _iterated}
