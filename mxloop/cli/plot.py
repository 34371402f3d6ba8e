"""``mxloop plot``: the curves of one run, or of several together."""

import argparse

from mxloop import history, plotting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="what callback.HistoryFile wrote: run.jsonl, run.csv"
    )
    parser.add_argument(
        "-o", "--output", default="curves.png", help="PNG, SVG or PDF file; curves.png by default"
    )


def run(args: argparse.Namespace) -> int:
    """Draw the picture."""
    names = plotting.default_names(args.runs)
    runs = {name: history.read(path) for name, path in zip(names, args.runs)}
    plotting.save(plotting.curves(runs), args.output)
    print(f"wrote {args.output}")
    return 0
