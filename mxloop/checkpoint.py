"""Checkpoints: generations of a network, its parameters and what training needs to go on.

A generation is a set of files with one stem and a manifest that names them with their checksums.
It is there once its manifest is; until then the one before is. A manifest is written last, or,
where files of that name exist already, first: the new ones then stand ready under their temporary
names, and count under either.
"""

import logging
import math
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from mxloop import manifest_format, params_format, storage, symbol_format
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.params_format import ending
from mxloop.validation import count, names, path_of, shown
from mxloop.version import __version__

logger = logging.getLogger(__name__)

Params = Dict[str, mx.nd.NDArray]


class Generation(NamedTuple):
    """What a checkpoint holds, its files read and checked.

    Attributes
    ----------
    epoch, batch : int
        Epochs done, and batches done in the one after.
    symbol : Symbol
    arg_params, aux_params : dict of str to NDArray
    states : bytes or None
        The optimizer's, as states_format makes them.
    manifest : dict
        Empty for files without one.
    """

    epoch: int
    batch: int
    symbol: mx.sym.Symbol
    arg_params: Params
    aux_params: Params
    states: Optional[bytes]
    manifest: Dict[str, Any]


# --- In MXNet's terms ---------------------------------------------------------------------------


def save_checkpoint(
    prefix: Any, epoch: int, symbol: mx.sym.Symbol, arg_params: Params, aux_params: Params
) -> None:
    """Write ``prefix-symbol.json``, ``prefix-0001.params`` (for epoch 1) and their manifest.

    MXNet reads the first two. A kill at any instant leaves the old files' content or the new.

    Parameters
    ----------
    prefix : str or path-like
    epoch : int
        Epochs done; part of the file name.
    symbol : Symbol
    arg_params, aux_params : dict of str to NDArray

    Raises
    ------
    DataError
        If a file cannot be written.
    """
    save(prefix, count("epoch", epoch, least=0), symbol, arg_params, aux_params)


def load_checkpoint(prefix: Any, epoch: int) -> Tuple[mx.sym.Symbol, Params, Params]:
    """Read what `save_checkpoint`, or MXNet's, wrote.

    Returns
    -------
    symbol : Symbol
    arg_params, aux_params : dict of str to NDArray

    Raises
    ------
    DataError
        If a file is missing, damaged, or holds something else.
    """
    found = load(prefix, count("epoch", epoch, least=0))
    return found.symbol, found.arg_params, found.aux_params


# --- Generations --------------------------------------------------------------------------------


def stem(prefix: str, epoch: int, batch: int = 0) -> str:
    """The beginning of a generation's file names; those within an epoch tell their batch."""
    return f"{prefix}-{epoch:04d}-{batch:06d}" if batch else f"{prefix}-{epoch:04d}"


def save(
    prefix: Any,
    epoch: int,
    symbol: mx.sym.Symbol,
    arg_params: Params,
    aux_params: Params,
    states: Any = None,
    training: Optional[Dict[str, Any]] = None,
    batch: int = 0,
) -> None:
    """Write a generation.

    Parameters
    ----------
    states : bytes or list of buffers, optional
        The optimizer's, as states_format makes them.
    training : dict, optional
        What else a run needs to go on; fit for JSON, part of the manifest.
    batch : int
        Batches done in the epoch after `epoch`.
    """
    prefix = checked_prefix(prefix)
    named = {f"arg:{name}": value for name, value in arg_params.items()}
    named.update({f"aux:{name}": value for name, value in aux_params.items()})
    own = stem(prefix, epoch, batch)
    files = {
        "symbol": (f"{prefix}-symbol.json", symbol.tojson().encode()),
        "params": (f"{own}.params", list(params_format.chunks(named))),
    }
    if states is not None:
        files["states"] = (f"{own}.states", states)
    manifest = {
        "format": manifest_format.FORMAT,
        "epoch": epoch,
        "batch": batch,
        "files": {kind: _described(*file) for kind, file in files.items()},
        "versions": {"mxloop": __version__, "mxnet": mx.__version__},
        **(training or {}),
    }
    _commit(
        f"{own}.json",
        manifest_format.encode(manifest),
        dict(files.values()),
        f"{prefix}-symbol.json",
    )


