"""What a run must remember to go on as if it had never been interrupted, to the bit.

Parameters and optimizer states are arrays and go into files of their own; the rest (counts, rates,
positions, random states, metric sums) is JSON and goes into the checkpoint's manifest.
"""

import contextlib
import json
import logging
import os
import random
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from mxloop import counted, states_format
from mxloop.batch import sample_shapes
from mxloop.callback.base import Callback, State
from mxloop.checkpoint import Generation
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import names, shown

logger = logging.getLogger(__name__)

AUX = "aux:"
KEPT = "callback:"
GATHERED = "gathered:"
NOTHING_GATHERED = {"accumulate": 1, "batches": 0, "samples": 0}  # by versions that could not
OTHERS = (AUX, KEPT, GATHERED)  # than the optimizer's
ARRAYS = "arrays of "  # begins the key under which the manifest tells names of arrays
RANDOM_OPERATORS = ("Dropout", "RNN", "LeakyReLU", "Custom", "_shuffle", "shuffle")
RANDOM_PREFIXES = ("_random", "_sample", "random_", "sample_", "_npi_", "_npx_")
RATES = ("lr", "wd", "num_update", "m_schedule")


# --- Random numbers -----------------------------------------------------------------------------


def is_random(symbol: mx.sym.Symbol, optimizer: Any) -> bool:
    """Whether a training step draws random numbers from MXNet."""
    operators = {node["op"] for node in json.loads(symbol.tojson())["nodes"]}
    drawn = any(op in RANDOM_OPERATORS or op.startswith(RANDOM_PREFIXES) for op in operators)
    return drawn or isinstance(optimizer, mx.optimizer.SGLD)


class Reseed(Callback):
    """Seed MXNet before every step by the run's seed and the step's place alone.

    MXNet's random state cannot be read; so it is set, always, not only after a restart.
    """

    def on_batch_begin(self, state: State) -> None:
        """Seed the step that comes."""
        place = [state.seed, state.epoch, state.nbatch]
        mx.random.seed(int(np.random.RandomState(place).randint(2**31 - 1)))


# --- Where a run stands -------------------------------------------------------------------------


class Bookmark(Callback):
    """Mark each place between two steps, where a run can be taken up."""

    def on_train_begin(self, state: State) -> None:
        """Remember the rates that a run begins with; a resumed one has done so."""
        if state.begun_with is None and state.optimizer is not None:  # `train` does without
            state.begun_with = _settings(state.optimizer)

    def on_epoch_begin(self, state: State) -> None:
        """Mark the beginning of an epoch, unless it is taken up within."""
        self._mark(state, state.epoch, state.nbatch)

    def on_batch_end(self, state: State) -> None:
        """Mark the end of a step."""
        self._mark(state, state.epoch, state.nbatch)

    def on_epoch_end(self, state: State) -> None:
        """Mark the beginning of the next epoch, unless this one was cut short."""
        if not state.stop:
            self._mark(state, state.epoch + 1, 0)

    def _mark(self, state, epoch, batch):
        state.position = (epoch, batch)
        state.position_samples = state.samples if batch else 0
        # Taken here, as an iterator may be a batch ahead when something fails.
        state.data_states = [state_of(data) for data in (state.train_data, state.eval_data)]


def state_of(data: Any) -> Any:
    """What an iterator can tell of its place; None where it cannot."""
    return data.state_dict() if hasattr(data, "state_dict") else None


def first_callbacks(state: State) -> List[Callback]:
    """What comes before all other callbacks, so that a run can be repeated and taken up."""
    seeded = state.seed is not None and is_random(state.manager.symbol, state.optimizer)
    return [Bookmark(), *([Reseed()] if seeded else [])]


def capture(state: State) -> Tuple[List[Any], Dict[str, Any]]:
    """Take down a run at its last mark.

    Returns
    -------
    states : list of buffers
        The optimizer's, and each device's own auxiliary states.
    training : dict
        The rest; fit for JSON.
    """
    arrays = state.update.states()
    counts = {name: number for name, (_, number) in arrays.items()}
    on_devices, stepped = state.manager.aux_state()
    arrays.update({AUX + name: (tuple(own), 0) for name, own in on_devices.items()})
    sums, gathered = state.update.gathered()
    arrays.update({GATHERED + name: own for name, own in sums.items()})
    epoch, batch = state.position
    training = {
        "num_update": state.optimizer.num_update,
        "update_counts": counts,
        "gathered": gathered,
        **_settings(state.optimizer),
        "optimizer_type": type(state.optimizer).__name__,
        "begun_with": state.begun_with,
        "begin_epoch": state.begin_epoch,
        "iterator": state.data_states[0],
        "eval_iterator": state.data_states[1],
        "samples": state.position_samples,
        "input_shapes": sample_shapes(state.train_data),
        "metrics": [[_names_of(m), counted.get_state(m)] for m in state.meter.each() if batch],
        "history": [row for row in state.history if row["epoch"] < epoch],
        "callbacks": _callback_states(state.callbacks, arrays),
        "random": {"seed": state.seed, "numpy": _numpy_random(), "python": random.getstate()},
        "stepped": stepped,
        "omp_threads": os.environ.get("OMP_NUM_THREADS"),
        "devices": [str(ctx) for ctx in state.manager.ctx],
    }
    return states_format.chunks(arrays), training


