"""mxloop.model: devices, stores, optimizers, files give the numbers of one device and of stock."""

import itertools
import json

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal

from mxloop import FeedForward, load_checkpoint, model, save_checkpoint
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.executor_manager import DataParallelExecutorManager

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
FAST = [(2, None, "object"), (2, "device", "name"), (3, "local", "name"), (4, "device", "object")]
LENET_MATRIX = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in MATRIX
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


# --- The functions alone -------------------------------------------------------------------------


def by_hand(devices, kvstore, x, y, epochs=3, batch=16, settings=SGD):
    """A loop of one's own: each function of mxloop.model called on its own."""
    symbol, data = nets.mlp(), ArrayIter(x, y, batch_size=batch)
    manager = DataParallelExecutorManager(symbol, CPUS[:devices], data)
    given, _ = nets.params(symbol, data=(batch, 10))
    args, aux = model.init_params(
        symbol, data.provide_data + data.provide_label, mx.init.Uniform(0.01), given
    )
    manager.set_params(args, aux)
    store, on_store = model.create_kvstore(kvstore, devices, args)
    names = dict(enumerate(manager.param_names))
    if not on_store:
        names = {i * devices + k: name for i, name in names.items() for k in range(devices)}
    optimizer = mx.optimizer.SGD(param_idx2name=names, sym=symbol, **settings)
    if on_store:
        store.set_optimizer(optimizer)
    if store is not None:
        model.initialize_kvstore(store, manager.param_arrays, args, manager.param_names, on_store)
    updater = mx.optimizer.get_updater(optimizer)
    for _ in range(epochs):
        data.reset()
        for one in data:
            manager.load_data_batch(one)
            manager.forward(is_train=True)
            manager.backward()
            optimizer.rescale_grad = 1 / manager.num_samples
            arrays = manager.param_arrays, manager.grad_arrays
            if on_store:
                model.update_params_on_kvstore(*arrays, store, manager.param_names)
            else:
                model.update_params(*arrays, updater, devices, store, manager.param_names)
    for replicas in manager.param_arrays:
        for replica in replicas[1:]:
            np.testing.assert_array_equal(replica.asnumpy(), replicas[0].asnumpy())
    manager.copy_to(args, aux)
    return args


@pytest.mark.parametrize("on_store", ["1", "0"])
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("kvstore", [None, "local", "device"])
def test_a_loop_by_hand_equals_fit_to_the_bit(kvstore, devices, on_store, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_store)
    x, y = nets.samples(45)
    net = fit(nets.mlp(), x, y, devices, kvstore, batch=16, epochs=3)
    assert_equal(by_hand(devices, kvstore, x, y), net.arg_params)
    assert_close(net.arg_params, fit(nets.mlp(), x, y, 1, None, batch=16, epochs=3).arg_params)


def test_update_params_needs_no_kvstore_and_no_names():
    params = [
        [mx.nd.ones((2,), ctx) for ctx in CPUS[:3]],
        [mx.nd.ones((2,), ctx) for ctx in CPUS[:3]],
    ]
    grads = [[mx.nd.full((2,), i + 1, ctx) for i, ctx in enumerate(CPUS[:3])], [None] * 3]
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1, rescale_grad=0.5))
    model.update_params(params, grads, updater, 3)
    assert [param.asnumpy().tolist() for param in params[0]] == [[-2, -2]] * 3
    assert [param.asnumpy().tolist() for param in params[1]] == [[1, 1]] * 3


SMALL = {"weight": mx.nd.zeros((2, 2))}


class Large:
    size = (1 << 24) + 1


