"""What a run must remember to go on as if it had never been interrupted, to the bit.

Parameters and optimizer states are arrays and go into files of their own; the rest (counts, rates,
positions, random states, metric sums) is JSON and goes into the checkpoint's manifest.
"""

import json
import logging
import os
import random
from typing import Any, Dict, List, Tuple

import numpy as np

from mxloop import metric as metrics
from mxloop import states_format
from mxloop.callback.base import Callback, State
from mxloop.checkpoint import Generation
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import names

logger = logging.getLogger(__name__)

AUX = "aux:"
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

    def on_epoch_begin(self, state: State) -> None:
        """Mark the beginning of an epoch, unless it is taken up within."""
        self._mark(state, state.epoch, state.nbatch)

    def on_batch_end(self, state: State) -> None:
        """Mark the end of a step."""
        self._mark(state, state.epoch, state.nbatch)

    def on_epoch_end(self, state: State) -> None:
        """Mark the beginning of the next epoch."""
        self._mark(state, state.epoch + 1, 0)

    def _mark(self, state, epoch, batch):
        state.position = (epoch, batch)
        state.position_samples = state.samples if batch else 0
        # Taken here, as an iterator may be a batch ahead when something fails.
        state.data_states = [_state_of(data) for data in (state.train_data, state.eval_data)]


def _state_of(data):
    return data.state_dict() if hasattr(data, "state_dict") else None


def first_callbacks(state: State) -> List[Callback]:
    """What comes before all other callbacks, so that a run can be repeated and taken up."""
    seeded = state.seed is not None and is_random(state.manager.symbol, state.optimizer)
    return [Bookmark(), *([Reseed()] if seeded else [])]


def capture(state: State) -> Tuple[bytes, Dict[str, Any]]:
    """Take down a run at its last mark.

    Returns
    -------
    states : bytes
        The optimizer's, and each device's own auxiliary states.
    training : dict
        The rest; fit for JSON.
    """
    arrays = state.update.states()
    counts = {name: number for name, (_, number) in arrays.items()}
    on_devices, stepped = state.manager.aux_state()
    arrays.update({AUX + name: (tuple(own), 0) for name, own in on_devices.items()})
    epoch, batch = state.position
    training = {
        "num_update": state.optimizer.num_update,
        "update_counts": counts,
        "optimizer": {n: getattr(state.optimizer, n) for n in RATES if hasattr(state.optimizer, n)},
        "lr_scheduler": _plain(state.optimizer.lr_scheduler),
        "begin_epoch": state.begin_epoch,
        "iterator": state.data_states[0],
        "eval_iterator": state.data_states[1],
        "samples": state.position_samples,
        "metrics": [[_names_of(m), metrics.get_state(m)] for m in state.meter.each() if batch],
        "history": [row for row in state.history if row["epoch"] < epoch],
        "callbacks": [[type(each).__name__, each.state_dict()] for each in state.callbacks],
        "random": {"seed": state.seed, "numpy": _numpy_random(), "python": random.getstate()},
        "stepped": stepped,
        "omp_threads": os.environ.get("OMP_NUM_THREADS"),
        "devices": [str(ctx) for ctx in state.manager.ctx],
    }
    return states_format.encode_states(arrays), training


def optimizer_states(found: Generation) -> Dict[str, Any]:
    """The optimizer's states in a generation, by parameter name.

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
    arrays = states_format.decode_states(found.states)
    return {name: state for name, state in arrays.items() if not name.startswith(AUX)}


def restore(state: State, found: Generation) -> None:
    """Take a run up where `capture` took it down; its parameters are in the manager already.

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
    arrays = states_format.decode_states(found.states)
    aux = {name[len(AUX) :]: arrays.pop(name)[0] for name in list(arrays) if name.startswith(AUX)}
    state.manager.load_aux_state(aux, saved["stepped"])
    state.update.load_states(arrays)
    for thing, values in ((state.optimizer, "optimizer"), (_scheduler(state), "lr_scheduler")):
        for name, value in saved[values].items():
            setattr(thing, name, value)
    state.history[:] = saved["history"]
    state.nbatch, state.samples = found.batch, saved["samples"]
    _restore_metrics(state.meter, saved["metrics"])
    _restore_callbacks(state.callbacks, list(saved["callbacks"]))
    if hasattr(state.eval_data, "load_state_dict") and saved["eval_iterator"] is not None:
        state.eval_data.load_state_dict(saved["eval_iterator"])
    _restore_random(saved["random"])
    state.seed = saved["random"]["seed"]
    _tell_of_other_devices(state, saved)


def _names_of(metric):
    return [name for name, _ in metric.get_name_value()]


def _restore_metrics(meter, saved):
    """A logger's own metric is there only if a logger is: it then starts at the present batch."""
    for metric, (counted, values) in zip(meter.each(), saved):
        if counted != _names_of(metric):
            raise DataError(
                f"the checkpoint is from within an epoch that counted {names(counted)}, and "
                f"eval_metric is {names(_names_of(metric))}; pass the same, or resume from an "
                "epoch's end"
            )
        metrics.set_state(metric, values)


def _restore_callbacks(callbacks, saved):
    """Each callback takes the first state that one of its kind left."""
    for callback in callbacks:
        for kind, values in saved:
            if kind == type(callback).__name__:
                callback.load_state_dict(values)
                saved.remove([kind, values])
                break


def _scheduler(state):
    return state.optimizer.lr_scheduler


def _tell_of_other_devices(state, saved):
    here = [[str(ctx) for ctx in state.manager.ctx], os.environ.get("OMP_NUM_THREADS")]
    there = [saved["devices"], saved["omp_threads"]]
    if here != there:
        logger.warning(
            "resumed on %s with %s threads, begun on %s with %s: equal to rounding, not to the bit",
            *(part if isinstance(part, str) else ", ".join(part or ["?"]) for part in here + there),
        )


def _plain(scheduler):
    """What a schedule remembers: numbers, and lists of them."""
    plain = (int, float, bool, list)
    own = vars(scheduler) if scheduler is not None else {}
    return {name: value for name, value in own.items() if isinstance(value, plain)}


def _numpy_random():
    kind, keys, *rest = np.random.get_state()
    return [kind, [int(key) for key in keys], *rest]


def _restore_random(saved):
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
