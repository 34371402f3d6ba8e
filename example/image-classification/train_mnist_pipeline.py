"""Train one network in two stages, on two ranks or on two devices of one process.

Run it as ``mpiexec -n 2 python train_mnist_pipeline.py``, or without mpiexec. Each batch goes
through in micro-batches, so that both stages work at the same time. Exit codes are those of
train_mnist.py.
"""

import logging
import sys

try:
    from common import cli, data, model_parallel, ranks
    from symbols import mlp

    from mxloop import mx
    from mxloop.multi_node import PipelineFeedForward, create_communicator
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)


def main(args):
    communicator = create_communicator()
    if communicator.size > 1:
        model_parallel.need_ranks(communicator, 2)
    ranks.let_first_speak(communicator.rank)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    train, validation = data.load(args)
    model = PipelineFeedForward(
        mlp.get_symbol(args.num_classes),
        cuts=["relu1"],
        ctx=[mx.cpu(i) for i in range(2 // communicator.size)],
        communicator=communicator,
        micro_batches=args.micro_batches,
        schedule=args.schedule,
        num_epoch=args.num_epochs,
        initializer=mx.init.Xavier(),
        learning_rate=args.lr,
        momentum=args.mom,
    )
    model.fit(train, eval_data=validation, seed=args.seed)
    return model_parallel.judge(model.history[-1]["val_accuracy"], args.target_acc)


def parse(argv=None):
    parser = model_parallel.make_parser(__doc__.splitlines()[0])
    parser.add_argument("--micro-batches", type=cli.number(int, 1), default=4)
    parser.add_argument("--schedule", choices=("gpipe", "1f1b"), default="1f1b")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