@pytest.mark.parametrize(
    "name, devices, params, kind, on_store",
    [
        (None, 1, SMALL, None, False),
        (None, 3, SMALL, None, False),
        ("local", 1, SMALL, None, False),
        ("device", 1, SMALL, None, False),
        ("local", 2, SMALL, "local", True),
        ("local", 2, {"weight": Large()}, "local", False),
        ("device", 2, {"weight": Large()}, "device", True),
        ("device", 2, SMALL, "device", True),
    ],
)
def test_create_kvstore_chooses_as_mxnet_does(name, devices, params, kind, on_store):
    store, updates = model.create_kvstore(name, devices, params)
    assert (store and store.type, updates) == (kind, on_store)
    if not isinstance(params["weight"], Large):
        stock, wanted = mx.model._create_kvstore(name, devices, params)
        assert (stock and stock.type, wanted if stock else False) == (kind, on_store)


def test_create_kvstore_takes_a_store_even_for_one_device():
    own = mx.kv.create("local")
    assert model.create_kvstore(own, 1, SMALL) == (own, True)


def test_updates_can_be_kept_off_the_kvstore(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    assert model.create_kvstore("device", 2, SMALL)[1] is False


@pytest.mark.parametrize("name", ["lcoal", "bogus", "none", "", "dist_snc", "Local"])
def test_a_kvstore_that_does_not_exist_is_one_line(name):
    with pytest.raises(ArgumentError) as caught:
        model.create_kvstore(name, 2, SMALL)
    assert repr(name) in nets.one_line(caught)


@pytest.mark.parametrize("value", [3, ["local"], object()])
def test_a_kvstore_of_another_kind_is_one_line(value):
    with pytest.raises(ArgumentTypeError) as caught:
        model.create_kvstore(value, 2, SMALL)
    nets.one_line(caught)


def test_a_dist_store_without_its_environment_is_one_line(monkeypatch):
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    with pytest.raises(StateError) as caught:
        model.create_kvstore("dist_sync", 1, SMALL)
    assert "DMLC_ROLE" in nets.one_line(caught)


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_kvstore_object_serves_two_fits(kind):
    x, y = nets.samples(45)
    store = mx.kv.create(kind)
    for seed in (0, 7):
        args, _ = nets.params(nets.mlp(), seed, data=(16, 10))
        found, wanted = (
            FeedForward(nets.mlp(), ctx=CPUS[:2], num_epoch=2, arg_params=args, **SGD).fit(
                ArrayIter(x, y, batch_size=16), kvstore=used
            )
            for used in (store, kind)
        )
        assert_equal(found.arg_params, wanted.arg_params)


# --- Initialisation ------------------------------------------------------------------------------


def test_init_params_copies_what_is_given_and_initialises_the_rest():
    weight = mx.nd.full((16, 10), 3)
    args, aux = model.init_params(
        nets.mlp(),
        [("data", (5, 10)), ("softmax_label", (5,))],
        mx.init.One(),
        {"fc1_weight": weight},
    )
    assert aux == {}
    assert {name: array.shape for name, array in args.items()} == {
        "fc1_weight": (16, 10),
        "fc1_bias": (16,),
        "out_weight": (4, 16),
        "out_bias": (4,),
    }
    assert (args["fc1_weight"].asnumpy() == 3).all() and args["fc1_weight"] is not weight
    assert (args["out_weight"].asnumpy() == 1).all() and (args["out_bias"].asnumpy() == 0).all()


def test_init_params_does_as_module_does():
    inputs = [mx.io.DataDesc("data", (8, 1, 8, 8)), mx.io.DataDesc("softmax_label", (8,))]
    module = mx.mod.Module(nets.conv_bn())
    module.bind(inputs[:1], inputs[1:])
    mx.random.seed(3)
    module.init_params(mx.init.Uniform(0.2))
    mx.random.seed(3)
    args, aux = model.init_params(nets.conv_bn(), inputs, mx.init.Uniform(0.2))
    wanted, wanted_aux = module.get_params()
    assert_equal(aux, wanted_aux)
    assert args.keys() == wanted.keys()
    for name in args:
        assert args[name].shape == wanted[name].shape
        assert np.abs(args[name].asnumpy()).max() <= 1


def test_a_variables_own_initialiser_comes_first():
    weight = mx.sym.var("out_weight", init=mx.init.Constant(7))
    net = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=4, name="out")
    args, _ = model.init_params(net, {"data": (2, 3)}, mx.init.One())
    assert (args["out_weight"].asnumpy() == 7).all()


