"""EarlyStopping, KeepBest, ReduceOnPlateau, TimeLimit: against sequences of values made by hand."""

import nets
import pytest
from nets import assert_equal

from mxloop import FeedForward
from mxloop.callback import Callback, EarlyStopping, KeepBest, ReduceOnPlateau, TimeLimit
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError


class Values(Callback):
    """Gives the epochs these values, whatever they were."""

    def __init__(self, values, name="val_accuracy"):
        self._values, self._name = values, name
        self.params, self.rates = [], []

    def on_epoch_begin(self, state):
        self.rates.append(state.optimizer.learning_rate)

    def on_epoch_end(self, state):
        state.history[-1][self._name] = self._values[state.epoch]
        self.params.append(nets.numpy_of(state.arg_params))


def fit(values, *callbacks, eval_metric="acc", epochs=None, **settings):
    """Train as many epochs as there are values; return the model and what was seen."""
    seen = values if isinstance(values, Values) else Values(values)
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(
        nets.mlp(), num_epoch=epochs or len(seen._values), arg_params=args, learning_rate=0.1
    )
    x, y = nets.samples(32)
    data = ArrayIter(x, y, 16)
    model.fit(
        data,
        eval_data=ArrayIter(x, y, 16),
        eval_metric=eval_metric,
        callbacks=[seen, *callbacks],
        **settings,
    )
    return model, seen


# --- EarlyStopping ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "patience", "epochs"),
    [
        ([0.1, 0.2, 0.2, 0.2, 0.9], 2, 4),  # equal is no better
        ([0.1, 0.2, 0.1, 0.3, 0.2, 0.2, 0.9], 2, 6),  # a better one ends the wait
        ([0.5, 0.4, 0.9], 1, 2),
        ([0.1, 0.2, 0.3], 1, 3),
        ([0.5, float("nan"), float("nan"), 0.9], 2, 3),  # NaN is never better
    ],
)
def test_training_ends_after_so_many_epochs_without_a_better_value(values, patience, epochs):
    stopping = EarlyStopping(patience=patience)
    model, _ = fit(values, stopping)
    assert len(model.history) == epochs
    assert stopping.stopped_epoch == (None if epochs == len(values) else epochs - 1)


def test_of_a_loss_less_is_better():
    losses = Values([3.0, 2.0, 1.0, 1.5, 0.5], "val_cross-entropy")
    model, _ = fit(losses, EarlyStopping("val_cross-entropy", patience=1), eval_metric="ce")
    assert len(model.history) == 4


def test_too_little_better_does_not_count():
    model, _ = fit([0.50, 0.55, 0.59, 0.99], EarlyStopping(patience=2, min_delta=0.1))
    assert len(model.history) == 3


def test_why_the_training_ended_is_said(capsys):
    fit([0.5, 0.4, 0.3], EarlyStopping(patience=1))
    assert "Epoch[1] Stopped: val_accuracy was no better than 0.5 for 1 epochs" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("kind", [EarlyStopping, KeepBest, ReduceOnPlateau])
def test_what_is_not_measured_is_one_line_before_the_first_batch(kind):
    x, y = nets.samples(16)
    model = FeedForward(nets.mlp(), num_epoch=1)
    with pytest.raises(StateError) as caught:
        model.fit(x, y, callbacks=kind("val_accuracy"))
    assert "eval_data" in nets.one_line(caught)
    with pytest.raises(StateError) as caught:
        model.fit(x, y, eval_data=(x, y), callbacks=kind("val_acc", mode="max"))
    assert "did you mean 'val_accuracy'" in nets.one_line(caught)


@pytest.mark.parametrize("kind", [EarlyStopping, KeepBest, ReduceOnPlateau])
def test_a_name_that_does_not_tell_what_is_better_is_one_line(kind):
    with pytest.raises(ArgumentError) as caught:
        kind("val_mine")
    assert "mode='max'" in nets.one_line(caught)
    kind("val_mine", mode="min")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: EarlyStopping(patience=0),
        lambda: EarlyStopping(min_delta=-1),
        lambda: EarlyStopping(monitor=3),
        lambda: KeepBest(mode="most"),
        lambda: ReduceOnPlateau(factor=1.5),
        lambda: TimeLimit(0),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        wrong()
    nets.one_line(caught)


# --- KeepBest -----------------------------------------------------------------------------------


def test_the_model_ends_with_the_parameters_of_the_best_epoch():
    best = KeepBest()
    model, seen = fit([0.1, 0.7, 0.3, 0.7, 0.2], best)
    assert (best.best_epoch, best.best) == (1, 0.7)
    assert_equal(model.arg_params, seen.params[1])


def test_what_is_best_is_copied_and_not_trained_on():
    best = KeepBest()
    model, seen = fit([0.9, 0.1], best)
    assert_equal(model.arg_params, seen.params[0])
    model.fit(ArrayIter(*nets.samples(32), 16), num_epoch=1)
    assert_equal(best.state_dict()["arg_params"], seen.params[0])


# --- ReduceOnPlateau ----------------------------------------------------------------------------


def test_the_rate_falls_after_so_many_epochs_without_a_better_value():
    _, seen = fit([0.5, 0.5, 0.5, 0.6, 0.1, 0.1, 0.1, 0.1], ReduceOnPlateau(factor=0.5, patience=2))
    expected = [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]
    assert seen.rates == pytest.approx(expected, rel=1e-12)


def test_the_rate_does_not_fall_below_its_least():
    _, seen = fit([0.5] * 5, ReduceOnPlateau(factor=0.1, patience=1, min_lr=0.005))
    assert seen.rates == pytest.approx([0.1, 0.1, 0.01, 0.005, 0.005], rel=1e-12)


def test_a_scheduler_of_the_optimizer_and_a_plateau_do_not_go_together():
    x, y = nets.samples(16)
    schedule = mx.lr_scheduler.FactorScheduler(10)
    model = FeedForward(nets.mlp(), num_epoch=1, lr_scheduler=schedule)
    with pytest.raises(StateError) as caught:
        model.fit(x, y, callbacks=ReduceOnPlateau("train_accuracy"))
    assert "lr_scheduler" in nets.one_line(caught)


# --- TimeLimit ----------------------------------------------------------------------------------


def test_training_ends_with_the_batch_in_which_the_time_is_up(monkeypatch, capsys):
    times = iter([100.0, 101.0, 102.0, 104.9, 105.0, 106.0])  # at the beginning, then a batch each
    monkeypatch.setattr("mxloop.callback.time_limit.time.monotonic", lambda: next(times))
    model, _ = fit([0.0] * 9, TimeLimit(5))
    assert len(model.history) == 2
    assert "Epoch[1] Batch [2] Stopped: the 5 seconds are over" in capsys.readouterr().out
