"""Which devices to train on."""

import argparse

from common.cli import number

from mxloop import available_devices, mx
from mxloop.validation import contexts


def add_device_args(parser):
    """Add --gpus and --cpus, of which at most one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--gpus", type=gpu_numbers, help="GPUs to train on, as in '0' or '0,1'")
    group.add_argument(
        "--cpus",
        type=number(int, 0),
        default=1,
        help="number of CPU contexts to train on; 0 takes the GPUs that there are, else one a core",
    )


def gpu_numbers(text):
    """A type for `add_argument`: different numbers of GPUs, as in '0,1'."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of GPUs, as in '0' or '0,1'")
    return [int(part) for part in parts]


def chosen(args):
    """Return the contexts that the command line names; an ArgumentError tells of absent GPUs."""
    if args.gpus:
        return contexts([mx.gpu(number) for number in args.gpus])
    return [mx.cpu(number) for number in range(args.cpus)] or available_devices()