@pytest.mark.parametrize(
    "given, text",
    [
        ({"fc9_weight": mx.nd.zeros((2,))}, "fc9_weight"),
        ({"fc1_weight": mx.nd.zeros((1, 10))}, "(1, 10)"),
    ],
)
def test_given_parameters_that_do_not_fit_are_one_line(given, text):
    inputs = {"data": (5, 10), "softmax_label": (5,)}
    with pytest.raises(DataError) as caught:
        model.init_params(nets.mlp(), inputs, mx.init.One(), given)
    assert text in nets.one_line(caught)


def test_unknown_parameters_are_left_out_on_request():
    args, _ = model.init_params(
        nets.mlp(), {"data": (5, 10)}, mx.init.One(), {"no": mx.nd.zeros((2,))}, {}, True
    )
    assert "no" not in args


# --- Going on ------------------------------------------------------------------------------------

OPTIMIZERS = [("sgd", SGD), ("adam", {"learning_rate": 0.01})]


def trained(x, y, fits, optimizer, settings):
    """One model fitted several times, as (devices, kvstore, epochs)."""
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    net = FeedForward(nets.mlp(), optimizer=optimizer, arg_params=args, **settings)
    for devices, kvstore, epochs in fits:
        net.set_params(ctx=CPUS[:devices])
        net.fit(ArrayIter(x, y, batch_size=16), kvstore=kvstore, num_epoch=epochs)
    return net


@pytest.mark.parametrize("devices, kvstore", [(1, None), (2, None), (2, "local"), (3, "device")])
@pytest.mark.parametrize("optimizer, settings", OPTIMIZERS)
def test_two_epochs_twice_are_four_epochs_to_the_bit(devices, kvstore, optimizer, settings):
    x, y = nets.samples(45)
    twice = trained(x, y, [(devices, kvstore, 2)] * 2, optimizer, settings)
    once = trained(x, y, [(devices, kvstore, 4)], optimizer, settings)
    assert_equal(twice.arg_params, once.arg_params)
    assert [row["epoch"] for row in twice.history] == [0, 1, 2, 3]
    for found, wanted in zip(twice.history, once.history):
        assert found["train_accuracy"] == wanted["train_accuracy"]


@pytest.mark.parametrize("optimizer, settings", [*OPTIMIZERS, ("nadam", {}), ("adagrad", {})])
@pytest.mark.parametrize("second", [(1, None), (3, None), (3, "local"), (4, "device")])
def test_training_goes_on_with_its_states_on_other_devices(second, optimizer, settings):
    x, y = nets.samples(45)
    moved = trained(x, y, [(2, "local", 2), (*second, 2)], optimizer, settings)
    stayed = trained(x, y, [(1, None, 4)], optimizer, settings)
    assert_close(moved.arg_params, stayed.arg_params)
    fresh = trained(x, y, [(2, "local", 2)], optimizer, settings)
    fresh.fit(ArrayIter(x, y, batch_size=16), num_epoch=1)
    fresh = fresh.arg_params["out_weight"].asnumpy()
    assert np.abs(fresh - stayed.arg_params["out_weight"].asnumpy()).max() > 1e-4


