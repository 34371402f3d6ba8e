"""What users of MXNet's training API reported, and what happens instead.

Issue numbers are apache/mxnet's. Each report stands for its kind; the right value is the test.
"""

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal

import mxloop
from mxloop import DataParallelExecutorManager, FeedForward, model
from mxloop.callback import Callback, Speedometer
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, DataError

SGD = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
STORES = [None, "local", "device"]
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(mxloop.__file__)))


def network(symbol=None, devices=2, epochs=2, shape=(10,), given=None, **settings):
    """A FeedForward that always begins with the same parameters."""
    symbol = nets.mlp() if symbol is None else symbol
    args, aux = given or nets.params(symbol, data=(8, *shape))
    return FeedForward(
        symbol,
        ctx=CPUS[:devices],
        num_epoch=epochs,
        arg_params=args,
        aux_params=aux,
        numpy_batch_size=16,
        **({**SGD, **settings} if isinstance(settings.get("optimizer", ""), str) else settings),
    )


def train_data(n=50, batch=16, seed=0, shape=(10,), **more):
    return ArrayIter(*nets.samples(n, shape, seed=seed), batch_size=batch, **more)


def fitted(devices=2, kvstore="local", data=None, symbol=None, epochs=2, fit=None, **settings):
    net = network(symbol, devices, epochs, **settings)
    return net.fit(data or train_data(), kvstore=kvstore, **(fit or {}))


def classes_of(net):
    return mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(net, num_hidden=4, name="out"), name="softmax"
    )


class Seen(Callback):
    """Notes something at the end of every batch."""

    def __init__(self, look):
        self.values = []
        self._look = look

    def on_batch_end(self, state):
        self.values.append(self._look(state))


def first_column(state):
    """The first values of a batch's rows: who they are, as all rows differ."""
    return state.data_batch.data[0].asnumpy()[:, 0].tolist()


# --- Silently wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("kvstore", STORES)
def test_replicas_on_two_devices_do_not_drift_and_equal_one_device(kvstore):
    """#6007: without a kvstore, each device stepped on its own slice's gradient."""
    replicas = Seen(lambda s: [[a.asnumpy() for a in own] for own in s.manager.param_arrays])
    net = fitted(2, kvstore, fit={"callbacks": replicas})
    assert len(replicas.values) == 8
    for first, second in [pair for step in replicas.values for pair in step]:
        np.testing.assert_array_equal(first, second)
    assert_close(net.arg_params, fitted(1, None).arg_params)


@pytest.mark.parametrize("devices", [1, 2])
def test_predict_after_a_further_fit_gives_the_new_answers(devices):
    """#993: the executor for prediction kept the parameters it was bound with."""
    x, _ = nets.samples(20, seed=4)
    net = network(devices=devices)
    answers = []
    for _ in range(2):
        net.fit(train_data(), num_epoch=1)
        found = net.predict(x)
        np.testing.assert_allclose(found, nets.mlp_outputs(net.arg_params, x), rtol=0, atol=1e-6)
        answers.append(found)
    assert np.abs(answers[0] - answers[1]).max() > 0.01


def accuracy(net, x, y):
    return np.mean(nets.mlp_outputs(net.arg_params, x).argmax(axis=1) == y)


def cross_entropy(net, x, y):
    own = nets.mlp_outputs(net.arg_params, x)[np.arange(len(y)), y.astype(int)]
    return -np.log(own).mean()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("n", [17, 33, 50])
def test_padded_rows_count_neither_in_score_nor_in_validation(n, devices):
    """#3488, #6769, #7989; at n = 17 the padding is 15 of 16 rows, several devices' slices."""
    x, y = nets.samples(n, seed=5)
    padded = mx.io.NDArrayIter(x, y, 16, last_batch_handle="pad")
    net = fitted(devices, fit={"eval_data": padded, "eval_metric": ["acc", "ce"]})
    wanted = [accuracy(net, x, y), cross_entropy(net, x, y)]
    during = [net.history[-1][name] for name in ("val_accuracy", "val_cross-entropy")]
    np.testing.assert_allclose(during, wanted, rtol=0, atol=1e-6)
    for given in ((padded,), (x, y)):
        found = net.score(*given, eval_metric=["acc", "ce"])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_padded_rows_do_not_train():
    """#3488: what pads the last batch moved the parameters a second time."""
    padded = mx.io.NDArrayIter(*nets.samples(50), 16, last_batch_handle="pad")
    assert_close(fitted(2, data=padded).arg_params, fitted(1, data=train_data()).arg_params)


