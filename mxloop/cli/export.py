"""``mxloop export``: a checkpoint's model as an ONNX file."""

import argparse

from mxloop.cli.summary import shape
from mxloop.export import to_onnx
from mxloop.model import FeedForward


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("prefix", metavar="PREFIX")
    parser.add_argument("epoch", metavar="EPOCH", type=int)
    parser.add_argument("output", metavar="MODEL.onnx", help="where to write")
    parser.add_argument(
        "--shape",
        action="append",
        type=shape,
        metavar="NAME=N,...",
        help="an input's shape of one sample, as data=1,28,28, where the checkpoint has none",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file, once onnxruntime has predicted the same."""
    model = FeedForward.load(args.prefix, args.epoch)
    difference = to_onnx(model, args.output, dict(args.shape) if args.shape else None)
    print(f"wrote {args.output}; onnxruntime predicts the same, to {difference:.1g}")
    return 0
