"""What the examples with one network on two ranks share: the network, flags, loop, evaluation."""

import sys

import numpy as np
from common import data
from common.cli import Parser, number

from mxloop import mx
from mxloop.errors import ArgumentError
from mxloop.multi_node import MultiNodeChainList, create_empty_dataset

Dense = mx.gluon.nn.Dense
HIDDEN = 128


def make_parser(description):
    parser = Parser(description=description)
    data.add_data_args(parser)
    parser.add_argument("--num-epochs", type=number(int, 1), default=10)
    parser.add_argument("--batch-size", type=number(int, 1), default=64)
    parser.add_argument("--lr", type=number(float, 0), default=0.05)
    parser.add_argument("--mom", type=number(float, 0), default=0.9)
    parser.add_argument("--seed", type=number(int, 0, 2**32 - 1), default=0, help="repeats a run")
    parser.add_argument(
        "--target-acc", type=number(float, 0, 1), default=0, help="fail below this accuracy"
    )
    return parser


def need_ranks(communicator, size):
    if communicator.size != size:
        raise ArgumentError(
            f"this example is for {size} ranks, and got {communicator.size}: run mpiexec -n {size} "
            f"python {sys.argv[0]}"
        )


def make_network(communicator, args):
    """Return this rank's parts: on rank 0 the first and the last layer, else the one between."""
    net = MultiNodeChainList(communicator)
    if communicator.rank == 0:
        net.add_link(Dense(HIDDEN, activation="relu", in_units=784), rank_out=1)
        net.add_link(Dense(args.num_classes, in_units=HIDDEN), rank_in=1)
    else:
        middle = Dense(HIDDEN, activation="relu", in_units=HIDDEN)
        net.add_link(middle, rank_in=0, rank_out=0)
    mx.random.seed(args.seed + communicator.rank)
    net.initialize(mx.init.Xavier())
    return net


def make_trainer(net, args):
    settings = {"learning_rate": args.lr, "momentum": args.mom}
    return mx.gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=None)


def data_sets(args):
    """Return the images to train and to test with, as vectors, and their labels."""
    (x, y), (test_x, test_y) = data.load_arrays(args)
    data.check_classes(args, y)
    x, y = x[: args.num_examples], y[: args.num_examples]
    sets = (x.reshape(len(x), -1), y), (test_x.reshape(len(test_x), -1), test_y)
    return [mx.gluon.data.ArrayDataset(*map(np.float32, each)) for each in sets]


def make_batches(communicator, dataset, args, shuffle=False):
    """Return batches of a data set; on ranks without data as many empty ones."""
    if communicator.rank:
        dataset = create_empty_dataset(dataset)
    return mx.gluon.data.DataLoader(dataset, args.batch_size, shuffle=shuffle and len(dataset) > 0)


def train_epoch(communicator, net, trainer, batches, batch_size):
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for batch in batches:
        with mx.autograd.record():
            if communicator.rank == 0:
                x, y = batch
                head = loss_of(net(x), y)
            else:
                head = net()  # a delegate: the way back to rank 0
        head.backward()
        trainer.step(batch_size)


def accuracy(communicator, net, batches):
    """Return the share of images told right; only rank 0 knows it."""
    metric = mx.metric.Accuracy()
    for batch in batches:
        if communicator.rank == 0:
            metric.update([batch[1]], [net(batch[0])])
        else:
            net()
    return metric.get()[1]


def judge(found, target):
    """Print the accuracy, and return the exit code."""
    print(f"Final validation accuracy: {found:.4f}", flush=True)
    if found >= target:
        return 0
    print(f"error: that is below the target of {target}", file=sys.stderr)
    return 1
