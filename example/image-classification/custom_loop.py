"""A training loop of one's own: several evaluation sets, and a log of one JSON object a line."""

import json

import numpy as np
from common.cli import Parser
from symbols import mlp

from mxloop import DataParallelExecutorManager, model, mx
from mxloop.data import ArrayIter, load_digits28

FLAGS = {"--cpus": 1, "--kv-store": "device", "--num-epochs": 5, "--batch-size": 64, "--seed": 0}


def data_sets(batch_size, seed):
    """One iterator to train with, and by name those to evaluate on."""
    train, (x, y) = load_digits28()
    noise = np.random.RandomState(seed).uniform(-0.5, 0.5, x.shape)
    tests = {"clean": x, "shifted": np.roll(x, 2, axis=3), "noisy": x + noise}
    shuffled = ArrayIter(*train, batch_size, shuffle=True, seed=seed)
    return shuffled, {name: ArrayIter(test, y, batch_size) for name, test in tests.items()}


def make_update(manager, arg_params, kvstore):
    """Return the function that takes one step, wherever the kvstore wants it taken."""
    kvstore, on_kvstore = model.create_kvstore(kvstore, len(manager.ctx), arg_params)
    optimizer = mx.optimizer.create("sgd", learning_rate=0.05, momentum=0.9)
    updater = mx.optimizer.get_updater(optimizer)
    params, grads, names = manager.param_arrays, manager.grad_arrays, manager.param_names
    if on_kvstore:
        kvstore.set_optimizer(optimizer)
    if kvstore is not None:
        model.initialize_kvstore(kvstore, params, arg_params, names, on_kvstore)

    def update():
        optimizer.rescale_grad = 1 / manager.num_samples  # the last batch of an epoch is short
        if on_kvstore:
            model.update_params_on_kvstore(params, grads, kvstore, names)
        else:
            model.update_params(params, grads, updater, len(manager.ctx), kvstore, names)

    return update


def run_epoch(manager, batches, update=None):
    """Train, or without an update evaluate, on all batches; return the metrics by name."""
    metric = mx.metric.create(["acc", "ce"])
    batches.reset()
    for batch in batches:
        manager.load_data_batch(batch)
        manager.forward(is_train=update is not None)
        if update is not None:
            manager.backward()
            update()
        manager.update_metric(metric, batch.label)
    return {name: float(value) for name, value in metric.get_name_value()}


def main():
    parser = Parser(description=__doc__)
    for flag, default in FLAGS.items():
        parser.add_argument(flag, type=type(default), default=default)
    args = parser.parse_args()
    mx.random.seed(args.seed)
    train, tests = data_sets(args.batch_size, args.seed)
    network, devices = mlp.get_symbol(num_classes=10), [mx.cpu(i) for i in range(args.cpus)]
    manager = DataParallelExecutorManager(network, devices, train)
    inputs = train.provide_data + train.provide_label
    arg_params, aux_params = model.init_params(network, inputs, mx.init.Xavier())
    manager.set_params(arg_params, aux_params)
    update = make_update(manager, arg_params, args.kv_store)
    for epoch in range(args.num_epochs):
        row = {"epoch": epoch, "train": run_epoch(manager, train, update)}
        row.update({name: run_epoch(manager, test) for name, test in tests.items()})
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
