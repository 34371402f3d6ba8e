"""GradientClip against norms and steps in NumPy."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close

from mxloop import DataParallelExecutorManager, FeedForward
from mxloop.callback import Freeze, GradientClip
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError

RATE = 0.5
NETS = {"mlp": (nets.mlp(), (10,)), "lenet": (nets.lenet(), (1, 12, 12))}


def start(net):
    symbol, shape = NETS[net]
    return nets.params(symbol, data=(8, *shape))[0]


def fit(net, *callbacks, devices=1, kvstore=None, rows=8, **settings):
    """One step, or two where there are more than 8 rows; return by how much it moved."""
    symbol, shape = NETS[net]
    args = start(net)
    model = FeedForward(
        symbol, CPUS[:devices], 1, arg_params=args, learning_rate=RATE, wd=0.0, **settings
    )
    data = ArrayIter(*nets.samples(rows, shape), 8)
    model.fit(data, callbacks=callbacks, kvstore=kvstore)
    return {n: model.arg_params[n].asnumpy() - args[n].asnumpy() for n in args}


def gradients(net, rows=8):
    """The mean gradient of the first batch, from a stock executor."""
    symbol, shape = NETS[net]
    x, y = nets.samples(rows, shape)
    executor = symbol.simple_bind(mx.cpu(), data=x.shape, softmax_label=y.shape)
    executor.copy_params_from(start(net), {})
    executor.forward(is_train=True, data=mx.nd.array(x), softmax_label=mx.nd.array(y))
    executor.backward()
    return {n: executor.grad_dict[n].asnumpy().astype("float64") / rows for n in start(net)}


def norm(grads):
    return np.sqrt(sum((grad**2).sum() for grad in grads.values()))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("share", [0.1, 0.9, 1.1])
@pytest.mark.parametrize(
    ("devices", "kvstore"), [(1, None), (2, None), (3, "local"), (2, "device")]
)
def test_a_step_is_scaled_so_that_its_gradient_is_no_longer(net, share, devices, kvstore):
    grads = gradients(net)
    limit = share * norm(grads)
    moved = fit(net, GradientClip(limit), devices=devices, kvstore=kvstore)
    expected = {name: -RATE * min(1, share) * grad for name, grad in grads.items()}
    assert_close(moved, expected, atol=2e-6)
    if share < 1:
        assert norm(moved) == pytest.approx(RATE * limit, rel=1e-4)


def test_a_short_last_batch_is_clipped_by_its_own_mean():
    symbol, shape = NETS["mlp"]
    grads = gradients("mlp", rows=3)
    moved = fit("mlp", GradientClip(0.2 * norm(grads)), rows=3)
    assert_close(moved, {name: -RATE * 0.2 * grad for name, grad in grads.items()})


def test_a_rescaling_of_ones_own_counts():
    grads = gradients("mlp")
    moved = fit("mlp", GradientClip(0.5 * norm(grads)), rescale_grad=1.0)  # eight times as long
    assert norm(moved) == pytest.approx(RATE * 0.5 * norm(grads), rel=1e-4)


def test_zero_gradients_stay_zero():
    symbol, shape = NETS["mlp"]
    moved = fit("mlp", Freeze("*"), GradientClip(1.0))
    assert all((value == 0).all() for value in moved.values())


def test_a_store_that_updates_is_one_line():
    with pytest.raises(StateError) as caught:
        fit("mlp", GradientClip(1.0), devices=2, kvstore=mx.kv.create("local"))
    assert "kvstore" in nets.one_line(caught)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_a_norm_that_makes_no_sense_is_one_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        GradientClip(wrong)
    nets.one_line(caught)


def test_by_hand_it_is_an_attribute_of_the_update():
    from mxloop.model import Update

    manager = DataParallelExecutorManager(*NETS["mlp"][:1], CPUS[0], nets.described(8))
    update = Update(manager, mx.optimizer.SGD(learning_rate=RATE))
    assert update.can_clip
    assert update.clip_norm is None


def test_parameters_of_two_dtypes_are_clipped_together():
    net = mx.sym.broadcast_mul(mx.sym.var("data"), mx.sym.var("a_weight", shape=(1, 3)))
    net = mx.sym.Cast(net, dtype="float32")
    net = mx.sym.broadcast_mul(net, mx.sym.var("b_weight", shape=(1, 3)))
    net = mx.sym.LinearRegressionOutput(net, grad_scale=3, name="out")
    x = np.random.RandomState(0).normal(size=(4, 3)).astype("float16")
    data = mx.io.NDArrayIter(
        mx.nd.array(x, dtype="float16"), mx.nd.ones((4, 3)), 4, label_name="out_label"
    )
    one = {name: mx.nd.ones((1, 3)) for name in ("a_weight", "b_weight")}
    one["a_weight"] = one["a_weight"].astype("float16")
    model = FeedForward(net, num_epoch=1, arg_params=one, learning_rate=1.0, wd=0.0)
    model.fit(data, eval_metric="mse", callbacks=GradientClip(0.125))
    moved = {
        name: 1 - array.asnumpy().astype("float64") for name, array in model.arg_params.items()
    }
    grad = ((x.astype("float64") - 1) * x).mean(axis=0)
    np.testing.assert_allclose(norm(moved), 0.125, rtol=2e-3)
    for each in moved.values():
        np.testing.assert_allclose(each[0], grad * 0.125 / np.sqrt(2 * (grad**2).sum()), atol=1e-3)