def optimizer_states(found: Generation, where: str = "the file") -> Dict[str, Any]:
    """The optimizer's states in a generation, by parameter name.

    Parameters
    ----------
    where : str
        What a message calls their file.

    Raises
    ------
    DataError
        If it has none.
    """
    if found.states is None:
        raise DataError(
            f"the checkpoint of epoch {found.epoch} has no optimizer states; save it with "
            "save_optimizer_states=True, or load it without them"
        )
    arrays = states_format.decode_states(found.states, where)
    return {name: own for name, own in arrays.items() if not name.startswith(OTHERS)}


def restore(state: State, found: Generation) -> None:
    """Take a run up where `capture` took it down; its parameters are in the manager already.

    Random states are left to `restore_random`, once the data are at their place: an iterator that
    is read again to get there may draw as it did in the beginning.

    Raises
    ------
    DataError
        If the generation is a model without a training state.
    """
    saved = found.manifest
    if "random" not in saved or found.states is None:
        raise DataError(
            f"the checkpoint of epoch {found.epoch} holds a model and no training state; resume "
            "one that fit(checkpoint=...) wrote, or fit from its arg_params"
        )
    with fitting("the run"):
        _restore(state, found, saved)
    state.seed = saved["random"]["seed"]
    _tell_of_other_devices(state, saved)


@contextlib.contextmanager
def fitting(what: str) -> Iterator[None]:
    """Tell in one line that a checkpoint is of another `what`, where this one cannot take it."""
    try:
        yield
    except DataError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(
            f"the checkpoint's training state does not fit {what}: {type(error).__name__}: "
            f"{shown(error, 60)}; resume with the arguments of the run before"
        ) from error


def _restore(state, found, saved):
    wanted = [*state.manager.param_names, *state.manager.aux_names]
    missing = [n for n in wanted if n not in found.arg_params and n not in found.aux_params]
    if missing:
        raise _other_network(f"no value for {names(missing)}")
    arrays = states_format.decode_states(found.states)
    own_aux = {name for name in arrays if name.startswith(AUX)}
    aux = {name[len(AUX) :]: arrays.pop(name)[0] for name in own_aux}
    kept = {name: arrays.pop(name)[0] for name in list(arrays) if name.startswith(KEPT)}
    sums = {n[len(GATHERED) :]: arrays.pop(n) for n in list(arrays) if n.startswith(GATHERED)}
    aux = state.manager.own_states(aux)
    _check_aux(aux, saved["stepped"], state.manager)
    state.manager.load_aux_state(aux, saved["stepped"])
    state.update.load_states(arrays)
    gathered = saved.get("gathered") or NOTHING_GATHERED
    state.update.load_gathered(sums, gathered)
    _tell_of_other_updates(state.update, gathered)
    _tell_of_other_rates(state, saved)
    _restore_rates(state.optimizer, saved["optimizer"], saved["optimizer_type"])
    _restore_schedule(state.optimizer.lr_scheduler, saved["lr_scheduler"])
    if saved["history"] and saved["history"][-1]["epoch"] >= found.epoch:
        raise DataError(
            f"the checkpoint of epoch {found.epoch} has a history up to epoch "
            f"{saved['history'][-1]['epoch']}; resume another one"
        )
    state.history[:] = saved["history"]
    state.nbatch, state.samples = found.batch, saved["samples"]
    _restore_metrics(state.meter, saved["metrics"])
    _restore_callbacks(state.callbacks, _whole_states(saved["callbacks"], kept))
    restore_iterator(state.eval_data, saved["eval_iterator"])


def _restore_schedule(scheduler, saved):
    present = {} if scheduler is None else counted.get_state(scheduler)
    if not present.keys() <= saved.keys() or (saved and scheduler is None):
        raise DataError(
            f"the checkpoint's lr_scheduler counts in {names(saved, 60)}, this run's in "
            f"{names(present, 60)}; pass the one of the run before"
        )
    if scheduler is not None:
        counted.set_state(scheduler, saved)


def _check_aux(aux, stepped, manager):
    """Auxiliary states must be those of the network, for each of some devices."""
    wanted = {n: own[0].shape for n, own in zip(manager.aux_names, manager.aux_arrays)}
    numbers = {len(own) if isinstance(own, tuple) else 0 for own in aux.values()}
    if aux.keys() != wanted.keys() or len(numbers) > 1:
        raise _other_network("auxiliary states of other names")
    if aux and max(stepped, default=-1) >= max(numbers):
        raise _other_network("auxiliary states of other devices")
    for name, own in aux.items():
        if any(getattr(array, "shape", None) != wanted[name] for array in own):
            raise _other_network(f"auxiliary states of another shape for {shown(repr(name), 60)}")


