"""model.py: devices, stores, optimizers and files give the same numbers as one device and stock."""

import itertools
import json

import numpy as np
import pytest

import nets
from mxloop import FeedForward, load_checkpoint, model, save_checkpoint
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.executor_manager import DataParallelExecutorManager
from nets import CPUS, assert_close, assert_equal

SGD = {"learning_rate": 0.02, "momentum": 0.9, "wd": 0.01}
METRICS = ["acc", "ce", "mse", "mae", "rmse"]


def metrics():
    return [*METRICS, mx.metric.TopKAccuracy(top_k=2)]


def optimizer_of(kind, settings):
    """The keywords of FeedForward for one optimizer, by name or as an object."""
    if kind == "name":
        return {"optimizer": "sgd", **settings}
    return {"optimizer": mx.optimizer.SGD(**settings)}


def fit(symbol, x, y, devices=1, kvstore="local", batch=50, epochs=40, optimizer=None, **more):
    """Train from the same parameters on the same batches."""
    args, aux = nets.params(symbol, data=(batch, *x.shape[1:]))
    net = FeedForward(
        symbol,
        ctx=CPUS[:devices],
        num_epoch=epochs,
        arg_params=args,
        aux_params=aux,
        **(optimizer or optimizer_of("name", SGD)),
    )
    data = ArrayIter(x, y, batch_size=batch)
    more.setdefault("eval_metric", "acc")
    return net.fit(data, kvstore=kvstore, **more)


# --- Devices do not show (point 3) ---------------------------------------------------------------

MLP_SHAPE, LENET_SHAPE = (10,), (1, 12, 12)
MATRIX = list(itertools.product([1, 2, 3, 4], [None, "local", "device"], ["name", "object"]))
LENET_MATRIX = [
    pytest.param(*case, marks=() if case in LENET_SUBSET else pytest.mark.slow)
    for LENET_SUBSET in [[(2, None, "object"), (3, "local", "name"), (4, "device", "object")]]
    for case in MATRIX
]


def two_hundred_steps(symbol, shape, devices, kvstore, kind):
    """Five batches an epoch, the last of 17 rows; all metrics of all epochs."""
    x, y = nets.samples(217, shape)
    net = fit(
        symbol,
        x,
        y,
        devices,
        kvstore,
        optimizer=optimizer_of(kind, SGD),
        eval_metric=metrics(),
        eval_data=ArrayIter(*nets.samples(67, shape, seed=5), batch_size=50),
    )
    kept = ("train_", "val_")
    history = {
        f"{row['epoch']} {name}": value
        for row in net.history
        for name, value in row.items()
        if name.startswith(kept)
    }
    assert len(history) == 40 * 2 * 6
    return nets.numpy_of(net.arg_params), history


@pytest.fixture(scope="module")
def mlp_on_one_device():
    return two_hundred_steps(nets.mlp(), MLP_SHAPE, 1, None, "name")


@pytest.fixture(scope="module")
def lenet_on_one_device():
    return two_hundred_steps(nets.lenet(), LENET_SHAPE, 1, None, "name")


@pytest.mark.parametrize("devices, kvstore, kind", MATRIX)
def test_an_mlp_learns_the_same_on_any_devices_with_any_store(
    mlp_on_one_device, devices, kvstore, kind
):
    found, history = two_hundred_steps(nets.mlp(), MLP_SHAPE, devices, kvstore, kind)
    assert_close(found, mlp_on_one_device[0])
    assert_close(history, mlp_on_one_device[1])


@pytest.mark.parametrize("devices, kvstore, kind", LENET_MATRIX)
def test_lenet_learns_the_same_on_any_devices_with_any_store(
    lenet_on_one_device, devices, kvstore, kind
):
    found, history = two_hundred_steps(nets.lenet(), LENET_SHAPE, devices, kvstore, kind)
    assert_close(found, lenet_on_one_device[0])
    assert_close(history, lenet_on_one_device[1])


def test_training_moves_every_parameter_far(mlp_on_one_device):
    start, _ = nets.params(nets.mlp(), data=(50, *MLP_SHAPE))
    for name, value in mlp_on_one_device[0].items():
        assert np.abs(value - start[name].asnumpy()).max() > 0.05, name


# --- One device is stock's Module (point 4) ------------------------------------------------------


def module_after(symbol, x, y, batch, epochs, metric, optimizer="sgd", settings=SGD):
    args, aux = nets.params(symbol, data=(batch, *x.shape[1:]))
    module = mx.mod.Module(symbol, context=mx.cpu(0))
    data = mx.io.NDArrayIter(x, y, batch)
    module.fit(
        data,
        num_epoch=epochs,
        optimizer=optimizer,
        optimizer_params=dict(settings),
        arg_params=args,
        aux_params=aux,
        eval_metric=metric,
        kvstore=None,
    )
    args, aux = module.get_params()
    return {**args, **aux}, dict(module.score(data, metrics()))