def test_a_learning_rate_schedule_goes_on_where_it_was():
    x, y = nets.samples(45)
    rates = []

    def two_fits(epochs):
        schedule = mx.lr_scheduler.FactorScheduler(step=4, factor=0.5, base_lr=0.1)
        args, _ = nets.params(nets.mlp(), data=(16, 10))
        net = FeedForward(nets.mlp(), arg_params=args, learning_rate=0.1, lr_scheduler=schedule)
        seen = []
        for n in epochs:
            net.fit(
                ArrayIter(x, y, batch_size=16),
                num_epoch=n,
                batch_end_callback=lambda p: seen.append(p.locals["optimizer"].learning_rate),
            )
        rates.append(seen)
        return net.arg_params

    assert_equal(two_fits([2, 2]), two_fits([4]))
    assert rates[0] == rates[1] and len(rates[0]) == 12 and rates[0][-1] < rates[0][0]


def test_fit_then_predict_then_fit_then_predict_uses_the_new_parameters():
    x, y = nets.samples(45)
    net = fit(nets.mlp(), x, y, 2, batch=16, epochs=1)
    for _ in range(2):
        wanted = nets.mlp_outputs(net.arg_params, x)
        np.testing.assert_allclose(net.predict(x), wanted, rtol=0, atol=1e-6)
        net.fit(ArrayIter(x, y, batch_size=16), num_epoch=1)


def test_a_plain_second_fit_begins_anew_from_the_present_parameters():
    x, y = nets.samples(45)
    net = fit(nets.mlp(), x, y, batch=16, epochs=2)
    middle = {name: array.copy() for name, array in net.arg_params.items()}
    net.fit(ArrayIter(x, y, batch_size=16))
    other = FeedForward(nets.mlp(), num_epoch=2, arg_params=middle, **SGD)
    other.fit(ArrayIter(x, y, batch_size=16))
    assert_equal(net.arg_params, other.arg_params)
    assert len(net.history) == 2


def test_an_optimizer_object_used_by_a_second_model_starts_anew():
    x, y = nets.samples(45)
    own = {"optimizer": mx.optimizer.Adam(learning_rate=0.01)}
    first = fit(nets.mlp(), x, y, 2, batch=16, epochs=2, optimizer=own)
    second = fit(nets.mlp(), x, y, 1, batch=16, epochs=2, optimizer=own)
    assert_close(second.arg_params, first.arg_params)


def test_a_reused_optimizer_object_starts_its_schedule_anew():
    x, y = nets.samples(45)
    schedule = mx.lr_scheduler.PolyScheduler(max_update=20, base_lr=0.1)
    own, rates = mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=schedule), []
    for _ in range(2):
        FeedForward(nets.mlp(), num_epoch=2, optimizer=own).fit(
            ArrayIter(x, y, batch_size=16),
            batch_end_callback=lambda param: rates.append(own.learning_rate),
        )
    assert rates[:6] == rates[6:] == [schedule(step) for step in range(1, 7)]


@pytest.mark.parametrize("begin", [2, 5])
def test_nothing_left_to_train_is_one_line(begin):
    net = FeedForward(nets.mlp(), num_epoch=2, begin_epoch=begin)
    with pytest.raises(ArgumentError) as caught:
        net.fit(*nets.samples(20))
    assert "num_epoch" in nets.one_line(caught)


def test_history_keeps_what_was_measured():
    x, y = nets.samples(45)
    net = fit(nets.mlp(), x, y, 2, batch=16, epochs=3, eval_data=(x, y), eval_metric=["acc", "ce"])
    assert [row["epoch"] for row in net.history] == [0, 1, 2]
    for row in net.history:
        assert row["samples_per_second"] > 0
        assert {"train_accuracy", "val_accuracy", "train_cross-entropy"} <= set(row)
    probabilities = nets.mlp_outputs(net.arg_params, x)
    wanted = scores_of(probabilities, y)[:2]
    found = [net.history[-1][f"val_{name}"] for name in ("accuracy", "cross-entropy")]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


# --- epoch_size ----------------------------------------------------------------------------------