def _other_network(what):
    return DataError(f"the checkpoint has {what}; resume with the network that it was made with")


def restore_iterator(data: Any, saved: Any) -> bool:
    """Let an iterator that can go on where it stood; whether it could."""
    if saved is None or not hasattr(data, "load_state_dict"):
        return False
    with fitting("the iterator"):
        data.load_state_dict(saved)
    return True


def _settings(optimizer):
    """Rates and schedule as they stand; fit for JSON."""
    scheduler = optimizer.lr_scheduler
    return {
        "optimizer": {name: counted.packed(value) for name, value in _rates(optimizer).items()},
        "lr_scheduler": {} if scheduler is None else counted.get_state(scheduler),
    }


def _rates(optimizer):
    return {name: getattr(optimizer, name) for name in RATES if hasattr(optimizer, name)}


def _restore_rates(optimizer, saved, kind):
    present = _rates(optimizer)
    if kind != type(optimizer).__name__ or saved.keys() != present.keys():
        raise DataError(
            f"the checkpoint's optimizer is {shown(kind, 60)}, this run's is "
            f"{type(optimizer).__name__}; resume with the optimizer of the run before"
        )
    for name, value in saved.items():
        setattr(optimizer, name, counted.unpacked(value, present[name]))


def _names_of(metric):
    return [name for name, _ in metric.get_name_value()]


def _restore_metrics(meter, saved):
    """A logger's own metric is there only if a logger is: it then starts at the present batch."""
    for metric, (named, values) in zip(meter.each(), saved):
        if named != _names_of(metric):
            raise DataError(
                f"the checkpoint is from within an epoch that counted {names(named)}, and "
                f"eval_metric is {names(_names_of(metric))}; pass the same, or resume from an "
                "epoch's end"
            )
        counted.set_state(metric, values)


def _callback_states(callbacks, arrays):
    """States of callbacks, fit for JSON; the NDArrays in them go to the other arrays."""
    states = []
    for i, callback in enumerate(callbacks):
        own = callback.state_dict()
        for key in [key for key, value in own.items() if _is_of_arrays(value)]:
            params = own.pop(key)
            arrays.update({f"{KEPT}{i}:{key}:{n}": (array, 0) for n, array in params.items()})
            own[ARRAYS + key] = list(params)
        states.append([type(callback).__name__, own])
    return states


def _is_of_arrays(value):
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(array, mx.nd.NDArray) for array in value.values())


def _whole_states(saved, arrays):
    """What `_callback_states` took apart."""
    states = []
    for i, (kind, own) in enumerate(saved):
        whole = {}
        for key, value in own.items():
            if key.startswith(ARRAYS):
                key = key[len(ARRAYS) :]
                value = {name: arrays[f"{KEPT}{i}:{key}:{name}"] for name in value}
            whole[key] = value
        states.append([kind, whole])
    return states


def _restore_callbacks(callbacks, saved):
    """Each callback takes the first state that one of its kind left."""
    for callback in callbacks:
        for kind, values in saved:
            if kind == type(callback).__name__:
                with fitting(f"the callback {kind}"):
                    callback.load_state_dict(values)
                saved.remove([kind, values])
                break


def _tell_of_other_rates(state, saved):
    """Those of the run go on, though this one was given others."""
    state.begun_with = saved["begun_with"]
    here = _settings(state.optimizer)
    for kind, values in here.items():
        changed = [
            n for n, value in values.items() if value != state.begun_with[kind].get(n, value)
        ]
        changed = [name for name in changed if name != "num_update"]
        if changed:
            logger.warning(
                "the resumed run keeps the %s of its own %s; to train on with others, load the "
                "model and fit anew",
                names(changed),
                kind,
            )


def _tell_of_other_updates(update, saved):
    if update.accumulate != saved["accumulate"]:
        logger.warning(
            "the resumed run makes an update of %d batches, the run before made one of %d",
            update.accumulate,
            saved["accumulate"],
        )


def _tell_of_other_devices(state, saved):
    here = [[str(ctx) for ctx in state.manager.ctx], os.environ.get("OMP_NUM_THREADS")]
    there = [saved["devices"], saved["omp_threads"]]
    if here != there:
        logger.warning(
            "resumed on %s with %s threads, begun on %s with %s: equal to rounding, not to the bit",
            *(part if isinstance(part, str) else ", ".join(part or ["?"]) for part in here + there),
        )


def _numpy_random():
    kind, keys, *rest = np.random.get_state()
    return [kind, [int(key) for key in keys], *rest]


def restore_random(found: Generation) -> None:
    """Set NumPy's and Python's random states to those of a generation."""
    saved = found.manifest["random"]
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