@pytest.mark.parametrize("devices", [1, 2])
def test_validation_during_fit_is_that_of_the_reloaded_model(devices, tmp_path):
    """#4230, #4327: with BatchNorm on several devices, each had statistics of its own."""
    shape = (1, 8, 8)
    evaluated = train_data(45, 10, seed=3, shape=shape)
    net = fitted(
        devices,
        data=train_data(shape=shape),
        symbol=nets.conv_bn(),
        shape=shape,
        fit={"eval_data": evaluated, "eval_metric": "ce"},
    )
    during = net.history[-1]["val_cross-entropy"]
    net.save(tmp_path / "net", 2)
    again = FeedForward.load(tmp_path / "net", 2, ctx=CPUS[:devices])
    assert net.score(evaluated, eval_metric="ce") == during
    assert again.score(evaluated, eval_metric="ce") == during


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("n", [15, 16, 17, 50])
def test_a_metric_counts_each_sample_once(n, devices):
    """#4694: an accuracy over more samples than there are."""
    metric = mx.metric.create("acc")
    padded = mx.io.NDArrayIter(*nets.samples(n), 16, last_batch_handle="pad") if n >= 16 else None
    fitted(devices, data=padded or train_data(n), fit={"eval_metric": metric})
    assert metric.num_inst == n


def two_heads(order):
    """Heads over one layer, with 4 and 3 classes."""
    hidden = mx.sym.Activation(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1"), act_type="tanh"
    )
    heads = {
        name: mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(hidden, num_hidden=classes, name=f"{name}_fc"), name=name
        )
        for name, classes in (("animal", 4), ("zone", 3))
    }
    return mx.sym.Group([heads[name] for name in order])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("order", [("animal", "zone"), ("zone", "animal")])
@pytest.mark.parametrize("iterator", [ArrayIter, mx.io.NDArrayIter])
def test_two_labels_go_to_their_heads_in_either_order(order, devices, iterator):
    """#2929, #8215: labels and outputs were paired by position."""
    x, animal = nets.samples(48)
    zone = np.random.RandomState(8).randint(0, 3, 48).astype("float32")
    labels = {f"{name}_label": {"animal": animal, "zone": zone}[name] for name in order[::-1]}
    shapes = {"data": (8, 10), "animal_label": (8,), "zone_label": (8,)}
    net = network(two_heads(order), devices, given=nets.params(two_heads(order), **shapes))
    data = iterator(x, labels, batch_size=16)
    net.fit(data, eval_data=data, eval_metric=["acc", "ce"])
    found = dict(zip(order, net.predict(x)))
    correct = [found["animal"].argmax(1) == animal, found["zone"].argmax(1) == zone]
    rows = np.arange(48)
    own = [found["animal"][rows, animal.astype(int)], found["zone"][rows, zone.astype(int)]]
    np.testing.assert_allclose(net.history[-1]["val_accuracy"], np.mean(correct), atol=1e-6)
    np.testing.assert_allclose(
        net.history[-1]["val_cross-entropy"], -np.log(own).mean(), rtol=0, atol=1e-5
    )


HISTORIES = [
    {"optimizer": "sgd"},
    {"optimizer": "adagrad", "momentum": None},
    {"optimizer": "adam", "momentum": None, "learning_rate": 0.01},
]


def without_none(settings):
    settings = {**SGD, **settings}
    return {name: value for name, value in settings.items() if value is not None}