class Numbered(mx.io.DataIter):
    """Notes which batches are read."""

    def __init__(self, count):
        super().__init__(4)
        self.provide_data = [mx.io.DataDesc("data", (4, 10))]
        self.provide_label = [mx.io.DataDesc("softmax_label", (4,))]
        self.count, self.at, self.read = count, 0, []

    def reset(self):
        self.at = 0

    def next(self):
        if self.at == self.count:
            raise StopIteration
        self.read.append(self.at)
        self.at += 1
        return nets.batch(*nets.samples(4, seed=self.at))


@pytest.mark.parametrize(
    "count, size, wanted",
    [
        (3, 3, [0, 1, 2] * 2),
        (2, 5, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        (7, 3, [0, 1, 2, 3, 4, 5]),
        (4, 3, [0, 1, 2, 3, 0, 1]),
        (1, 2, [0] * 4),
    ],
)
def test_an_epoch_has_exactly_its_size_wraps_and_goes_on(count, size, wanted):
    data, ends = Numbered(count), []
    FeedForward(nets.mlp(), ctx=CPUS[:2], num_epoch=2, epoch_size=size).fit(
        data, batch_end_callback=lambda param: ends.append((param.epoch, param.nbatch))
    )
    assert data.read == wanted
    assert ends == [(epoch, n + 1) for epoch in range(2) for n in range(size)]


@pytest.mark.parametrize("size", [None, 3])
def test_an_iterator_without_batches_is_one_line_and_no_endless_loop(size):
    with pytest.raises(DataError) as caught:
        FeedForward(nets.mlp(), num_epoch=2, epoch_size=size).fit(Numbered(0))
    assert "batch" in nets.one_line(caught)


# --- Inputs of all kinds -------------------------------------------------------------------------


def frames(x, y):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(x), pandas.Series(y)


def sparse(x, y):
    return pytest.importorskip("scipy.sparse").csr_matrix(x), y


INPUTS = {
    "numpy": lambda x, y: (x, y),
    "float64": lambda x, y: (x.astype("float64"), y.astype("int64")),
    "ndarray": lambda x, y: (mx.nd.array(x), mx.nd.array(y)),
    "list": lambda x, y: (x.tolist(), y.tolist()),
    "pandas": frames,
    "scipy": sparse,
    "dict": lambda x, y: ({"data": x}, {"softmax_label": y}),
    "iterator": lambda x, y: (ArrayIter(x, y, batch_size=16, shuffle=True, seed=5), None),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_of_any_kind_train_and_predict_alike(kind):
    x, y = nets.samples(45)
    args, _ = nets.params(nets.mlp(), data=(16, 10))

    def run(given):
        X, labels = given(x, y)
        net = FeedForward(
            nets.mlp(), CPUS[:2], num_epoch=2, numpy_batch_size=16, arg_params=args, **SGD
        )
        net.fit(X, labels, seed=5)
        X, labels = given(x, y)
        return net.arg_params, net.score(X, labels), net.predict(given(x, y)[0])

    found, wanted = run(INPUTS[kind]), run(INPUTS["numpy"])
    assert_equal(found[0], wanted[0])
    assert found[1] == wanted[1]
    assert sorted(found[2].tolist()) == sorted(wanted[2].tolist())


def test_stock_iterators_and_arrays_see_the_same_batches():
    x, y = nets.samples(48)
    net = fit(nets.mlp(), x, y, 2, batch=16, epochs=3)
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    other = FeedForward(nets.mlp(), CPUS[:2], num_epoch=3, arg_params=args, **SGD)
    other.fit(mx.io.NDArrayIter(x, y, 16))
    assert_equal(other.arg_params, net.arg_params)


def test_a_padded_iterator_trains_as_a_short_last_batch_does():
    x, y = nets.samples(45)
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    padded = FeedForward(nets.mlp(), CPUS[:3], num_epoch=3, arg_params=args, **SGD)
    padded.fit(mx.io.NDArrayIter(x, y, 16, last_batch_handle="pad"))
    assert_equal(padded.arg_params, fit(nets.mlp(), x, y, 3, batch=16, epochs=3).arg_params)


def test_a_network_without_labels_fits_arrays_alone():
    weight = mx.sym.var("weight", shape=(1, 10))
    wrong = mx.sym.broadcast_sub(mx.sym.var("data"), weight)
    net = mx.sym.MakeLoss(mx.sym.mean(wrong**2, axis=1), name="loss")
    x, _ = nets.samples(40)
    results = []
    for devices in (1, 2, 3):
        fitted = FeedForward(
            net, CPUS[:devices], num_epoch=60, learning_rate=1, numpy_batch_size=40
        )
        fitted.fit(x, eval_metric="loss", seed=1)
        results.append(fitted)
        np.testing.assert_allclose(
            fitted.arg_params["weight"].asnumpy()[0], x.mean(axis=0), rtol=0, atol=1e-4
        )
        loss = ((x - x.mean(axis=0)) ** 2).mean()
        np.testing.assert_allclose(fitted.history[-1]["train_loss"], loss, rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_label_is_known_by_the_loss_that_reads_it_whatever_its_name(devices):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="out")
    net = mx.sym.LinearRegressionOutput(net, mx.sym.var("target"), name="lro")
    x, y = nets.samples(45)
    fitted = FeedForward(net, CPUS[:devices], num_epoch=300, learning_rate=0.2, momentum=0.5)
    fitted.fit(x, y, eval_metric="mse", seed=1)
    assert set(fitted.arg_params) == {"out_weight", "out_bias"}
    solved, *_ = np.linalg.lstsq(np.c_[x, np.ones(45)], y, rcond=None)
    wanted = np.c_[x, np.ones(45)] @ solved
    np.testing.assert_allclose(fitted.predict(x)[:, 0], wanted, rtol=0, atol=0.01)
    np.testing.assert_allclose(
        fitted.score(x, y, "mse"), ((fitted.predict(x)[:, 0] - y) ** 2).mean(), rtol=1e-5
    )


def test_labels_under_another_name_are_one_line_that_tells_both():
    x, y = nets.samples(32)
    with pytest.raises(DataError) as caught:
        FeedForward(nets.mlp(), num_epoch=1).fit(mx.io.NDArrayIter(x, y, 16, label_name="class"))
    assert "softmax_label" in nets.one_line(caught) and "class" in nets.one_line(caught)


def test_an_autoencoder_compares_with_its_own_input():
    data = mx.sym.var("data")
    net = mx.sym.FullyConnected(mx.sym.FullyConnected(data, num_hidden=3, name="a"), num_hidden=10)
    net = mx.sym.LinearRegressionOutput(net, data, name="lro")
    x, _ = nets.samples(45)
    one, three = (
        FeedForward(net, CPUS[:n], num_epoch=3, numpy_batch_size=16, **SGD).fit(
            x, eval_metric="loss", seed=1
        )
        for n in (1, 3)
    )
    assert len(one.arg_params) == 4
    assert_close(three.arg_params, one.arg_params)


@pytest.mark.parametrize("devices, kvstore", [(2, None), (2, "local"), (3, "device")])
def test_sparse_gradients_learn_the_same_on_several_devices(devices, kvstore):
    x, (_, y) = (np.arange(45) * 7 % 20).astype("float32"), nets.samples(45)
    table = nets.samples(20, (4,))[0]

    def learn(devices, kvstore):
        weight = mx.sym.var("w")
        net = mx.sym.Embedding(mx.sym.var("data"), weight, 20, 4, sparse_grad=True)
        net = mx.sym.SoftmaxOutput(net, name="softmax")
        fitted = FeedForward(net, CPUS[:devices], num_epoch=3, arg_params={"w": table}, **SGD)
        return fitted.fit(ArrayIter(x, y, batch_size=16), kvstore=kvstore).arg_params

    found, wanted = learn(devices, kvstore), learn(1, None)
    assert_close(found, wanted)
    assert np.abs(wanted["w"].asnumpy() - table).max() > 1e-3


def test_two_inputs_come_as_a_dict():
    left = mx.sym.FullyConnected(mx.sym.var("left"), num_hidden=4, name="a")
    right = mx.sym.FullyConnected(mx.sym.var("right"), num_hidden=4, name="b")
    net = mx.sym.SoftmaxOutput(left + right, name="softmax")
    x, y = nets.samples(45)
    parts = {"left": x[:, :4], "right": x[:, 4:]}
    one, two = (
        FeedForward(net, CPUS[:n], num_epoch=3, numpy_batch_size=16, **SGD).fit(parts, y, seed=2)
        for n in (1, 2)
    )
    assert_close(two.arg_params, one.arg_params)
    args = two.arg_params
    value = nets.dense(args, "a", parts["left"]) + nets.dense(args, "b", parts["right"])
    value = np.exp(value) / np.exp(value).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(two.predict(parts), value, rtol=0, atol=1e-6)


def test_a_seed_repeats_a_run_to_the_bit():
    x, y = nets.samples(45)
    net = mx.sym.Dropout(mx.sym.var("data"), p=0.3)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=4, name="out"), name="softmax")

    def run(seed):
        mx.random.seed(np.random.randint(1000))
        fitted = FeedForward(
            net, num_epoch=3, numpy_batch_size=16, initializer=mx.init.Xavier(), **SGD
        )
        return nets.numpy_of(fitted.fit(x, y, seed=seed).arg_params)

    assert_equal(run(4), run(4))
    assert np.abs(run(4)["out_weight"] - run(5)["out_weight"]).max() > 1e-3