@pytest.mark.parametrize("symbol, shape", [(nets.mlp(), MLP_SHAPE), (nets.lenet(), LENET_SHAPE)])
def test_one_device_equals_stock_module(symbol, shape):
    x, y = nets.samples(200, shape)
    metric = mx.metric.create(metrics())
    net = fit(symbol, x, y, epochs=25, eval_metric=metrics())
    wanted, scores = module_after(symbol, x, y, 50, 25, metric)
    assert_close(net.arg_params, wanted)
    last = net.history[-1]
    assert_close(
        {n: last[f"train_{n}"] for n, _ in metric.get_name_value()}, dict(metric.get_name_value())
    )
    found = net.score(ArrayIter(x, y, batch_size=50), eval_metric=metrics())
    np.testing.assert_allclose(found, list(scores.values()), rtol=0, atol=1e-6)


def test_batch_norm_on_one_device_equals_stock_module():
    x, y = nets.samples(64, (1, 8, 8))
    net = fit(nets.conv_bn(), x, y, batch=16, epochs=5)
    wanted, _ = module_after(nets.conv_bn(), x, y, 16, 5, "acc")
    assert_close({**net.arg_params, **net.aux_params}, wanted)


# --- n rows in, n rows out (point 5) -------------------------------------------------------------


@pytest.fixture(scope="module")
def known_net():
    args, _ = nets.params(nets.mlp(), data=(1, 10))
    return lambda devices: FeedForward(
        nets.mlp(), ctx=CPUS[:devices], arg_params=args, aux_params={}, numpy_batch_size=16
    )


def as_array(x, y):
    return x, y


def as_padded_iterator(x, y):
    return mx.io.NDArrayIter(x, y, 16, last_batch_handle="pad"), None


def scores_of(probabilities, y):
    """Accuracy, cross-entropy and top-2 in NumPy."""
    rows, labels = np.arange(len(y)), y.astype(int)
    own = probabilities[rows, labels]
    best = np.argsort(probabilities, axis=1)[:, -2:]
    return [
        np.mean(probabilities.argmax(axis=1) == labels),
        -np.log(own + 1e-12).mean(),
        np.mean((best == labels[:, None]).any(axis=1)),
    ]


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("given", [as_array, as_padded_iterator])
def test_n_rows_in_are_n_rows_out_in_order_and_score_as_in_numpy(known_net, given, devices):
    net = known_net(devices)
    for n in range(1, 34):
        x, y = nets.samples(n)
        wanted = nets.mlp_outputs(net.arg_params, x)
        X, labels = given(x, y)
        found = net.predict(X)
        assert found.shape == (n, 4)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6, err_msg=f"n={n}")
        metric = [*(mx.metric.create(m) for m in ("acc", "ce")), mx.metric.TopKAccuracy(2)]
        found = net.score(X, labels, eval_metric=metric)
        np.testing.assert_allclose(found, scores_of(wanted, y), rtol=0, atol=1e-6)
        assert [m.num_inst for m in metric] == [n] * 3


def test_padding_over_several_slices_counts_nowhere(known_net):
    x, y = nets.samples(17)
    data = mx.io.NDArrayIter(x, y, 16, last_batch_handle="pad")
    last = list(data)[-1]
    assert last.pad == 15  # on three devices all of two slices and most of the first
    metric = mx.metric.create("ce")
    known_net(3).score(data, eval_metric=metric)
    assert metric.num_inst == 17


def test_predict_returns_data_and_labels_of_the_real_rows(known_net):
    x, y = nets.samples(21)
    found, data, label = known_net(2).predict(as_padded_iterator(x, y)[0], return_data=True)
    np.testing.assert_array_equal(data, x)
    np.testing.assert_array_equal(label, y)
    np.testing.assert_array_equal(found, known_net(2).predict(x))


# --- One number for BatchNorm (point 6) ----------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("kvstore", [None, "local", "device"])
def test_validation_during_fit_is_the_score_after_and_after_reloading(devices, kvstore, tmp_path):
    x, y = nets.samples(50, (1, 8, 8))
    evaluated = ArrayIter(*nets.samples(45, (1, 8, 8), seed=3), batch_size=10)
    net = fit(
        nets.conv_bn(),
        x,
        y,
        devices,
        kvstore,
        batch=16,
        epochs=3,
        eval_data=evaluated,
        eval_metric=["acc", "ce"],
    )
    during = [net.history[-1][f"val_{name}"] for name in ("accuracy", "cross-entropy")]
    assert net.score(evaluated, eval_metric=["acc", "ce"]) == during
    net.save(tmp_path / "net", 3)
    again = FeedForward.load(tmp_path / "net", 3, ctx=CPUS[:devices])
    assert again.score(evaluated, eval_metric=["acc", "ce"]) == during
    one = FeedForward.load(tmp_path / "net", 3, ctx=mx.cpu(0))
    np.testing.assert_allclose(
        one.score(evaluated, eval_metric=["acc", "ce"]), during, rtol=0, atol=1e-6
    )
