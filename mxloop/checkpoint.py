"""Models in files: a network, its parameters, and their way back."""

import os
from typing import Any, Dict, Tuple

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import count, one_line, shown

Params = Dict[str, mx.nd.NDArray]


def save_checkpoint(
    prefix: Any, epoch: int, symbol: mx.sym.Symbol, arg_params: Params, aux_params: Params
) -> None:
    """Write ``prefix-symbol.json`` and ``prefix-0001.params`` (for epoch 1), for MXNet to read too.

    Each file appears whole or not at all.

    Parameters
    ----------
    prefix : str or path-like
    epoch : int
        Epochs done; part of the file name.
    symbol : Symbol
    arg_params, aux_params : dict of str to NDArray
    """
    count("epoch", epoch, least=0)
    prefix = os.fspath(prefix)
    named = {f"arg:{name}": value for name, value in arg_params.items()}
    named.update({f"aux:{name}": value for name, value in aux_params.items()})
    _write_whole(f"{prefix}-symbol.json", symbol.save)
    _write_whole(_params_file(prefix, epoch), lambda path: mx.nd.save(path, named))


def load_checkpoint(prefix: Any, epoch: int) -> Tuple[mx.sym.Symbol, Params, Params]:
    """Read what `save_checkpoint`, or MXNet's, wrote.

    Returns
    -------
    symbol : Symbol
    arg_params, aux_params : dict of str to NDArray

    Raises
    ------
    DataError
        If a file is missing or holds something else.
    """
    count("epoch", epoch, least=0)
    prefix = os.fspath(prefix)
    symbol = _read(f"{prefix}-symbol.json", mx.sym.load)
    named = _read(_params_file(prefix, epoch), mx.nd.load)
    params: Dict[str, Params] = {"arg": {}, "aux": {}}
    for key, value in named.items() if isinstance(named, dict) else ():
        kind, _, name = key.partition(":")
        if kind not in params or not name:
            raise DataError(
                f"{shown(_params_file(prefix, epoch))} holds {shown(repr(key))}; names begin with "
                "'arg:' or 'aux:': save it as a checkpoint"
            )
        params[kind][name] = value
    return symbol, params["arg"], params["aux"]


def _params_file(prefix, epoch):
    return f"{prefix}-{epoch:04d}.params"


def _write_whole(path, write):
    folder = os.path.dirname(path) or "."
    if "://" not in path and not os.path.isdir(folder):
        raise DataError(f"there is no folder {shown(folder, 150)} to write to; make it first")
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with one_line(f"write {shown(path)}"):
            write(partial)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def _read(path, read):
    if not os.path.isfile(path):
        raise DataError(f"there is no file {shown(path, 150)}; check the prefix and the epoch")
    with one_line(f"read {shown(path)}"):
        return read(path)
