"""The bare limit, and what no training loop does without: each part by its operators alone.

The operators are made ready once, so that Python's own time is as small as it gets.
"""

import time

import stock
import twins

from mxloop import host, mx
from mxloop.prepared import Prepared
from peers import bare

ROW = 64  # elements that the guard adds up at a time
KEPT = 16  # batches whose outputs are kept for the metric


def train(work, epoch_done):
    symbol = twins.symbol(mx, work.network)
    arrays, blocks = bare.lay_out(mx, work)
    executor = bare.bind(mx, work, symbol, dict(zip(stock.param_names(symbol), arrays)))
    executor.forward(is_train=True)
    update = bare.update(mx, work, blocks)
    parts = [PARTS[name](work, executor, blocks) for name in work.parts]
    for _ in range(work.epochs):
        for step in range(work.steps):
            executor.forward(is_train=True)
            executor.backward()
            update()
            for part in parts:
                part(step)
        mx.nd.waitall()
        epoch_done(work.steps * work.batch, None)
    return [weight.asnumpy() for weight, _ in arrays]


def rows(work, executor, blocks):
    """Each step takes rows of its own, out of arrays in memory."""
    order = mx.nd.array(work.order(0), dtype="int64")
    tables = [host.shared(part) for part in work.arrays()]
    places = [executor.arg_dict[name] for name in ("data", "softmax_label")]
    takes = [
        [
            Prepared("take", [table, order[at : at + work.batch]], [place])
            for table, place in zip(tables, places)
        ]
        for at in range(0, work.samples, work.batch)
    ]
    return lambda step: [take() for take in takes[step]]


def decay(work, executor, blocks):
    """Biases have no weight decay, and so an update of their own."""
    bias = [part[-ROW:] for part in blocks[0]]
    operator = Prepared("sgd_mom_update", bias, bias[:1], lr=0.0, momentum=0.9)
    return lambda step: operator()


def guard(work, executor, blocks):
    """The gradients are added up, to see a NaN."""
    grad = blocks[0][1]
    whole = grad[: grad.size // ROW * ROW].reshape((-1, ROW))
    inputs, sums = [whole, mx.nd.ones((1, ROW))], mx.nd.zeros((whole.shape[0], 1))
    operator = Prepared("FullyConnected", inputs, [sums], num_hidden=1, no_bias=True)
    return lambda step: operator()


def outputs(work, executor, blocks):
    """Outputs and labels are kept for the metric, which needs no time here."""
    arrays = [executor.outputs[0], executor.arg_dict["softmax_label"]]
    rooms = [mx.nd.zeros((KEPT, *array.shape)) for array in arrays]
    copies = [
        [Prepared("_copyto", [array], [room[i]]) for array, room in zip(arrays, rooms)]
        for i in range(KEPT)
    ]
    return lambda step: [copy() for copy in copies[step % KEPT]]


def python(work, executor, blocks):
    """The thread that queues the operators is busy for 50 microseconds more."""

    def busy(step):
        end = time.perf_counter() + 50e-6
        while time.perf_counter() < end:
            pass

    return busy


PARTS = {part.__name__: part for part in (rows, decay, guard, outputs, python)}
