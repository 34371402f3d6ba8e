"""LRFinder on losses that are known, and what it leaves behind: nothing."""

import math

import nets
import numpy as np
import pytest
from nets import CPUS, assert_equal

from mxloop import FeedForward
from mxloop.callback import LRFinder
from mxloop.callback.lr_finder import Trial
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError


def fit(*callbacks, epochs=10, devices=1, seed=3, **settings):
    model = FeedForward(
        nets.mlp(),
        CPUS[:devices],
        epochs,
        initializer=mx.init.Xavier(),
        learning_rate=0.1,
        momentum=0.9,
    )
    data = ArrayIter(*nets.samples(80), 8, shuffle=True, seed=5)
    return model.fit(data, callbacks=callbacks, seed=seed, **settings)


def test_each_step_has_the_next_rate_and_the_loss_of_its_batch():
    finder = LRFinder(1e-4, 1e-1, steps=31)
    fit(finder)
    rates = [trial.rate for trial in finder.trials]
    np.testing.assert_allclose(rates, np.geomspace(1e-4, 1e-1, 31), rtol=1e-9)
    # The first loss, by hand: the parameters that the seed gives, the first batch's rows.
    model = FeedForward(nets.mlp(), num_epoch=1, initializer=mx.init.Xavier(), learning_rate=0)
    data = ArrayIter(*nets.samples(80), 8, shuffle=True, seed=5)
    model.fit(data, seed=3)
    rows = ArrayIter(*nets.samples(80), 8, shuffle=True, seed=5).order[:8]
    x, y = nets.samples(80)
    chosen = nets.mlp_outputs(model.arg_params, x[rows])[np.arange(8), y[rows].astype(int)]
    assert finder.trials[0].loss == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


def test_it_ends_once_the_loss_explodes():
    finder = LRFinder(1e-2, 1e6, steps=100)
    fit(finder)
    assert 2 < len(finder.trials) < 100
    least = min(trial.smooth for trial in finder.trials)
    assert not finder.trials[-1].smooth <= 4 * least
    assert 1e-2 < finder.suggestion < 1e3


@pytest.mark.parametrize(("devices", "kvstore"), [(1, None), (2, "local")])
def test_the_next_fit_is_as_if_there_had_been_none(devices, kvstore):
    plain = fit(devices=devices, kvstore=kvstore, epochs=2)
    model = fit(LRFinder(steps=100), devices=devices, kvstore=kvstore, epochs=20)
    model.num_epoch = 2
    data = ArrayIter(*nets.samples(80), 8, shuffle=True, seed=5)
    model.fit(data, seed=3, kvstore=kvstore)
    assert_equal(model.arg_params, nets.numpy_of(plain.arg_params))


def test_the_suggestion_is_where_the_loss_falls_fastest():
    finder = LRFinder()
    losses = [5.0, 4.9, 4.7, 3.0, 2.9, 2.9, 9.0, 1.0]
    finder.trials = [Trial(10.0**i, loss, loss) for i, loss in enumerate(losses[:7])]
    assert finder.suggestion == pytest.approx(math.sqrt(10.0**2 * 10.0**3))


def test_a_suggestion_without_trials_is_one_line():
    with pytest.raises(StateError) as caught:
        LRFinder().suggestion  # noqa: B018
    nets.one_line(caught)


@pytest.mark.parametrize(
    "wrong",
    [{"smallest": 0}, {"smallest": 1, "largest": 0.1}, {"steps": 1}, {"loss": "cee"}],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_one_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        LRFinder(**wrong)
    nets.one_line(caught)