def checked_prefix(prefix: Any) -> str:
    """The beginning of file names, in a folder that is there.

    Raises
    ------
    DataError
        If the folder is not there, or cannot be written to.
    """
    prefix = path_of(prefix)
    folder = os.path.dirname(prefix) or "."
    if "\0" in prefix or not os.path.isdir(folder):
        raise DataError(f"there is no folder {shown(repr(folder), 150)} to write to; make it first")
    if not os.access(folder, os.W_OK):
        raise DataError(f"the folder {shown(repr(folder), 150)} is read-only; choose another one")
    return prefix


def _described(path, data):
    return {
        "name": os.path.basename(path),
        "size": storage.size(data),
        "sha256": storage.sha256(data),
    }


def _commit(manifest_path, manifest, files, symbol_path):
    if _holds(symbol_path, files[symbol_path]):
        del files[symbol_path]  # older generations count on it as well
    written: List[str] = []
    try:
        for path, data in files.items():
            written.append(storage.write_partial(path, data))
        if any(os.path.exists(path) for path in [*files, manifest_path]):
            storage.write_all({manifest_path: manifest})
        storage.put_in_place(files)
        storage.write_all({manifest_path: manifest})
    finally:
        # Once the manifest is there, the files belong to the generation, under whichever name.
        if not _holds(manifest_path, manifest):
            storage.remove(written)


def _holds(path, data):
    return os.path.isfile(path) and storage.read(path) == data


def load(prefix: Any, epoch: int, batch: int = 0) -> Generation:
    """Read a generation, or files without a manifest, checked before MXNet sees them.

    Raises
    ------
    DataError
        If a file is missing, damaged, or holds something else.
    """
    prefix = path_of(prefix)
    own = stem(prefix, epoch, batch)
    paths = {
        "symbol": f"{prefix}-symbol.json",
        "params": f"{own}.params",
        "states": f"{own}.states",
    }
    manifest = _manifest(f"{own}.json", epoch, batch) if os.path.isfile(f"{own}.json") else {}
    data = _read_described(manifest, paths) if manifest else _read_bare(paths)
    arg_params, aux_params = _split(
        params_format.decode(data["params"], paths["params"]), paths["params"]
    )
    return Generation(
        epoch,
        batch,
        symbol_format.loads(data["symbol"], paths["symbol"]),
        arg_params,
        aux_params,
        data.get("states"),
        manifest,
    )


def _manifest(path, epoch, batch):
    manifest = manifest_format.decode(storage.read(path, manifest_format.MOST_BYTES), path)
    if (manifest["epoch"], manifest["batch"]) != (epoch, batch):
        raise DataError(
            f"{ending(path)} is the manifest of epoch {manifest['epoch']}, batch "
            f"{manifest['batch']}; give the files their names back, or remove it to take them as "
            "they are"
        )
    return manifest


def _read_bare(paths):
    for kind in ("symbol", "params"):
        if not os.path.isfile(paths[kind]):
            raise DataError(
                f"there is no file {shown(paths[kind], 150)}; check the prefix and the epoch"
            )
    return {kind: storage.read(path) for kind, path in paths.items() if os.path.isfile(path)}


def _read_described(manifest, paths):
    return {kind: _matching(paths[kind], told) for kind, told in manifest["files"].items()}


