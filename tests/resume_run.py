"""One run that may be interrupted and resumed, for tests that start it in new processes.

    python resume_run.py SETTINGS.json

Settings: those of `run`. `stop_at` steps after its start the run ends itself, by an exception or by
`signal_number`; `out` is an npz file of all parameters and metrics.
"""

import functools
import json
import logging
import os
import sys

import numpy as np

import mxloop
from mxloop import mx

ROWS, BATCH = 53, 10
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
}


class Stop(Exception):
    """Ends a run on purpose."""


def network():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=12, name="fc1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn", fix_gamma=False), act_type="relu")
    net = mx.sym.FullyConnected(mx.sym.Dropout(net, p=0.3), num_hidden=4, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def data(last_batch):
    rng = np.random.RandomState(5)
    x = rng.normal(size=(ROWS, 6))
    y = rng.randint(0, 4, ROWS)
    return mxloop.data.ArrayIter(x, y, BATCH, shuffle=True, last_batch=last_batch, seed=3)


def stopper(at, signal_number):
    steps = [0]

    def stop(_):
        steps[0] += 1
        if steps[0] == at:
            if signal_number is None:
                raise Stop
            os.kill(os.getpid(), signal_number)

    return stop


def run(prefix, devices=1, optimizer="sgd", last_batch="keep", every=None, stop_at=None,
        resume=None, num_epoch=4, out=None, signal_number=None, keep=None,
        accumulate=1):  # fmt: skip
    model = mxloop.FeedForward(
        network(),
        ctx=[mx.cpu(i) for i in range(devices)],
        num_epoch=num_epoch,
        optimizer=optimizer,
        initializer=mx.init.Xavier(),
        **OPTIMIZERS[optimizer],
    )
    keeper = prefix and mxloop.callback.Checkpoint(prefix, every_n_batches=every, keep=keep)
    x = data(last_batch)
    try:
        model.fit(
            x,
            eval_data=data("keep"),
            eval_metric=["acc", "ce"],
            seed=7,
            checkpoint=keeper,
            resume=resume,
            batch_end_callback=stopper(stop_at, signal_number),
            accumulate=accumulate,
        )
    except Stop:
        return None
    result = {**model.arg_params, **model.aux_params}
    result = {name: array.asnumpy() for name, array in result.items()}
    for row in model.history:
        for name, value in row.items():
            if name.startswith(("train_", "val_")):
                result[f"{row['epoch']}_{name}"] = np.array(value)
    if out:
        np.savez(out, **result)
    return result


@functools.lru_cache(maxsize=None)
def reference(**settings):
    """The run that is never interrupted; made once."""
    return run(None, **settings)


if __name__ == "__main__":
    logging.getLogger("mxloop").setLevel(logging.WARNING)
    with open(sys.argv[1]) as settings:
        run(**json.load(settings))
