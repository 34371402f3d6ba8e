"""Train one network that lives on two ranks.

Run it as ``mpiexec -n 2 python train_mnist_model_parallel.py``. Rank 0 has the data, the first and
the last layer, and the loss; rank 1 has the layer in between.
Exit codes are those of train_mnist.py.
"""

import sys

try:
    from common import cli, data, model_parallel

    from mxloop.multi_node import create_communicator
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)

import numpy as np


def main(args):
    communicator = create_communicator()
    model_parallel.need_ranks(communicator, 2)
    np.random.seed(args.seed)
    net = model_parallel.make_network(communicator, args)
    trainer = model_parallel.make_trainer(net, args)
    train, test = model_parallel.data_sets(args)
    batches = model_parallel.make_batches(communicator, train, args, shuffle=True)
    tests = model_parallel.make_batches(communicator, test, args)
    is_first = communicator.rank == 0
    if is_first:
        print(f"data: {data.NOTES[args.dataset]}; {len(train)} images to train with", flush=True)
    for epoch in range(args.num_epochs):
        model_parallel.train_epoch(communicator, net, trainer, batches, args.batch_size)
        found = model_parallel.accuracy(communicator, net, tests)
        if is_first:
            print(f"Epoch[{epoch}] Validation-accuracy={found:.4f}", flush=True)
    return model_parallel.judge(found, args.target_acc) if is_first else 0


if __name__ == "__main__":
    parser = model_parallel.make_parser(__doc__.splitlines()[0])
    sys.exit(cli.run(main, parser.parse_args()))