def _matching(path, told):
    """A file's bytes if they are those that the manifest means, be they in place or ready."""
    for candidate in (path, path + storage.PARTIAL):
        if os.path.isfile(candidate) and os.path.getsize(candidate) == told["size"]:
            data = storage.read(candidate)
            if storage.sha256(data) == told["sha256"]:
                return data
    state = "is not what was saved" if os.path.isfile(path) else "is missing"
    raise DataError(
        f"{shown(path, 120)} {state}, says its manifest; load another generation, or remove the "
        "manifest to take the file as it is"
    )


def _split(named, path):
    params: Dict[str, Params] = {"arg": {}, "aux": {}}
    for key, value in named.items():
        kind, _, name = key.partition(":")
        if kind not in params or not name:
            raise DataError(
                f"{shown(path)} holds {shown(repr(key))}; names begin with 'arg:' or 'aux:': "
                "save it as a checkpoint"
            )
        params[kind][name] = value
    return params["arg"], params["aux"]


PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


def check_names(found: Generation, allow_missing: bool, allow_extra: bool) -> None:
    """Raise DataError if parameters are missing from a generation, or are none of its network.

    Without shapes a parameter is told from an input by its name's ending, as MXNet's own are.
    """
    for wanted, given in (
        (found.symbol.list_arguments(), found.arg_params),
        (found.symbol.list_auxiliary_states(), found.aux_params),
    ):
        parameters = [
            n for n in wanted if given is found.aux_params or n.endswith(PARAMETER_ENDINGS)
        ]
        missing = [name for name in parameters if name not in given]
        extra = [name for name in given if name not in wanted]
        if missing and not allow_missing:
            raise DataError(
                f"the checkpoint has no value for {names(missing, 120)}; pass allow_missing=True "
                "to have them initialised"
            )
        if extra and not allow_extra:
            raise DataError(
                f"the checkpoint holds {names(extra, 120)}, which the network lacks; pass "
                "allow_extra_params=True to leave them out"
            )


# --- Which there are ----------------------------------------------------------------------------


def generations(prefix: Any) -> List[Tuple[int, int]]:
    """(epoch, batch) of all generations with a manifest, valid or not, newest first."""
    numbers = serials(prefix)
    return sorted(numbers, key=lambda place: (numbers[place], place), reverse=True)


def serials(prefix: Any) -> Dict[Tuple[int, int], float]:
    """(epoch, batch) of all generations -> when it was written, as a number that counts up.

    A run begun anew, or from an earlier epoch, overtakes what an older one left in later epochs.
    Models saved without a training state have number 0; broken manifests have infinity.
    """
    folder, name = os.path.split(path_of(prefix))
    pattern = re.compile(re.escape(name) + r"-([0-9]{4,18})(?:-([0-9]{6,18}))?\.json")
    try:
        found = [pattern.fullmatch(entry) for entry in os.listdir(folder or ".")]
    except OSError:
        return {}
    # A prefix may itself end in what looks like an epoch.
    places = [(int(m[1]), int(m[2] or 0)) for m in found if m]
    places = [
        place for place, m in zip(places, filter(None, found)) if stem(name, *place) == m[0][:-5]
    ]
    return {(epoch, batch): _serial(prefix, epoch, batch) for epoch, batch in places}


def _serial(prefix, epoch, batch):
    try:
        manifest = _manifest(f"{stem(path_of(prefix), epoch, batch)}.json", epoch, batch)
    except DataError:
        return math.inf
    return manifest.get("serial", 0)


def newest(prefix: Any) -> Optional[Generation]:
    """Read the newest valid generation; each broken one is passed over with one warning."""
    for epoch, batch in generations(prefix):
        try:
            return load(prefix, epoch, batch)
        except DataError as error:
            logger.warning("passed over a broken checkpoint: %s", error)
    return None


def remove(prefix: Any, epoch: int, batch: int = 0) -> None:
    """Remove a generation, its manifest first; the network's file stays."""
    own = stem(path_of(prefix), epoch, batch)
    files = [f"{own}.json", f"{own}.params", f"{own}.states"]
    storage.remove([*files, *(path + storage.PARTIAL for path in files)])
