"""Run the same training on mxloop and on its peers, in turns, and compare.

python benchmark/throughput.py                   # MLP, LeNet and ResNet-20: all peers, all targets
python benchmark/throughput.py mlp --rounds 20
python benchmark/throughput.py startup memory    # further modes, see --help
"""

import argparse
import importlib
import json
import os
import platform
import sys

import nets
import rounds

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))  # where mxloop is, unless it is installed
NETS = ("mlp", "lenet", "resnet20")
MODES = {
    "devices": "1, 2 and 4 contexts, with 1 and 2 threads each",
    "batches": "batch sizes",
    "memory": "peak memory of each peer",
    "startup": "import mxloop against import mxnet",
    "overhead": "Python's time a step and device, and CPU time / wall time",
    "parts": "what rows, decay, guard, outputs and Python cost over the bare limit",
    "softmax": "100,000 classes: cross-entropy metric against no metric",
    "guard": "what the check for NaN costs",
    "amp": "FeedForward(amp='bfloat16') against float32",
    "checkpoint": "mxloop.save_checkpoint against mx.nd.save",
    "dist": "kvstore 'dist_sync' with 2 workers",
}


def parse(arguments):
    """Read the command line."""
    modes = "\n".join(f"  {name:12}{text}" for name, text in MODES.items())
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog=f"further modes:\n{modes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"{', '.join(NETS)}, or a further mode; by default the networks",
    )
    parser.add_argument("--rounds", type=int, help="rounds to count (by default 10)")
    parser.add_argument("--samples", type=int, help="samples in an epoch")
    parser.add_argument("--batch", type=int, default=128, help="samples in a batch (128)")
    parser.add_argument(
        "--net", action="append", choices=nets.NETS, help="network of a further mode"
    )
    parser.add_argument("--only", action="append", help="settings whose name begins so, repeatable")
    parser.add_argument("--quick", action="store_true", help="3 rounds: a look, no measurement")
    parser.add_argument(
        "--patience",
        type=float,
        default=rounds.PATIENCE,
        help="seconds to wait in all for a quiet machine (%(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything to this file")
    options = parser.parse_args(arguments)
    options.what = options.what or list(NETS)
    unknown = [name for name in options.what if name not in (*NETS, *MODES)]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join((*NETS, *MODES))}")
    options.rounds = options.rounds or (3 if options.quick else 10)
    return options


def machine():
    """Where this was measured."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def main(arguments):
    options = parse(arguments)
    rounds.PATIENCE = options.patience
    written = {"machine": machine(), "rounds": options.rounds, "results": {}}
    for name in options.what:
        print(f"\n=== {name} ===\n", flush=True)
        mode = importlib.import_module(f"modes.{'nets' if name in NETS else name}")
        written["results"][name] = mode.run(name, options)
        if options.json:  # after each, so that a run that is cut short leaves what it has
            with open(options.json, "w") as stream:
                json.dump(written, stream, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
