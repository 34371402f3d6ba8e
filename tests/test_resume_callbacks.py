"""With each callback in use, a resumed run equals the uninterrupted one to the bit."""

import numpy as np
import pytest
from resume_run import Stop, data, network, stopper

from mxloop import FeedForward, callback, mx
from mxloop.callback import Checkpoint

TIMES = ("seconds", "samples_per_second", "data_seconds", "waiting", "step_seconds")
WITH_ARRAYS = (
    "keep_best",
    "ema",
    "swa",
    "overfit_batch",
)  # in their stateLIMITED = ("limit_batches", "limit_of_one")  # end an epoch at the fourth step
LIMITED = ("limit_batches", "limit_of_one")  # end an epoch at the fourth step

CALLBACKS = {
    "early_stopping": lambda: callback.EarlyStopping("val_accuracy", patience=2),
    "keep_best": lambda: callback.KeepBest("val_cross-entropy"),
    "reduce_on_plateau": lambda: callback.ReduceOnPlateau("val_accuracy", 0.5, patience=1),
    "warm_up_and_cosine": lambda: callback.Schedule(callback.warm_up(1.5, callback.cosine(4))),
    "steps": lambda: callback.Schedule(callback.steps([1, 2.5])),
    "ema": lambda: callback.EMA(0.9),
    "swa": lambda: callback.SWA(1),
    "ema_and_best": lambda: [callback.EMA(0.9), callback.KeepBest("val_cross-entropy")],
    "gradient_clip": lambda: callback.GradientClip(0.5),
    "freeze": lambda: callback.Freeze("fc1*"),
    "thaw": lambda: callback.Freeze("fc1*", "bn_gamma", until=2),
    "layer_rates": lambda: callback.LayerRates({"fc1*": 0.1}),
    "limit_batches": lambda: callback.LimitBatches(4, 2),
    "limit_of_one": lambda: callback.LimitBatches(1, 1),
    "overfit_batch": lambda: callback.OverfitBatch(),
    "validate_every": lambda: callback.ValidateEvery(2),
    "tensor_monitor": lambda: callback.TensorMonitor("*_weight", 3, quiet=True),
    "throughput": lambda: callback.Throughput(),
    "model_summary": lambda: callback.ModelSummary(),
    "time_limit": lambda: callback.TimeLimit(1e9),
}


def run(made, prefix=None, stop_at=None, devices=1, **settings):
    """Train; return all that can be told of the run, or None if it was ended before its time."""
    made = made if isinstance(made, list) else [made]
    model = FeedForward(
        network(),
        ctx=[mx.cpu(i) for i in range(devices)],
        num_epoch=4,
        initializer=mx.init.Xavier(),
        learning_rate=0.1,
        momentum=0.9,
    )
    try:
        model.fit(
            data("keep"),
            eval_data=data("keep"),
            eval_metric=["acc", "ce"],
            seed=7,
            callbacks=made,
            checkpoint=prefix and Checkpoint(prefix),
            batch_end_callback=stopper(stop_at, None),
            **settings,
        )
    except Stop:
        return None
    told = {**model.arg_params, **model.aux_params, "history": rows(model.history)}
    for i, each in enumerate(made):
        told.update({f"{i} {name}": value for name, value in each.state_dict().items()})
    return {name: plain(value) for name, value in told.items()}


def rows(history):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in history]


def plain(value):
    if isinstance(value, mx.nd.NDArray):
        return value.asnumpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


_wholes = {}


def whole_run(name, devices=1):
    if (name, devices) not in _wholes:
        _wholes[name, devices] = run(CALLBACKS[name](), devices=devices)
    return _wholes[name, devices]


@pytest.mark.parametrize(
    ("name", "devices"), [*((name, 1) for name in CALLBACKS), *((name, 2) for name in WITH_ARRAYS)]
)
def test_a_resumed_run_equals_the_whole_one(tmp_path, name, devices):
    for step in (4, 9) if name in WITH_ARRAYS else (4,) if name in LIMITED else (9,):
        prefix = str(tmp_path / f"m{step}")
        if run(CALLBACKS[name](), prefix, stop_at=step, devices=devices) is None:
            np.random.seed(step)
            resumed = run(CALLBACKS[name](), prefix, resume=True, devices=devices)
            assert resumed == whole_run(name, devices), step


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_served_before_begins_anew(name):
    made = CALLBACKS[name]()
    run(made)
    assert run(made) == whole_run(name)


@pytest.mark.parametrize("name", CALLBACKS)
def test_resuming_a_finished_run_gives_the_same_model(tmp_path, name):
    prefix = str(tmp_path / "m")
    assert run(CALLBACKS[name](), prefix) == whole_run(name)  # checkpoints do not change it
    assert run(CALLBACKS[name](), prefix, resume=True, stop_at=1) == whole_run(name)


def test_a_run_that_ran_out_of_time_goes_on_where_it_stood(tmp_path, monkeypatch):
    whole = run(callback.TimeLimit(1e9))
    times = iter(range(1000))
    monkeypatch.setattr("mxloop.callback.time_limit.time.monotonic", lambda: next(times))
    prefix = str(tmp_path / "m")
    cut = run(callback.TimeLimit(8), prefix)
    assert [row["epoch"] for row in cut["history"]] == [0, 1]
    assert run(callback.TimeLimit(1e9), prefix, resume=True) == whole
