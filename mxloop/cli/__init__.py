"""The commands of ``python -m mxloop``, one a module with `add_arguments(parser)` and `run(args)`.

Exit codes: 0 done, 1 failed, 2 a mistake in the command line, 130 ended by Ctrl-C.
"""

import argparse
import importlib
import os
import sys
from typing import List, Optional

from mxloop.errors import MXLoopError
from mxloop.version import __version__

COMMANDS = {
    "convert-states": "rewrite MXNet's pickled optimizer states as a file that runs no code",
    "doctor": "look whether everything is in place to train, and name the remedies",
    "export": "write a saved model as an ONNX file, checked against onnxruntime",
    "inspect": "list the checkpoints of a prefix, and check them",
    "plot": "draw the curves of one or more runs",
    "report": "make one page of HTML of a run",
    "summary": "show a saved network's layers, parameters, shapes and operations",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> None:
        """Print one line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (--help says more)\n")


def main(argv: Optional[List[str]] = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    argv : list of str, optional
        The command line after the program's name; ``sys.argv[1:]`` by default.
    """
    argv = sys.argv[1:] if argv is None else argv
    name = _parser().parse_args(argv[:1]).command
    parser = Parser(prog=f"mxloop {name}", description=f"{COMMANDS[name]}.")
    try:
        # Only this one is imported: `doctor` has to work where MXNet does not.
        command = importlib.import_module(f"mxloop.cli.{name.replace('-', '_')}")
        command.add_arguments(parser)
        return command.run(parser.parse_args(argv[1:]))
    except MXLoopError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser():
    listed = "\n".join(f"  {name:16}{text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="mxloop",
        description="Tools around training with mxloop.",
        epilog=f"commands:\n{listed}\n\nmxloop COMMAND --help says more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mxloop {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    return parser