@pytest.mark.parametrize("settings", HISTORIES, ids=lambda s: s["optimizer"])
@pytest.mark.parametrize("kvstore", STORES)
def test_four_epochs_equal_two_and_two_more(settings, kvstore):
    """#4638, #1695, #6010: momentum and AdaGrad's history began anew."""
    given = nets.params(nets.mlp(), data=(8, 10))

    def make(epochs):
        return FeedForward(
            nets.mlp(), CPUS[:2], epochs, arg_params=given[0], **without_none(settings)
        )

    whole = make(4).fit(train_data(), kvstore=kvstore)
    halves = make(2).fit(train_data(), kvstore=kvstore)
    halves.fit(train_data(), kvstore=kvstore, num_epoch=2)
    assert_equal(halves.arg_params, whole.arg_params)


def test_optimizer_states_made_on_2_devices_serve_on_1_and_3():
    """#10910: states were known by the device they were made on."""
    whole = fitted(1, epochs=6)
    net = fitted(2, epochs=2)
    for devices in (1, 3):
        net.set_params(ctx=CPUS[:devices])
        net.fit(train_data(), num_epoch=2)
    assert_close(net.arg_params, whole.arg_params)


@pytest.mark.parametrize("kvstore", STORES)
def test_a_learning_rate_schedule_goes_on_where_it_was(kvstore):
    """#3251: it started over."""

    def rates(*spans):
        seen = Seen(lambda state: state.optimizer.learning_rate)
        schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5)
        net = network(epochs=spans[0], lr_scheduler=schedule)
        net.fit(train_data(), kvstore=kvstore, callbacks=seen)
        for epochs in spans[1:]:
            net.fit(train_data(), kvstore=kvstore, callbacks=seen, num_epoch=epochs)
        return seen.values, net

    whole, one = rates(4)
    # The rate for the update after n: halved each time that n exceeds a multiple of three.
    np.testing.assert_allclose(whole, [0.1 * 0.5 ** ((n - 1) // 3) for n in range(1, 17)])
    halves, two = rates(2, 2)
    assert halves == whole
    assert_equal(two.arg_params, one.arg_params)


def symbol_with(**attributes):
    """`nets.mlp` with attributes on the first weight, as users write them."""
    weight = mx.sym.var("fc1_weight", **attributes)
    net = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=16, name="fc1")
    return classes_of(mx.sym.Activation(net, act_type="tanh"))


def with_multiplier(how, kind, value):
    """The settings that give the first weight a multiplier, on its variable or the optimizer."""
    if how == "variable":
        return {"symbol": symbol_with(**{kind: value})}
    optimizer = mx.optimizer.SGD(**SGD)
    getattr(optimizer, f"set_{kind}")({"fc1_weight": value})
    if how == "object":
        return {"symbol": symbol_with(), "optimizer": optimizer}
    return {"symbol": symbol_with(**{kind: value}), "optimizer": mx.optimizer.SGD(**SGD)}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kvstore", STORES)
@pytest.mark.parametrize("how", ["variable", "object", "variable and object"])
def test_lr_mult_0_freezes_a_weight_and_no_other(how, kvstore, devices):
    """#2337, #9511: multipliers were silently ignored."""
    net = fitted(devices, kvstore, **with_multiplier(how, "lr_mult", 0))
    start = nets.params(symbol_with(), data=(8, 10))[0]
    np.testing.assert_array_equal(
        net.arg_params["fc1_weight"].asnumpy(), start["fc1_weight"].asnumpy()
    )
    for name in ("fc1_bias", "out_weight", "out_bias"):
        assert np.abs((net.arg_params[name] - start[name]).asnumpy()).max() > 0.01, name


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kvstore", STORES)
@pytest.mark.parametrize("how", ["variable", "object", "variable and object"])
def test_wd_mult_0_spares_a_weight_from_decay(how, kvstore, devices):
    """#2337, #9511; nothing else moves it, its rows of data being zero."""
    x, y = nets.samples(50)
    net = fitted(
        devices, kvstore, data=ArrayIter(0 * x, y, 16), **with_multiplier(how, "wd_mult", 0)
    )
    start = nets.params(symbol_with(), data=(8, 10))[0]
    np.testing.assert_array_equal(
        net.arg_params["fc1_weight"].asnumpy(), start["fc1_weight"].asnumpy()
    )
    decayed = fitted(devices, kvstore, data=ArrayIter(0 * x, y, 16), symbol=symbol_with())
    assert (decayed.arg_params["fc1_weight"] != start["fc1_weight"]).asnumpy().all()


def test_a_multiplier_for_a_name_that_is_not_there_is_one_line():
    """#9511, #11897: a typo went unnoticed."""
    optimizer = mx.optimizer.SGD(**SGD)
    optimizer.set_lr_mult({"fc1_wieght": 0})
    with pytest.raises(ArgumentError) as caught:
        fitted(2, optimizer=optimizer)
    message = nets.one_line(caught)
    assert "fc1_wieght" in message and "did you mean 'fc1_weight'" in message


def own_loop(batches, devices=2, micro=None, steps_every=1, **manager_settings):
    """A hand-written loop: one update every so many batches; returns the parameters."""
    rows = micro or 16
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    manager = DataParallelExecutorManager(
        nets.mlp(), CPUS[:devices], nets.described(rows), **manager_settings
    )
    manager.set_params(args, {})
    optimizer = mx.optimizer.SGD(**SGD, rescale_grad=1.0 / (rows * steps_every))
    updater = mx.optimizer.get_updater(optimizer)
    for number, batch in enumerate(batches, start=1):
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        if number % steps_every == 0:
            model.update_params(manager.param_arrays, manager.grad_arrays, updater, devices)
            for grads in manager.grad_arrays:
                for grad in grads if grads[0] is not None else []:
                    grad[:] = 0
    manager.copy_to(args, {})
    return args


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_gradients_added_up_over_4_batches_of_4_equal_one_batch_of_16(devices):
    """#16969, #18659: accumulating gradients learned nothing."""
    x, y = nets.samples(64)
    added = own_loop(nets.batches(x, y, 4), devices, micro=4, steps_every=4, grad_req="add")
    assert_close(added, own_loop(nets.batches(x, y, 16), 1))


def test_a_fixed_parameter_stays_to_the_bit_and_an_unknown_one_is_one_line():
    """#11897: a fixed parameter changed, and an unknown name went unnoticed."""
    batches = list(nets.batches(*nets.samples(64), 16))
    found = own_loop(batches, fixed_param_names=["fc1_weight"])
    start = nets.params(nets.mlp(), data=(8, 10))[0]
    np.testing.assert_array_equal(found["fc1_weight"].asnumpy(), start["fc1_weight"].asnumpy())
    assert np.abs((found["out_weight"] - start["out_weight"]).asnumpy()).max() > 0.01
    with pytest.raises(ArgumentError) as caught:
        own_loop(batches, fixed_param_names=["fc1_weigth"])
    assert "fc1_weigth" in nets.one_line(caught)


def batch_norm(**settings):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn", **settings)
    return classes_of(net)


@pytest.mark.parametrize("devices", [1, 2])
def test_statistics_of_a_frozen_batch_norm_stay(devices):
    """#10077: they moved on while the layer's weights were frozen."""
    moving = fitted(devices, symbol=batch_norm()).aux_params
    frozen = fitted(devices, symbol=batch_norm(use_global_stats=True)).aux_params
    start = nets.params(batch_norm(), data=(8, 10))[1]
    assert_equal(frozen, start)
    assert (moving["bn_moving_mean"] != start["bn_moving_mean"]).asnumpy().all()


def own_reset(param):
    param.eval_metric.reset()


RESETTING = {
    "mx.callback.Speedometer": lambda: mx.callback.Speedometer(16, 2, auto_reset=True),
    "mx.callback.log_train_metric": lambda: mx.callback.log_train_metric(2, auto_reset=True),
    "mxloop.callback.Speedometer": lambda: Speedometer(16, 2),
    "at every batch": lambda: own_reset,
    "in several": lambda: [own_reset, mx.callback.Speedometer(16, 1), own_reset],
}


@pytest.mark.parametrize("logger", RESETTING)
def test_a_logger_that_resets_the_metric_leaves_the_epochs_value_whole(logger):
    """#11480, #12182, #4253, #5767: the epoch's accuracy was that of the last window, or nan."""
    wanted = fitted(fit={"eval_metric": ["acc", "ce"]}).history
    metric = mx.metric.create(["acc", "ce"])
    net = fitted(
        fit={
            "eval_metric": metric,
            "batch_end_callback": RESETTING[logger](),
            "eval_data": train_data(40, seed=6),
            "eval_batch_end_callback": own_reset,
        }
    )
    for name in ("train_accuracy", "train_cross-entropy"):
        assert [row[name] for row in net.history] == [row[name] for row in wanted]
    assert metric.get()[1] == [
        net.history[-1]["train_accuracy"],
        net.history[-1]["train_cross-entropy"],
    ]
    assert net.history[-1]["val_accuracy"] == net.score(train_data(40, seed=6))


def normalising(classes=4):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=classes, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax", normalization="batch")


@pytest.mark.parametrize("optimizer", ["sgd", mx.optimizer.SGD(**SGD)], ids=["name", "object"])
def test_an_explicit_rescale_grad_is_obeyed_with_a_normalising_loss(optimizer):
    """#9911, #4761: the loss took the mean, and the update divided once more."""
    plain = classes_of(mx.sym.var("data"))
    settings = {"optimizer": optimizer, "rescale_grad": 1.0}
    if optimizer == "sgd":
        settings.update(SGD)
    wanted = fitted(1, symbol=plain)
    found = FeedForward(
        normalising(), CPUS[:1], 2, arg_params=nets.params(plain, data=(8, 10))[0], **settings
    ).fit(train_data())
    assert_close(found.arg_params, wanted.arg_params)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kvstore", STORES)
def test_an_explicit_rescale_grad_is_obeyed_on_any_device(devices, kvstore):
    """#9911, #4761: one step, w - lr * rescale * sum of gradients."""
    x, y = nets.samples(10)
    args, _ = nets.params(nets.mlp(widths=()), data=(8, 10))
    error = nets.mlp_outputs(args, x, layers=()) - np.eye(4)[y.astype(int)]
    settings = {"rescale_grad": 0.03, "momentum": 0.0, "wd": 0.0}
    net = fitted(devices, kvstore, ArrayIter(x, y, 10), nets.mlp(widths=()), epochs=1, **settings)
    wanted = args["out_weight"].asnumpy() - 0.1 * 0.03 * error.T @ x
    np.testing.assert_allclose(net.arg_params["out_weight"].asnumpy(), wanted, rtol=0, atol=1e-6)


# --- Hang, crash, blocked -----------------------------------------------------------------------


def test_epoch_size_wraps_shorter_data_and_goes_on_in_longer_data():
    """#6970: the epoch never ended."""
    x, _ = nets.samples(50)
    of_batch = [x[i : i + 16, 0].tolist() for i in range(0, 50, 16)]
    for size in (1, 3, 4, 6):
        seen = Seen(first_column)
        net = fitted(epoch_size=size, epochs=3, fit={"callbacks": seen})
        assert seen.values == [of_batch[i % 4] for i in range(3 * size)]
        assert [row["epoch"] for row in net.history] == [0, 1, 2]


def test_an_iterator_without_batches_is_one_line_with_epoch_size_and_without():
    """#6970: with epoch_size, an iterator that gave nothing was asked for ever."""

    class Empty(mx.io.DataIter):
        provide_data = train_data().provide_data
        provide_label = train_data().provide_label

        def next(self):
            raise StopIteration

    for size in (None, 3):
        with pytest.raises(DataError) as caught:
            fitted(data=Empty(16), epoch_size=size)
        assert "no batch" in nets.one_line(caught)


@pytest.mark.parametrize("batch, devices", [(6, 4), (8, 5), (9, 6), (11, 7), (1, 2), (3, 7)])
def test_any_batch_on_any_number_of_devices_trains_as_on_one(batch, devices):
    """#2593, dmlc/keras#53: "Too many slices". #13909: fewer rows than devices."""
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    found = [
        FeedForward(
            nets.mlp(), [mx.cpu(i) for i in range(n)], 1, arg_params=args, aux_params={}, **SGD
        ).fit(train_data(23, batch))
        for n in (1, devices)
    ]
    assert_close(found[1].arg_params, found[0].arg_params)
    assert found[1].history[0]["train_accuracy"] == found[0].history[0]["train_accuracy"]


@pytest.mark.parametrize("train, evaluated", [(16, 7), (7, 16), (16, 64)])
def test_evaluation_batches_may_be_smaller_or_larger_than_training_batches(train, evaluated):
    """#612, #4576."""
    x, y = nets.samples(40, seed=2)
    net = fitted(data=train_data(50, train), fit={"eval_data": ArrayIter(x, y, evaluated)})
    np.testing.assert_allclose(net.history[-1]["val_accuracy"], accuracy(net, x, y), atol=1e-6)


@pytest.mark.parametrize("batch", [1, 5, 16, 64])
def test_predict_takes_other_batches_than_training(batch):
    """#992, #8802."""
    x, y = nets.samples(21, seed=2)
    net = fitted()
    wanted = nets.mlp_outputs(net.arg_params, x)
    np.testing.assert_allclose(net.predict(ArrayIter(x, y, batch)), wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(net.predict(ArrayIter(x, None, batch)), wanted, rtol=0, atol=1e-6)


def test_a_label_of_another_name_is_one_line_with_both_names():
    """#1263, #3615."""
    x, y = nets.samples(50)
    for data in (ArrayIter(x, {"kind_label": y}, 16), mx.io.NDArrayIter(x, {"kind_label": y}, 16)):
        with pytest.raises(DataError) as caught:
            fitted(data=data)
        message = nets.one_line(caught)
        assert "softmax_label" in message and "kind_label" in message


def test_a_label_that_is_not_named_softmax_label_trains_from_arrays():
    """#1263, #3615."""
    x, y = nets.samples(50)
    other = mx.sym.SoftmaxOutput(nets.mlp(head=False), name="species")
    found = network(other, given=nets.params(nets.mlp(), data=(8, 10))).fit(x, y, seed=3)
    wanted = network().fit(x, y, seed=3)
    assert_equal(found.arg_params, wanted.arg_params)
    assert found.score(x, y) == wanted.score(x, y)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_network_without_labels_trains(devices):
    """#8910: with MakeLoss; one step in NumPy."""
    product = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    symbol = mx.sym.MakeLoss(mx.sym.square(product))
    x, _ = nets.samples(11)
    start = nets.params(symbol, data=(8, 10))[0]["fc_weight"].asnumpy()
    metric = mx.metric.Loss()
    net = network(symbol, devices, epochs=1, momentum=0.0, wd=0.0)
    net.fit(x, eval_metric=metric)
    wanted = start - 0.1 * (2 * x @ start.T).T @ x / 11
    np.testing.assert_allclose(net.arg_params["fc_weight"].asnumpy(), wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(metric.get()[1], np.square(x @ start.T).mean(), rtol=1e-5)


def two_layers(key):
    """The sum of two layers, in an order that the bucket's key decides."""
    data = mx.sym.var("data")
    layers = [mx.sym.FullyConnected(data, num_hidden=4, name=name) for name in ("a", "b")]
    first, second = layers if key == 1 else layers[::-1]
    return mx.sym.SoftmaxOutput(
        first + 2 * second if key == 1 else 2 * first + second, name="softmax"
    )


class Buckets(mx.io.DataIter):
    """The batches of an iterator, with alternating keys."""

    def __init__(self, inner):
        super().__init__(inner.batch_size)
        self._inner = inner
        self.default_bucket_key = 1
        self.provide_data, self.provide_label = inner.provide_data, inner.provide_label

    def reset(self):
        self._inner.reset()
        self._number = 0

    def next(self):
        batch = self._inner.next()
        self._number += 1
        batch.bucket_key = 1 + self._number % 2
        return batch


def test_buckets_with_arguments_in_another_order_share_parameters_by_name():
    """#1615: they were shared by position."""
    assert two_layers(1).list_arguments() != two_layers(2).list_arguments()
    given = nets.params(two_layers(1), data=(8, 10))
    plain = network(two_layers(1), given=given).fit(train_data())
    bucketed = network(two_layers, given=given).fit(Buckets(train_data()))
    assert_close(bucketed.arg_params, plain.arg_params)


# --- Confusing or slow --------------------------------------------------------------------------


def orders(seed, epochs=3):
    seen = Seen(lambda state: (state.epoch, first_column(state)))
    network(epochs=epochs).fit(*nets.samples(50), seed=seed, callbacks=seen)
    return [sum((rows for e, rows in seen.values if e == epoch), []) for epoch in range(epochs)]


def test_every_epoch_has_a_new_order_that_one_seed_repeats():
    """#7618, #286: no reshuffling between epochs."""
    found = orders(seed=5)
    x, _ = nets.samples(50)
    for order in found:
        assert sorted(order) == sorted(x[:, 0].tolist())
    assert found[0] != found[1] != found[2] != found[0]
    assert orders(seed=5) == found
    assert orders(seed=6) != found


def with_dropout():
    net = mx.sym.Dropout(nets.mlp(head=False).get_internals()["act1_output"], p=0.5)
    return classes_of(net)


@pytest.mark.parametrize("devices", [1, 2])
def test_one_seed_repeats_a_run_to_the_bit(devices):
    """#736: seeding was not enough; with Dropout, shuffling and drawn parameters."""

    def run(seed):
        net = FeedForward(with_dropout(), CPUS[:devices], 2, numpy_batch_size=16, **SGD)
        net.fit(*nets.samples(50), seed=seed)
        return net.arg_params

    first = run(3)
    mx.nd.random.uniform(shape=(5,))
    np.random.rand()
    assert_equal(run(3), first)
    assert (run(4)["fc1_weight"] != first["fc1_weight"]).asnumpy().any()


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_predict_gives_n_rows_for_n_rows_in_order(devices):
    """#364, #1917: too few or too many rows."""
    net = fitted(devices)
    for n in range(1, 34):
        x, y = nets.samples(n, seed=n)
        wanted = nets.mlp_outputs(net.arg_params, x)
        for given in (x, mx.io.NDArrayIter(x, y, min(n, 16), last_batch_handle="pad")):
            found = net.predict(given)
            assert found.shape == (n, 4)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_predict_uses_all_devices(monkeypatch):
    """#1649, #5742: it used one."""
    made = []

    class Noted(DataParallelExecutorManager):
        def load_data_batch(self, batch):
            super().load_data_batch(batch)
            made.append([part.stop - part.start for part in self.slices])

    net = fitted(3)
    one = fitted(1)
    one.arg_params = net.arg_params
    monkeypatch.setattr(model, "DataParallelExecutorManager", Noted)
    x, _ = nets.samples(23)
    found = net.predict(x)
    assert made == [[6, 5, 5], [3, 2, 2]]
    np.testing.assert_allclose(found, one.predict(x), rtol=0, atol=1e-6)


def test_history_has_training_and_validation_values_of_every_epoch():
    """#2873, #5530: they could only be read off the log."""
    x, y = nets.samples(33, seed=5)
    values = []

    class Validate(Callback):
        def on_epoch_end(self, state):
            now = FeedForward(nets.mlp(), arg_params=state.arg_params, aux_params={})
            values.append(accuracy(now, x, y))

    net = fitted(epochs=3, fit={"eval_data": (x, y), "callbacks": Validate()})
    assert [row["epoch"] for row in net.history] == [0, 1, 2]
    found = [row["val_accuracy"] for row in net.history]
    np.testing.assert_allclose(found, values, rtol=0, atol=1e-6)
    assert all(0 < row["train_accuracy"] <= 1 for row in net.history)
    assert all(row["samples_per_second"] > 0 for row in net.history)


QUIET_SCRIPT = """
import nets
from mxloop import FeedForward
from mxloop.callback import Speedometer
x, y = nets.samples(50)
net = FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=16)
net.fit(x, y, batch_end_callback=Speedometer(16, 2))
"""


def test_the_speed_logger_prints_though_nobody_configured_logging():
    """#3285: it printed nothing."""
    paths = os.pathsep.join([SOURCE, os.path.dirname(os.path.abspath(__file__))])
    told = subprocess.run(
        [sys.executable, "-c", QUIET_SCRIPT],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    ).stdout.decode()
    lines = [line for line in told.splitlines() if "Batch [" in line]
    assert [line.split("\t")[0] for line in lines] == [
        "Epoch[0] Batch [0-2]",
        "Epoch[0] Batch [2-4]",
    ]
    assert all("samples/sec" in line and "accuracy=" in line for line in lines)


def test_the_speed_logger_counts_the_real_samples(monkeypatch, capsys):
    """#3285 and its kind: on a clock of one second a look, speeds are numbers of samples."""
    seconds = iter(range(1000))
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr("mxloop.callback.speedometer.time", clock)
    padded = mx.io.NDArrayIter(*nets.samples(37), 16, last_batch_handle="pad")
    fitted(data=padded, epochs=1, fit={"batch_end_callback": Speedometer(16, 1)})
    lines = [line for line in capsys.readouterr().out.splitlines() if "Batch [" in line]
    speeds = [line.split("Speed: ")[1].split()[0] for line in lines]
    assert speeds == ["16.00", "16.00", "5.00"]


def test_work_loads_of_3_to_1_give_12_and_4_rows_of_16():
    """#2293, #561: unequal devices."""
    seen = Seen(lambda state: [part.stop - part.start for part in state.manager.slices])
    net = fitted(data=train_data(48), fit={"work_load_list": [3, 1], "callbacks": seen})
    assert seen.values == [[12, 4]] * 6
    assert_close(net.arg_params, fitted(1, data=train_data(48)).arg_params)


def test_fitting_for_a_few_epochs_more_goes_on_with_orders_and_numbers():
    """#1520, #2871: arrays are shuffled as in the run that was never cut."""
    x, y = nets.samples(50)
    whole = network(epochs=5).fit(x, y, seed=9)
    parts = network(epochs=2).fit(x, y, seed=9)
    parts.fit(x, y, num_epoch=2)
    parts.fit(x, y, num_epoch=1)
    assert [row["epoch"] for row in parts.history] == [0, 1, 2, 3, 4]
    assert_equal(parts.arg_params, whole.arg_params)


# --- MXNet's callbacks, unchanged ---------------------------------------------------------------


def alone(callback):
    return callback


def in_a_list(callback):
    return [callback]


def in_a_tuple(callback):
    return (callback,)


@pytest.mark.parametrize(
    "kind", [alone, lambda c: [c], lambda c: (c,)], ids=["one", "list", "tuple"]
)
def test_mxnets_callbacks_work_alone_in_a_list_and_in_a_tuple(kind, tmp_path, caplog):
    prefix = str(tmp_path / "net")
    with caplog.at_level(logging.INFO):
        net = fitted(
            fit={
                "batch_end_callback": kind(mx.callback.Speedometer(16, 1)),
                "epoch_end_callback": kind(mx.callback.do_checkpoint(prefix)),
                "eval_data": train_data(20, seed=3),
                "eval_end_callback": kind(mx.callback.LogValidationMetricsCallback()),
                "eval_batch_end_callback": kind(mx.callback.ProgressBar(total=2)),
            }
        )
    symbol, args, _ = mx.model.load_checkpoint(prefix, 2)
    assert symbol.list_arguments() == nets.mlp().list_arguments()
    assert_equal(args, net.arg_params)
    assert "Speed:" in caplog.text and "] 100%" in caplog.text
    assert f"Validation-accuracy={net.history[-1]['val_accuracy']:f}" in caplog.text
