"""optimizer.py: an object means what its name means, for every optimizer of MXNet."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal, one_line

from mxloop import FeedForward, optimizer
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError

PLACES = [(1, None), (2, None), (2, "local"), (3, "device")]
# GroupAdaGrad takes row-sparse embeddings only; SGLD draws random numbers, and has its own test.
REGISTRY = sorted(set(mx.optimizer.Optimizer.opt_registry) - {"groupadagrad", "sgld"})
RATE = {"learning_rate": 0.01}
# MXNet's own Test optimizer climbs, at a rate of 1, where rounding soon grows beyond any bound.
EPOCHS = {"test": 1}


def fit(settings, devices=1, kvstore=None, net=None, epochs=3, rows=45, **more):
    net = nets.mlp() if net is None else net
    x, y = nets.samples(rows)
    args, _ = nets.params(net, data=(16, 10))
    model = FeedForward(net, CPUS[:devices], num_epoch=epochs, arg_params=args, **settings)
    return model.fit(ArrayIter(x, y, batch_size=16), kvstore=kvstore, **more)


def start():
    return nets.params(nets.mlp(), data=(16, 10))[0]


def moved(model, name):
    return np.abs(model.arg_params[name].asnumpy() - start()[name].asnumpy()).max()


# --- Every optimizer -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_one_device():
    return {name: fit_by_name(name).arg_params for name in REGISTRY}


def fit_by_name(name, *where):
    return fit({"optimizer": name, **RATE}, *where, epochs=EPOCHS.get(name, 3))


@pytest.mark.parametrize("devices, kvstore", PLACES[1:])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_optimizer_learns_the_same_on_several_devices(name, devices, kvstore, on_one_device):
    found = fit_by_name(name, devices, kvstore)
    assert_close(found.arg_params, on_one_device[name])
    assert max(moved(found, weight) for weight in start()) > 1e-4


@pytest.mark.parametrize("name", REGISTRY)
def test_every_optimizer_equals_stock_module_on_one_device(name):
    x, y = nets.samples(48)
    module = mx.mod.Module(nets.mlp())
    module.fit(
        mx.io.NDArrayIter(x, y, 16),
        num_epoch=3,
        optimizer=name,
        optimizer_params=RATE,
        arg_params=start(),
        kvstore=None,
    )
    found = fit({"optimizer": name, **RATE}, rows=48)
    assert_close(found.arg_params, module.get_params()[0])


@pytest.mark.parametrize("name", REGISTRY)
def test_an_object_means_what_its_name_means(name, on_one_device):
    made = mx.optimizer.create(name, **RATE)
    found = fit({"optimizer": made}, epochs=EPOCHS.get(name, 3))
    assert_equal(found.arg_params, on_one_device[name])
    assert made.rescale_grad == 1


@pytest.mark.parametrize("name", ["sgld", "nadam"])
@pytest.mark.parametrize("devices, kvstore", PLACES[1:])
def test_replicas_stay_equal_whatever_the_optimizer_draws_or_counts(name, devices, kvstore):
    replicas = []

    def look(param):
        arrays = param.locals["executor_manager"].param_arrays
        replicas.extend([array.asnumpy() for array in on_devices] for on_devices in arrays)

    fit({"optimizer": name, **RATE}, devices, kvstore, epochs=1, batch_end_callback=look)
    assert len(replicas) == 3 * 4
    for first, *others in replicas:
        for other in others:
            np.testing.assert_array_equal(other, first)


# --- Multipliers and weight decay ----------------------------------------------------------------


def frozen_by_attribute():
    weight = mx.sym.var("fc1_weight", lr_mult=0.0)
    net = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=16, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=4, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def sgd(kind, **multipliers):
    if kind == "name":
        return {"optimizer": "sgd", "learning_rate": 0.1}
    made = mx.optimizer.SGD(learning_rate=0.1)
    made.set_lr_mult(multipliers)
    return {"optimizer": made}


@pytest.mark.parametrize("devices, kvstore", PLACES)
@pytest.mark.parametrize("kind", ["name", "object"])
def test_a_rate_multiplier_of_zero_in_the_network_freezes(kind, devices, kvstore):
    found = fit(sgd(kind), devices, kvstore, net=frozen_by_attribute())
    assert moved(found, "fc1_weight") == 0
    assert moved(found, "fc1_bias") > 1e-3 and moved(found, "out_weight") > 1e-3


@pytest.mark.parametrize("devices, kvstore", PLACES)
def test_a_rate_multiplier_of_zero_in_the_optimizer_freezes(devices, kvstore):
    found = fit(sgd("object", fc1_weight=0, out_bias=0), devices, kvstore)
    assert moved(found, "fc1_weight") == moved(found, "out_bias") == 0
    assert moved(found, "fc1_bias") > 1e-3 and moved(found, "out_weight") > 1e-3


def test_a_multiplier_for_an_unknown_parameter_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        fit(sgd("object", fc1_wieght=0))
    assert "fc1_weight" in one_line(caught)


def decayed(kind, devices, kvstore, **multipliers):
    """How much of each parameter is left where there is decay alone, without gradients."""
    settings = {"learning_rate": 0.5, "wd": 0.5, "rescale_grad": 1e-30}
    if kind == "object":
        made = mx.optimizer.SGD(**settings)
        made.set_wd_mult(multipliers)
        settings = {"optimizer": made}
    found = fit(settings, devices, kvstore, epochs=1).arg_params
    args = start()
    return {name: (found[name] / args[name]).asnumpy() for name in args}


@pytest.mark.parametrize("devices, kvstore", PLACES)
@pytest.mark.parametrize("kind", ["name", "object"])
def test_biases_do_not_decay_and_weights_do(kind, devices, kvstore):
    for name, left in decayed(kind, devices, kvstore).items():
        wanted = 1 if name.endswith("bias") else 0.75**3
        np.testing.assert_allclose(left, wanted, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("devices, kvstore", PLACES)
def test_decay_multipliers_of_the_user_are_kept(devices, kvstore):
    left = decayed("object", devices, kvstore, fc1_weight=0, out_bias=2)
    np.testing.assert_allclose(left["fc1_weight"], 1, rtol=1e-5)
    np.testing.assert_allclose(left["out_bias"], 0.5**3, rtol=1e-5)
    np.testing.assert_allclose(left["out_weight"], 0.75**3, rtol=1e-5)


# --- Scale ---------------------------------------------------------------------------------------


def sum_of_gradients(net, args, x, y):
    one = net.simple_bind(mx.cpu(0), data=x.shape)
    one.copy_params_from(args)
    one.forward(is_train=True, data=mx.nd.array(x), softmax_label=mx.nd.array(y))
    one.backward()
    return {name: one.grad_dict[name].asnumpy() for name in args}


@pytest.mark.parametrize("devices, kvstore", PLACES)
@pytest.mark.parametrize("kind", ["name", "object"])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_a_step_is_the_mean_over_real_samples_or_the_sum_times_the_scale(
    scale, kind, devices, kvstore
):
    x, y = nets.samples(13)
    settings = {"learning_rate": 0.1, "wd": 0}
    if scale is not None:
        settings["rescale_grad"] = scale
    if kind == "object":
        settings = {"optimizer": mx.optimizer.SGD(**settings)}
    model = FeedForward(nets.mlp(), CPUS[:devices], num_epoch=1, arg_params=start(), **settings)
    model.fit(ArrayIter(x, y, batch_size=16, last_batch="pad"), kvstore=kvstore)
    gradients = sum_of_gradients(nets.mlp(), start(), x, y)
    wanted = {
        name: value.asnumpy() - 0.1 * (scale or 1 / 13) * gradients[name]
        for name, value in start().items()
    }
    assert_close(model.arg_params, wanted)


# --- States --------------------------------------------------------------------------------------


def test_states_travel_by_name_to_any_number_of_devices():
    x = mx.nd.array([1.0, 2.0])
    names = ["a", "b"]

    def updater_of(num_replica, on_kvstore=False):
        updater = mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.1))
        return updater, optimizer.keys_of(names, num_replica, on_kvstore)

    first, keys = updater_of(2)
    weights = {name: x.copy() for name in names}
    for name in names:
        first(keys[name], x, weights[name])
    states = optimizer.get_states(first, keys)
    assert {name: number for name, (_, number) in states.items()} == {"a": 1, "b": 1}
    for num_replica, on_kvstore in ((1, False), (3, False), (1, True)):
        second, other_keys = updater_of(num_replica, on_kvstore)
        optimizer.set_states(second, other_keys, states, CPUS[:num_replica])
        found, wanted = weights["b"].copy(), weights["b"].copy()
        second(other_keys["b"], x, found)
        copied, same_keys = updater_of(2)
        optimizer.set_states(copied, same_keys, optimizer.get_states(first, keys), CPUS[:2])
        copied(same_keys["b"], x, wanted)
        np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())
    first(keys["b"], x, weights["b"])
    np.testing.assert_array_equal(found.asnumpy(), weights["b"].asnumpy())


def test_taken_states_do_not_change_any_more():
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
    keys = optimizer.keys_of(["a"], 1, False)
    weight = mx.nd.ones((2,))
    updater(0, weight, weight)
    states = optimizer.get_states(updater, keys)
    before = states["a"][0].asnumpy()
    updater(0, weight, weight)
    np.testing.assert_array_equal(states["a"][0].asnumpy(), before)


# --- What makes an optimizer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"optimizer": "sdg"}, "sgd"),
        ({"optimizer": "sgd", "momentun": 0.9}, "momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ({"optimizer": mx.optimizer.SGD(), "momentum": 0.9}, "momentum"),
        ({"num_epochs": 3}, "num_epochs"),
    ],
)
def test_an_optimizer_that_cannot_be_is_one_line(settings, text):
    with pytest.raises(ArgumentError) as caught:
        FeedForward(nets.mlp(), **settings)
    assert text in one_line(caught)


@pytest.mark.parametrize("value", [None, 3, mx.optimizer.SGD])
def test_an_optimizer_of_another_kind_is_one_line(value):
    with pytest.raises(ArgumentTypeError) as caught:
        FeedForward(nets.mlp(), optimizer=value)
    one_line(caught)


def test_names_of_optimizers_are_read_in_any_case():
    assert_equal(fit({"optimizer": "SGD", **RATE}).arg_params, fit(RATE).arg_params)
