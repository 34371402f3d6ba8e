"""What one worker of test_distributed.py does: `python dist_worker.py OUT JOBS`.

JOBS is a JSON dict of name to [function, arguments]; results go to ``OUT/name.npz``.
"""

import json
import os
import signal
import sys

import nets
import numpy as np

from mxloop import DataParallelExecutorManager, FeedForward, model
from mxloop.compat import mx
from mxloop.data import ArrayIter

BATCH = 8
SETTINGS = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}


def first_params(seed=10):
    return nets.params(nets.mlp(), seed=seed, data=(BATCH, 10))[0]


def iterator(rows, seed):
    return ArrayIter(*nets.samples(rows, seed=seed), batch_size=BATCH)


def network(devices=1, epochs=2, params_seed=10, epoch_size=None, **optimizer):
    return FeedForward(
        nets.mlp(),
        ctx=nets.CPUS[:devices],
        num_epoch=epochs,
        epoch_size=epoch_size,
        arg_params=first_params(params_seed),
        aux_params={},
        **{**SETTINGS, **optimizer},
    )


def fit(rows, seed, kvstore="dist_sync", accumulate=1, **settings):
    net = network(**settings)
    net.fit(iterator(rows, seed), kvstore=kvstore, accumulate=accumulate)
    return net.arg_params, {"epochs": [row["epoch"] for row in net.history]}


def fit_twice(rows, seed):
    """One epoch, then one more."""
    net = network(epochs=1)
    net.fit(iterator(rows, seed), kvstore="dist_sync")
    net.fit(iterator(rows, seed), kvstore="dist_sync", num_epoch=1)
    return net.arg_params, {"epochs": [row["epoch"] for row in net.history]}


def fit_from_own_params(rows, seed):
    """Each worker has parameters of its own, and a store object, which tells its rank."""
    store, _ = model.create_kvstore("dist_sync", 1, {})
    net = network(params_seed=100 + seed)
    net.fit(iterator(rows, seed), kvstore=store)
    return net.arg_params, {"rank": store.rank}


def own_update(rows, seed):
    """`train` with an `Update` that got what `create_kvstore` said."""
    data = iterator(rows, seed)
    manager = DataParallelExecutorManager(nets.mlp(), mx.cpu(0), data)
    arg_params = first_params()
    manager.set_params(arg_params, {})
    store, on_store = model.create_kvstore("dist_sync", 1, arg_params)
    update = model.Update(manager, mx.optimizer.create("sgd", **SETTINGS), store, on_store)
    model.initialize_kvstore(store, manager.param_arrays, arg_params, manager.param_names, on_store)
    model.train(manager, update, data, 2, kvstore=store)
    manager.copy_to(arg_params, {})
    return arg_params, {}


def own_loop(rows, seed):
    """A hand-written loop, with the update wherever `create_kvstore` says."""
    data = iterator(rows, seed)
    manager = DataParallelExecutorManager(nets.mlp(), nets.CPUS[:2], data)
    arg_params = first_params()
    manager.set_params(arg_params, {})
    store, on_store = model.create_kvstore("dist_sync", 2, arg_params)
    optimizer = mx.optimizer.create(
        "sgd",
        rescale_grad=1.0 / BATCH / store.num_workers,
        param_idx2name=dict(enumerate(manager.param_names)),
        **SETTINGS,
    )
    store.set_optimizer(optimizer)
    model.initialize_kvstore(store, manager.param_arrays, arg_params, manager.param_names, on_store)
    for _ in range(2):
        data.reset()
        for batch in data:
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            model.update_params_on_kvstore(
                manager.param_arrays, manager.grad_arrays, store, manager.param_names
            )
    manager.copy_to(arg_params, {})
    return arg_params, {"on_store": on_store}


def die(rows, seed):
    """The second worker is killed in its third step."""

    def kill(param):
        if param.nbatch == 3 and seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    net = network()
    net.fit(iterator(rows, seed), kvstore="dist_sync", batch_end_callback=kill)
    return net.arg_params, {}


def fail(rows, seed):
    """The second worker's callback raises an error in its third step."""

    def raise_error(param):
        if param.nbatch == 3 and seed == 1:
            raise RuntimeError("a user's own error")

    net = network()
    net.fit(iterator(rows, seed), kvstore="dist_sync", batch_end_callback=raise_error)
    return net.arg_params, {}


def main(out, jobs):
    for name, (function, arguments) in json.loads(jobs).items():
        params, told = globals()[function](**arguments)
        np.savez(os.path.join(out, name), told=json.dumps(told), **nets.numpy_of(params))


if __name__ == "__main__":
    main(*sys.argv[1:])
