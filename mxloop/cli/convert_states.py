"""``mxloop convert-states``: optimizer states that MXNet pickled, in mxloop's format."""

import argparse
import os
import re

from mxloop import checkpoint, states_format, storage, symbol_format
from mxloop.errors import ArgumentError, DataError
from mxloop.labels import label_names
from mxloop.validation import count, names, shown

STOCK = ".stock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("file", metavar="FILE", help="what MXNet wrote, as prefix-0001.states")
    parser.add_argument(
        "-o", "--output", help=f"where to write; else FILE itself, the old one kept as FILE{STOCK}"
    )
    parser.add_argument(
        "--symbol",
        help="the network, whose parameters MXNet numbered; else prefix-symbol.json beside FILE",
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="devices that MXNet trained on without a kvstore"
    )
    parser.add_argument(
        "--num-update", type=int, help="updates of each parameter, where FILE does not say"
    )


def run(args: argparse.Namespace) -> int:
    """Convert a file."""
    data = storage.read(args.file)
    if not states_format.is_pickle(data):
        states_format.decode_states(data, args.file)  # or one line that says what it is
        print(f"{args.file} needs no conversion")
        return 0
    stock = states_format.read_stock_states(data, args.file)
    named = _named(stock, args)
    updates = 0 if args.num_update is None else count("--num-update", args.num_update, least=0)
    states = {name: (stock.states[key], stock.counts.get(key, updates)) for name, key in named}
    _write(args, data, states_format.encode_states(states))
    print(f"converted the states of {len(states)} parameters: {names(states)}")
    if not stock.counts and args.num_update is None:
        print(
            "The file does not say how often they were updated, which Adam and schedules need to "
            "know: 0 was written; --num-update N sets it"
        )
    return 0


def _named(stock, args):
    """(name, key) of each parameter; of several devices' replicas the first counts."""
    devices = count("--devices", args.devices)
    numbered = [key for key in stock.states if isinstance(key, int)]
    given = {**{key: key for key in stock.states if isinstance(key, str)}, **stock.names}
    if any(key not in given for key in numbered):
        parameters = _parameters(args)
        if numbered and max(numbered) >= len(parameters) * devices:
            raise DataError(
                f"{shown(args.file)} numbers {max(numbered) + 1} states, and the network has "
                f"{len(parameters)} parameters on {devices} devices; pass the right --devices or "
                "--symbol"
            )
        given.update({key: parameters[key // devices] for key in numbered})
    first = {}
    for key in [*sorted(numbered), *(key for key in stock.states if isinstance(key, str))]:
        first.setdefault(given[key], key)
    return list(first.items())


def _parameters(args):
    """The network's parameters in MXNet's order."""
    match = re.fullmatch(r"(.+)-(\d{4,})\.states", args.file)
    path = args.symbol or (f"{match[1]}-symbol.json" if match else None)
    if path is None or not os.path.isfile(path):
        raise ArgumentError(
            f"{shown(args.file, 100)} numbers its states without naming parameters; pass the "
            "network they belong to: --symbol prefix-symbol.json"
        )
    symbol = symbol_format.loads(storage.read(path), path)
    saved = {}
    if match and os.path.isfile(f"{match[1]}-{match[2]}.params"):
        saved = checkpoint.load(match[1], int(match[2])).arg_params
    return [name for name in symbol.list_arguments() if _is_parameter(name, symbol, saved)]


def _is_parameter(name, symbol, saved):
    """With saved parameters at hand they tell; without, data and labels go by their usual names."""
    return name in saved if saved else name != "data" and name not in label_names(symbol)


def _write(args, old, new):
    if args.output is not None:
        storage.write_all({args.output: new})
        return
    if os.path.exists(args.file + STOCK):
        raise ArgumentError(
            f"{shown(args.file + STOCK, 120)} is there already, and nothing is overwritten; remove "
            "it, or pass --output"
        )
    storage.write_all({args.file + STOCK: old})
    storage.write_all({args.file: new})
