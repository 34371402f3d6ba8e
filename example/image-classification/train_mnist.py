"""Train a network on images of 28x28 pixels: on embedded digits, MNIST or Fashion-MNIST.

Exit codes: 0 done, 1 failed or below --target-acc, 2 a mistake in the flags or an environment that
cannot do what they ask for, 130 ended by Ctrl-C, 143 by SIGTERM.
"""

import importlib
import logging
import sys

try:
    from common import cli, data, fit
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)


def parse(argv=None):
    parser = cli.Parser(description=__doc__.splitlines()[0])
    fit.add_fit_args(parser)
    data.add_data_args(parser)
    parser.add_argument(
        "--target-acc", type=cli.number(float, 0, 1), default=0, help="fail below this accuracy"
    )
    return parser.parse_args(argv)


def main(args):
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if args.test_io:
        return fit.test_io(args, data.load)
    network = importlib.import_module(f"symbols.{args.network}").get_symbol(**vars(args))
    accuracy = fit.fit(args, network, data.load)["val_accuracy"]
    print(f"Final validation accuracy: {accuracy:.4f}")
    if accuracy >= args.target_acc:
        return 0
    print(f"error: that is below the target of {args.target_acc}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
