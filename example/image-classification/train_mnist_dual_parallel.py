"""Train two copies of a network, each on two ranks, at once.

Run it as ``mpiexec -n 4 python train_mnist_dual_parallel.py``. Each pair of ranks holds a copy of
the network, as in train_mnist_model_parallel.py, and its own share of the data; ranks that hold the
same layers step by the mean of their gradients.
Exit codes are those of train_mnist.py.
"""

import sys

try:
    from common import cli, data, model_parallel

    from mxloop.multi_node import (
        create_communicator,
        create_multi_node_evaluator,
        create_multi_node_optimizer,
        scatter_dataset,
    )
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)

import numpy as np


def main(args):
    everyone = create_communicator()
    model_parallel.need_ranks(everyone, 4)
    pair = everyone.split(everyone.rank // 2, everyone.rank)  # one network
    alike = everyone.split(everyone.rank % 2, everyone.rank)  # the same layers
    np.random.seed(args.seed)
    net = model_parallel.make_network(pair, args)
    trainer = model_parallel.make_trainer(net, args)
    trainer = create_multi_node_optimizer(trainer, alike, overlap=True)
    train, test = model_parallel.data_sets(args)
    train = scatter_dataset(train, alike)
    test = scatter_dataset(test, alike, force_equal_length=False)
    batches = model_parallel.make_batches(pair, train, args, shuffle=True)
    tests = model_parallel.make_batches(pair, test, args)
    is_first = everyone.rank == 0
    if is_first:
        print(f"data: {data.NOTES[args.dataset]}; {len(train)} images for each pair", flush=True)
    evaluate = create_multi_node_evaluator(
        lambda: ({"accuracy": model_parallel.accuracy(pair, net, tests)}, len(test)), alike
    )
    for epoch in range(args.num_epochs):
        model_parallel.train_epoch(pair, net, trainer, batches, args.batch_size)
        found = evaluate()["accuracy"]
        if is_first:
            print(f"Epoch[{epoch}] Validation-accuracy={found:.4f}", flush=True)
    return model_parallel.judge(found, args.target_acc) if is_first else 0


if __name__ == "__main__":
    parser = model_parallel.make_parser(__doc__.splitlines()[0])
    sys.exit(cli.run(main, parser.parse_args()))
