"""EMA and SWA against averages in NumPy of the parameters of a training without them."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal

from mxloop import FeedForward
from mxloop.callback import EMA, SWA, Callback, KeepBest
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError

EPOCHS, IMAGES = 3, (1, 6, 6)


class Trained(Callback):
    """The parameters after every step, and at the ends of epochs."""

    def __init__(self):
        self.steps, self.epochs = [], []

    def on_batch_end(self, state):
        args = {}
        state.manager.copy_to(args, {})
        self.steps.append(nets.numpy_of(args))

    def on_eval_begin(self, state):
        self.epochs.append(self.steps[-1])


def fit(*callbacks, devices=1, kvstore="local", net=None, shape=(10,), **settings):
    net = nets.mlp() if net is None else net
    args, aux = nets.params(net, data=(8, *shape))
    model = FeedForward(
        net,
        CPUS[:devices],
        EPOCHS,
        arg_params=args,
        aux_params=aux,
        learning_rate=0.1,
        momentum=0.9,
    )
    x, y = nets.samples(40, shape)
    evaluated = ArrayIter(*nets.samples(30, shape, seed=3), 16)
    model.fit(
        ArrayIter(x, y, 16), eval_data=evaluated, callbacks=callbacks, kvstore=kvstore, **settings
    )
    return model, evaluated


def averages(steps, decay):
    """The moving average after each step."""
    found = [steps[0]]
    for n, params in enumerate(steps[1:], start=1):
        d = min(decay, (1 + n) / (10 + n))
        found.append({k: d * found[-1][k] + (1 - d) * value for k, value in params.items()})
    return found


@pytest.mark.parametrize(
    ("devices", "kvstore"), [(1, None), (2, None), (2, "local"), (2, "device")]
)
def test_the_model_ends_with_the_moving_average_of_all_steps(devices, kvstore):
    trained = Trained()
    plain, _ = fit(trained, devices=devices, kvstore=kvstore)
    model, _ = fit(EMA(0.6), devices=devices, kvstore=kvstore)
    assert_close(model.arg_params, averages(trained.steps, 0.6)[-1])
    assert np.abs(model.arg_params["fc1_weight"].asnumpy() - trained.steps[-1]["fc1_weight"]).max()


def test_evaluations_see_the_average_and_the_training_does_not():
    trained, again = Trained(), Trained()
    fit(trained)
    model, evaluated = fit(again, EMA(0.6))
    for found, expected in zip(again.steps, trained.steps):
        assert_equal(found, expected)
    per_epoch = averages(trained.steps, 0.6)[2::3]
    for row, params in zip(model.history, per_epoch):
        arrays = {name: mx.nd.array(value) for name, value in params.items()}
        other = FeedForward(nets.mlp(), arg_params=arrays)
        assert row["val_accuracy"] == other.score(evaluated)


def test_an_epoch_callback_sees_the_average():
    trained, seen = Trained(), []
    fit(trained)
    fit(EMA(0.6), epoch_end_callback=lambda *a: seen.append(nets.numpy_of(a[2])))
    for found, expected in zip(seen, averages(trained.steps, 0.6)[2::3]):
        assert_close(found, expected)


def test_the_best_of_the_averages_is_kept_by_a_callback_behind():
    trained, best = Trained(), KeepBest("val_accuracy")
    fit(trained)
    model, _ = fit(EMA(0.6), best)
    assert_close(model.arg_params, averages(trained.steps, 0.6)[3 * best.best_epoch + 2])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("begin", [0, 1])
def test_the_model_ends_with_the_mean_of_the_epochs(begin, devices):
    trained = Trained()
    fit(trained, devices=devices)
    model, _ = fit(SWA(begin), devices=devices)
    counted = trained.epochs[begin:]
    expected = {name: np.mean([p[name] for p in counted], axis=0) for name in counted[0]}
    assert_close(model.arg_params, expected)


def test_an_average_that_never_began_leaves_the_model_alone():
    plain, _ = fit()
    model, _ = fit(SWA(EPOCHS))
    assert_equal(model.arg_params, nets.numpy_of(plain.arg_params))


def test_running_statistics_belong_to_the_mean_of_the_epochs():
    model, _ = fit(SWA(0), net=nets.conv_bn(), shape=IMAGES)
    # The same pass by hand, on a stock executor with the model's parameters.
    last = {}

    class Last(Callback):
        def on_epoch_end(self, state):
            last.update(nets.numpy_of(state.aux_params))

    fit(SWA(0), Last(), net=nets.conv_bn(), shape=IMAGES)
    x, y = nets.samples(40, IMAGES)
    aux = {name: mx.nd.array(value) for name, value in last.items()}
    for batch in nets.batches(x, y, 16):
        rows = batch.data[0].shape[0]
        executor = nets.conv_bn().simple_bind(mx.cpu(), data=(rows, *IMAGES), softmax_label=(rows,))
        executor.copy_params_from(model.arg_params, aux)
        executor.forward(is_train=True, data=batch.data[0])
        executor.backward()
        mx.nd.waitall()
        aux = {name: array.copy() for name, array in executor.aux_dict.items()}
    assert_close(model.aux_params, nets.numpy_of(aux), atol=1e-5)
    assert np.abs(model.aux_params["bn1_moving_mean"].asnumpy() - last["bn1_moving_mean"]).max()


@pytest.mark.parametrize("wrong", [lambda: EMA(1), lambda: EMA(0), lambda: SWA(-1)])
def test_a_setting_that_makes_no_sense_is_one_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        wrong()
    nets.one_line(caught)
