"""TensorMonitor, Throughput, ModelSummary: against NumPy, a made-up clock, and the summary."""

import nets
import numpy as np
import pytest
from nets import CPUS

from mxloop import FeedForward
from mxloop.callback import Callback, ModelSummary, TensorMonitor, Throughput
from mxloop.callback.tensor_monitor import statistics
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError
from mxloop.summary import summarize


def fit(*callbacks, devices=1, epochs=1, data=None, **settings):
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(nets.mlp(), CPUS[:devices], epochs, arg_params=args, learning_rate=0.1)
    data = ArrayIter(*nets.samples(40), 8) if data is None else data
    return model.fit(data, callbacks=callbacks, **settings)


# --- TensorMonitor ------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
def test_every_look_has_a_row_for_each_tensor_and_device(devices):
    monitor, arrays = TensorMonitor("*_weight", every=2, quiet=True), {}

    class Arrays(Callback):
        def on_batch_end(self, state):
            manager = state.manager
            for kind, by_param in (("", manager.param_arrays), (".grad", manager.grad_arrays)):
                for name, on_devices in zip(manager.param_names, by_param):
                    for ctx, array in zip(manager.ctx, on_devices):
                        arrays[state.nbatch, name + kind, str(ctx)] = array.asnumpy()

    fit(monitor, Arrays(), devices=devices)
    tensors = ["fc1_weight", "fc1_weight.grad", "out_weight", "out_weight.grad"]
    ctx = [f"cpu({i})" for i in range(devices)]
    places = [(row["batch"], row["tensor"], row["device"]) for row in monitor.rows]
    assert places == [(n, t, c) for n in (2, 4) for t in tensors for c in ctx]
    for place, row in zip(places, monitor.rows):
        values = arrays[place].astype("float64")
        found = [row[name] for name in ("mean", "std", "least", "most", "bad")]
        expected = [values.mean(), values.std(), values.min(), values.max(), 0]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_what_is_not_finite_is_counted_apart():
    told = statistics(np.array([1.0, np.nan, 3.0, np.inf, -np.inf]))
    assert told == {"mean": 2.0, "std": 1.0, "least": 1.0, "most": 3.0, "bad": 3}
    assert statistics(np.array([np.nan]))["bad"] == 1


def test_looks_are_lines_that_name_the_device(capsys):
    fit(TensorMonitor("fc1_bias", every=4), devices=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if "fc1_bias" in line]
    assert len(lines) == 4
    assert lines[1].startswith("Epoch[0] Batch [4] fc1_bias [cpu(1)] mean=")


def test_a_pattern_that_matches_nothing_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        fit(TensorMonitor("conv*"))
    assert "out_bias" in nets.one_line(caught)


# --- Throughput ---------------------------------------------------------------------------------


def test_waiting_and_steps_are_told_in_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("mxloop.training.time.perf_counter", lambda: now[0])

    class SlowData(ArrayIter):
        def next(self):
            batch = super().next()
            now[0] += 3
            return batch

    class SlowStep(Callback):
        def on_batch_begin(self, state):
            now[0] += 1

    data = SlowData(*nets.samples(32), 8)
    model = fit(Throughput(), SlowStep(), data=data, eval_data=data, epochs=2)
    for row in model.history:
        assert row["data_seconds"] == 4 * 3
        assert row["step_seconds"] == 4
        assert row["waiting"] == 0.75


# --- ModelSummary -------------------------------------------------------------------------------


def test_the_summary_is_shown_before_the_first_batch(capsys):
    shown = ModelSummary()
    fit(shown)
    expected = summarize(nets.mlp(), {"data": (8, 10)})
    assert shown.summary.total() == expected.total()
    assert shown.summary.parameters == 16 * 11 + 4 * 17
    output = capsys.readouterr().out
    assert output.index(expected.total()) < output.index("Epoch[0]")
