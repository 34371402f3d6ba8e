"""``mxloop summary``: the network of a checkpoint in a table."""

import argparse
from typing import Tuple

from mxloop import checkpoint
from mxloop.summary import summarize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("prefix", metavar="PREFIX")
    parser.add_argument("epoch", metavar="EPOCH", type=int)
    parser.add_argument(
        "--shape",
        action="append",
        type=shape,
        metavar="NAME=N,...",
        help="an input's shape, batch first, as data=1,1,28,28; else what the checkpoint tells",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    found = checkpoint.load(args.prefix, args.epoch)
    params = {**found.arg_params, **found.aux_params}
    told = found.manifest.get("input_shapes") or {}
    shapes = {name: (1, *sides) for name, sides in told.items()}
    print(summarize(found.symbol, dict(args.shape or shapes), params))
    return 0


def shape(text: str) -> Tuple[str, Tuple[int, ...]]:
    """A type for `add_argument`: a name and a shape, as in ``data=1,28,28``."""
    name, _, sides = text.partition("=")
    parts = sides.split(",")
    if not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, as in data=1,1,28,28")
    return name, tuple(map(int, parts))
