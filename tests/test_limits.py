"""LimitBatches, FastDevRun, OverfitBatch, ValidateEvery: against trainings on cut data."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_equal

from mxloop import FeedForward
from mxloop.callback import Callback, FastDevRun, LimitBatches, OverfitBatch, ValidateEvery
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError


def samples():
    return nets.samples(40)


def fit(x, y, *callbacks, epochs=2, devices=1, evaluated=None, data=None, **settings):
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(
        nets.mlp(), CPUS[:devices], epochs, arg_params=args, learning_rate=0.1, momentum=0.9
    )
    if evaluated is not None:
        settings["eval_data"] = ArrayIter(*evaluated, 8)
    data = ArrayIter(x, y, 8) if data is None else data
    return model.fit(data, callbacks=callbacks, **settings)


class Counts(Callback):
    """Batches of epochs and evaluations, and the end."""

    def __init__(self):
        self.trained, self.evaluated, self.lengths, self.ended = [], [], [], 0

    def on_batch_end(self, state):
        self.trained.append((state.epoch, state.nbatch))
        self.lengths.append(state.num_batch)

    def on_eval_end(self, state):
        self.evaluated.append((state.epoch, state.nbatch, state.samples))

    def on_train_end(self, state):
        self.ended += 1


@pytest.mark.parametrize("devices", [1, 2])
def test_each_epoch_and_evaluation_ends_after_so_many_batches(devices):
    x, y = samples()
    counts = Counts()
    test = nets.samples(40, seed=3)
    model = fit(x, y, LimitBatches(3, 2), counts, devices=devices, evaluated=test)
    assert counts.trained == [(e, n) for e in (0, 1) for n in (1, 2, 3)]
    assert counts.evaluated == [(0, 2, 16), (1, 2, 16)]
    cut = fit(x[:24], y[:24], devices=devices, evaluated=[each[:16] for each in test])
    assert_equal(model.arg_params, nets.numpy_of(cut.arg_params))
    for row, other in zip(model.history, cut.history):
        for name in ("train_accuracy", "val_accuracy"):
            assert row[name] == other[name]


def test_the_length_of_an_epoch_is_told():
    counts = Counts()
    fit(*samples(), LimitBatches(3), counts, epochs=1)
    assert counts.lengths == [3, 3, 3]
    again = Counts()
    fit(*samples(), LimitBatches(99), again, epochs=1)
    assert again.lengths == [5] * 5


def test_epochs_shuffle_as_without_a_limit():
    x, y = samples()
    orders = []

    class Order(Callback):
        def on_batch_end(self, state):
            orders[-1].append(state.data_batch.data[0].asnumpy().tobytes())

    for limit in ([LimitBatches(2)], []):
        orders.append([])
        fit(x, y, *limit, Order(), data=ArrayIter(x, y, 8, shuffle=True, seed=4))
    cut, whole = orders
    assert cut == whole[:2] + whole[5:7]


def test_with_epoch_size_the_limit_cuts_that():
    counts = Counts()
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(nets.mlp(), num_epoch=2, epoch_size=4, arg_params=args)
    model.fit(ArrayIter(*samples(), 8), callbacks=[LimitBatches(3), counts])
    assert len(counts.trained) == 6


def test_a_dry_run_is_one_batch_one_evaluation_and_all_callbacks(capsys):
    counts = Counts()
    model = fit(*samples(), FastDevRun(), counts, epochs=50, evaluated=samples())
    assert counts.trained == [(0, 1)]
    assert counts.evaluated == [(0, 1, 8)]
    assert counts.ended == 1
    assert len(model.history) == 1
    assert "Dry run: 1 batch(es)" in capsys.readouterr().out


def test_every_batch_is_the_first_one():
    x, y = samples()
    order = np.random.RandomState(0).permutation(40)
    x, y = x[order], y[order]
    model = fit(x, y, OverfitBatch(), epochs=2)
    alone = fit(x[:8], y[:8], epochs=10)
    assert_equal(model.arg_params, nets.numpy_of(alone.arg_params))
    assert fit(x, y, OverfitBatch(), epochs=20).history[-1]["train_accuracy"] == 1


def test_a_batch_whose_arrays_an_iterator_fills_again_is_kept():
    x, y = samples()

    class Reusing(mx.io.DataIter):
        """Gives the same two arrays each time, filled anew."""

        def __init__(self):
            super().__init__(8)
            self.inner = ArrayIter(x, y, 8)
            self.provide_data = self.inner.provide_data
            self.provide_label = self.inner.provide_label
            self.data, self.label = mx.nd.zeros((8, 10)), mx.nd.zeros((8,))

        def reset(self):
            self.inner.reset()

        def next(self):
            batch = self.inner.next()
            self.data[:], self.label[:] = batch.data[0], batch.label[0]
            return mx.io.DataBatch([self.data], [self.label], pad=0)

    model = fit(x, y, OverfitBatch(), epochs=2, data=Reusing())
    alone = fit(x[:8], y[:8], epochs=10)
    assert_equal(model.arg_params, nets.numpy_of(alone.arg_params))


# --- ValidateEvery ------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("net", ["mlp", "conv_bn"])
def test_evaluations_within_an_epoch_are_those_of_the_parameters_there(devices, net):
    symbol, shape = (nets.mlp(), (10,)) if net == "mlp" else (nets.conv_bn(), (1, 6, 6))
    x, y = nets.samples(40, shape)
    test = ArrayIter(*nets.samples(30, shape, seed=3), 8)
    args, aux = nets.params(symbol, data=(8, *shape))
    scores = []

    class Score(Callback):
        """The score of a model with the parameters after each second batch."""

        def on_batch_end(self, state):
            if state.nbatch % 2 == 0:
                arg_params, aux_params = {}, {}
                state.manager.copy_to(arg_params, aux_params)
                model = FeedForward(symbol, arg_params=arg_params, aux_params=aux_params)
                scores.append(model.score(test))

    def train(*callbacks):
        model = FeedForward(
            symbol, CPUS[:devices], 2, arg_params=args, aux_params=aux, learning_rate=0.1
        )
        evaluated = ArrayIter(*nets.samples(30, shape, seed=3), 8)
        return model.fit(ArrayIter(x, y, 8), eval_data=evaluated, callbacks=callbacks)

    every = ValidateEvery(2)
    model = train(every)
    plain = train(Score())
    assert [(row["epoch"], row["batch"]) for row in every.rows] == [(0, 2), (0, 4), (1, 2), (1, 4)]
    assert [row["val_accuracy"] for row in every.rows] == scores
    # And the training is as if it had not been looked at.
    assert_equal(model.arg_params, nets.numpy_of(plain.arg_params))
    assert_equal(model.aux_params, nets.numpy_of(plain.aux_params))
    for row, other in zip(model.history, plain.history):
        assert row["train_accuracy"] == other["train_accuracy"]
        assert row["val_accuracy"] == other["val_accuracy"]


def test_counts_of_the_epoch_go_on_after_an_evaluation(capsys):
    counts = Counts()
    fit(*samples(), ValidateEvery(2), counts, epochs=1, evaluated=nets.samples(24))
    assert counts.trained == [(0, n) for n in range(1, 6)]
    assert counts.evaluated == [(0, 3, 24)] * 3
    assert "Epoch[0] Batch [4] Validation-accuracy=" in capsys.readouterr().out


def test_without_data_to_evaluate_on_it_is_one_line():
    with pytest.raises(StateError) as caught:
        fit(*samples(), ValidateEvery(2))
    assert "eval_data" in nets.one_line(caught)


@pytest.mark.parametrize(
    "wrong", [lambda: LimitBatches(0), lambda: FastDevRun(-1), lambda: ValidateEvery(0)]
)
def test_a_setting_that_makes_no_sense_is_one_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        wrong()
    nets.one_line(caught)