def test_arrays_are_shuffled_anew_every_epoch():
    x, y = nets.samples(40)
    orders = []
    FeedForward(nets.mlp(), num_epoch=3, numpy_batch_size=40).fit(
        x,
        y,
        batch_end_callback=lambda p: orders.append(p.locals["data_batch"].data[0].asnumpy()[:, 0]),
    )
    first, second, third = ([round(float(v), 5) for v in order] for order in orders)
    assert sorted(first) == sorted(second) == sorted(third)
    assert first != second != third != first


# --- Files (point 10) ----------------------------------------------------------------------------


def both_ways():
    x, y = nets.samples(40, (1, 8, 8))
    return x, fit(nets.conv_bn(), x, y, 2, batch=20, epochs=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stock_reads_what_mxloop_saves(tmp_path):
    x, net = both_ways()
    prefix = str(tmp_path / "net")
    net.save(prefix, 2)
    symbol, args, aux = mx.model.load_checkpoint(prefix, 2)
    assert symbol.tojson() == net.symbol.tojson()
    assert_equal(args, net.arg_params)
    assert_equal(aux, net.aux_params)
    stock = mx.model.FeedForward.load(prefix, 2, ctx=mx.cpu())
    np.testing.assert_allclose(stock.predict(x), net.predict(x), rtol=0, atol=1e-6)
    module = mx.mod.Module.load(prefix, 2)
    module.bind([("data", x.shape)], for_training=False)
    found = module.predict(mx.io.NDArrayIter(x, None, len(x))).asnumpy()
    np.testing.assert_allclose(found, net.predict(x), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("save", ["save_checkpoint", "feedforward", "module"])
def test_mxloop_reads_what_stock_saves(tmp_path, save):
    x, net = both_ways()
    prefix = str(tmp_path / "net")
    symbol, args, aux = net.symbol, net.arg_params, net.aux_params
    if save == "save_checkpoint":
        mx.model.save_checkpoint(prefix, 3, symbol, args, aux)
    elif save == "feedforward":
        stock = mx.model.FeedForward(symbol, num_epoch=3, arg_params=args, aux_params=aux)
        stock.save(prefix)
    else:
        module = mx.mod.Module(symbol)
        module.bind([("data", x.shape)], [("softmax_label", x.shape[:1])])
        module.set_params(args, aux)
        module.save_checkpoint(prefix, 3)
    again = FeedForward.load(prefix, 3, ctx=CPUS[:3])
    assert_equal(again.arg_params, args)
    assert_equal(again.aux_params, aux)
    np.testing.assert_allclose(again.predict(x), net.predict(x), rtol=0, atol=1e-6)
    assert again.begin_epoch == 3
    found, found_args, found_aux = load_checkpoint(prefix, 3)
    assert found.tojson() == symbol.tojson()
    assert_equal({**found_args, **found_aux}, {**args, **aux})


def as_of_version_0_8(symbol):
    """The JSON of a network as MXNet 0.8 wrote it."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        node["param"] = node.pop("attrs", {})
        node["backward_source_id"] = -1
        node["attr"] = {"lr_mult": "2"} if node["name"] == "conv1_weight" else {}
        node["inputs"] = [entry[:2] for entry in node["inputs"]]
    graph.pop("attrs"), graph.pop("node_row_ptr")
    graph["heads"] = [entry[:2] for entry in graph["heads"]]
    return json.dumps(graph)


def test_a_network_in_the_format_of_mxnet_0_8_loads(tmp_path):
    x, net = both_ways()
    save_checkpoint(tmp_path / "net", 1, net.symbol, net.arg_params, net.aux_params)
    mx.nd.save(
        str(tmp_path / "old-0001.params"),
        {
            **{f"arg:{name}": value for name, value in net.arg_params.items()},
            **{f"aux:{name}": value for name, value in net.aux_params.items()},
        },
    )
    text = as_of_version_0_8(net.symbol)
    assert "mxnet_version" not in text and '"attrs"' not in text
    (tmp_path / "old-symbol.json").write_text(text)
    old = FeedForward.load(tmp_path / "old", 1)
    np.testing.assert_array_equal(old.predict(x), FeedForward.load(tmp_path / "net", 1).predict(x))
    assert old.symbol.attr_dict()["conv1_weight"]["__lr_mult__"] == "2"


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(DataError) as caught:
        FeedForward.load(tmp_path / "none", 4)
    assert "none-symbol.json" in nets.one_line(caught)


# --- scikit-learn --------------------------------------------------------------------------------


def test_clone_keeps_the_settings_and_nothing_that_was_trained():
    base = pytest.importorskip("sklearn.base")
    x, y = nets.samples(45)
    net = FeedForward(nets.mlp(), CPUS[:2], num_epoch=2, numpy_batch_size=16, **SGD).fit(x, y)
    copied = base.clone(net)
    assert copied.arg_params is None and copied.aux_params is None and copied.history == []
    assert copied.get_params()["momentum"] == 0.9 and copied.ctx == CPUS[:2]
    assert net.get_params()["arg_params"] is None
    with pytest.raises(StateError):
        copied.predict(x)
    assert copied.set_params(momentum=0.5, num_epoch=3).get_params()["momentum"] == 0.5
    assert len(copied.fit(x, y).history) == 3


def test_a_clone_trains_as_the_original_did():
    base = pytest.importorskip("sklearn.base")
    x, y = nets.samples(45)
    net = FeedForward(nets.mlp(), num_epoch=2, numpy_batch_size=16, **SGD).fit(x, y, seed=3)
    again = base.clone(net).fit(x, y, seed=3)
    assert_equal(again.arg_params, net.arg_params)


def test_set_params_takes_effect_and_refuses_unknown_names():
    net = FeedForward(nets.mlp(), **SGD)
    with pytest.raises(ArgumentError) as caught:
        net.set_params(momentun=0.5)
    assert "momentum" in nets.one_line(caught)
    assert net.set_params(learning_rate=0.5) is net
    assert net.get_params()["learning_rate"] == 0.5
