"""What a command line may say: each mistake is one line on stderr and exit code 2."""

import argparse
import math
import sys

from mxloop.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    MXLoopError,
    StateError,
    Terminated,
)

# What was asked for is at fault, not the training.
MISTAKES = (ArgumentError, ArgumentTypeError, DataError, StateError)


class Parser(argparse.ArgumentParser):
    """An argument parser that does not print its usage over the one line that matters."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


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
        return 2 if isinstance(error, MISTAKES) else 1


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
