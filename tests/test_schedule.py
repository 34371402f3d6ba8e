"""Rates: of schedules against MXNet's own and formulas; of layers against steps by hand."""

import math

import nets
import numpy as np
import pytest
from nets import CPUS

from mxloop import FeedForward
from mxloop.callback import Callback, LayerRates, Schedule, cosine, steps, warm_up
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, StateError

BATCHES = 5


class Rates(Callback):
    def __init__(self):
        self.rates = []

    def on_batch_end(self, state):
        self.rates.append(state.optimizer.learning_rate)


def rates(shape, epochs=4, data=None):
    """The rates of all steps, of a base rate of 0.5."""
    seen = Rates()
    model = FeedForward(nets.mlp(), num_epoch=epochs, learning_rate=0.5)
    data = data or ArrayIter(*nets.samples(8 * BATCHES), 8)
    model.fit(data, callbacks=[Schedule(shape), seen])
    return seen.rates


def test_a_cosine_is_that_of_mxnet():
    stock = mx.lr_scheduler.CosineScheduler(4 * BATCHES, base_lr=0.5, final_lr=0.05)
    expected = [stock(step) for step in range(1, 4 * BATCHES + 1)]
    assert rates(cosine(4, least=0.1)) == pytest.approx(expected)


def test_steps_are_those_of_mxnet():
    stock = mx.lr_scheduler.MultiFactorScheduler([BATCHES, 3 * BATCHES], factor=0.1, base_lr=0.5)
    expected = [stock(step) for step in range(1, 4 * BATCHES + 1)]
    assert rates(steps([1, 3])) == pytest.approx(expected)


def test_a_warm_up_rises_in_a_line_and_then_follows_the_rest():
    found = rates(warm_up(2, cosine(4)))
    whole = rates(cosine(4))
    end = 0.5 * cosine(4)(2)
    line = [end * step / (2 * BATCHES) for step in range(1, 2 * BATCHES + 1)]
    assert found[: 2 * BATCHES] == pytest.approx(line)
    assert found[2 * BATCHES :] == pytest.approx(whole[2 * BATCHES :])
    assert warm_up(4)(1) == 0.25
    assert warm_up(4)(9) == 1


def test_without_a_number_of_batches_an_epoch_has_the_rate_of_its_middle():
    data = mx.io.NDArrayIter(*nets.samples(8 * BATCHES), 8)
    found = rates(lambda epoch: 1 / (1 + epoch), epochs=2, data=data)
    assert found == [0.5 / 1.5] * BATCHES + [0.5 / 2.5] * BATCHES


def test_the_optimizer_gets_its_own_rate_back():
    held = []

    class Hold(Callback):
        def on_epoch_end(self, state):
            held.append(state.optimizer)

    model = FeedForward(nets.mlp(), num_epoch=1, learning_rate=0.5)
    model.fit(ArrayIter(*nets.samples(40), 8), callbacks=[Schedule(cosine(1)), Hold()])
    assert held[0].learning_rate == 0.5


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: cosine(0), ArgumentError),
        (lambda: warm_up(-1), ArgumentError),
        (lambda: steps([3, 2]), ArgumentError),
        (lambda: Schedule(0.5), ArgumentTypeError),
        (lambda: LayerRates({"fc1*": -1}), ArgumentError),
        (lambda: LayerRates({"fc1*": math.nan}), ArgumentError),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(wrong, error):
    with pytest.raises(error) as caught:
        wrong()
    nets.one_line(caught)


def test_two_who_set_the_rate_are_one_line():
    model = FeedForward(nets.mlp(), num_epoch=1, lr_scheduler=mx.lr_scheduler.FactorScheduler(10))
    with pytest.raises(StateError) as caught:
        model.fit(*nets.samples(16), callbacks=Schedule(cosine(1)))
    assert "lr_scheduler" in nets.one_line(caught)


# --- LayerRates ---------------------------------------------------------------------------------


def moved(factors=None, devices=1, kvstore="local", **settings):
    """By how much one step moves each parameter."""
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    before = nets.numpy_of(args)
    model = FeedForward(
        nets.mlp(), CPUS[:devices], 1, arg_params=args, learning_rate=0.1, wd=0.0, **settings
    )
    callbacks = LayerRates(factors) if factors else None
    model.fit(ArrayIter(*nets.samples(8), 8), callbacks=callbacks, kvstore=kvstore)
    return {name: array.asnumpy() - before[name] for name, array in model.arg_params.items()}


@pytest.mark.parametrize(("devices", "kvstore"), [(1, None), (2, None), (2, "local")])
def test_layers_move_by_their_factors(devices, kvstore):
    plain = moved(devices=devices, kvstore=kvstore)
    found = moved({"fc1*": 0.25, "*bias": 3}, devices, kvstore)
    for name, factor in (("fc1_weight", 0.25), ("fc1_bias", 3), ("out_weight", 1), ("out_bias", 3)):
        np.testing.assert_allclose(found[name], factor * plain[name], rtol=0, atol=1e-7)


def test_an_optimizer_object_gets_its_own_factors_back():
    optimizer = mx.optimizer.SGD(learning_rate=0.1)
    model = FeedForward(nets.mlp(), num_epoch=1, optimizer=optimizer)
    model.fit(ArrayIter(*nets.samples(8), 8), callbacks=LayerRates({"fc1*": 0.25}))
    assert "fc1_weight" not in optimizer.lr_mult


def test_a_pattern_that_matches_nothing_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        moved({"conv*": 0.1})
    assert "fc1_weight" in nets.one_line(caught)
