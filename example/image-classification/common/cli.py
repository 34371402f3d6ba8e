"""What a command line may say: each mistake is one line on stderr and exit code 2."""

import argparse
import math
import sys

from common.config import flags_in

from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DivergedError,
    MXLoopError,
    PeerError,
    StateError,
    Terminated,
)

# What was asked for is at fault, not the training.
MISTAKES = (ArgumentError, ArgumentTypeError, DataError, StateError)
# The training, after all.
FAILURES = (DivergedError, PeerError)


class OneLine(argparse.ArgumentParser):
    """An argument parser that does not print its usage over the one line that matters."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


class Parser(OneLine):
    """An argument parser that takes flags from a file too; the command line overrides them."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.add_argument("--config", metavar="FILE", help="flags in a JSON or YAML file")

    def parse_known_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else list(args)
        first = OneLine(prog=self.prog, add_help=False, allow_abbrev=False)
        first.add_argument("--config")
        path = first.parse_known_args(words)[0].config
        try:
            words = (flags_in(path, self) if path else []) + words
        except MXLoopError as error:
            self.error(error)
        return super().parse_known_args(words, namespace)


def run(main, args):
    """Run `main(args)` and return the exit code.

    Its own, 2 for a mistake, 1 for a failure, 130 after Ctrl-C and 143 after SIGTERM.
    """
    try:
        return main(args)
    except Terminated as end:
        print(f"ended: {end}", file=sys.stderr)
        return 143
    except KeyboardInterrupt as end:
        print(f"ended: {end}", file=sys.stderr)
        return 130
    except MXLoopError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, MISTAKES) and not isinstance(error, FAILURES) else 1


def number(kind, least, most=math.inf):
    """A type for `add_argument`: an int or float from `least` to `most`."""
    allowed = f"of at least {least}" if most == math.inf else f"from {least} to {most}"

    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        # Written so that nan fails as well.
        if not (least <= value <= most and value < math.inf):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {allowed}")
        return value

    return convert


def increasing(text):
    """A type for `add_argument`: numbers of epochs that grow, as in '10,15'; none is allowed."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    epochs = [int(part) for part in parts if part.isdecimal()]
    if len(epochs) < len(parts) or any(b <= a for a, b in zip([0] + epochs, epochs)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of growing epochs, as in '10,15'")
    return epochs
