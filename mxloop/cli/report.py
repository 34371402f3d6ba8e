"""``mxloop report``: a run on one page of HTML."""

import argparse
import os

from mxloop import about, history, report, storage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("run", metavar="RUN", help="what callback.HistoryFile wrote: run.jsonl")
    parser.add_argument("-o", "--output", default="report.html", help="report.html by default")
    parser.add_argument("--title", help="the file's name by default")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        help="a PNG, JPEG or SVG file to include; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    rows = history.read(args.run)
    title = args.title or os.path.splitext(os.path.basename(args.run))[0]
    page = report.make(rows, about.read(about.path_beside(args.run)), title, args.image)
    storage.write_all({args.output: page.encode()})
    print(f"wrote {args.output}")
    return 0
