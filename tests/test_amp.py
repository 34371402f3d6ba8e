"""Mixed precision against float32, which is the oracle, to the 8 bits that bfloat16 has."""

import json
import os
import subprocess
import sys

import nets
import numpy as np
import pytest

from mxloop import DataParallelExecutorManager, FeedForward, amp, data, mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, DivergedError
from mxloop.multi_node.pipeline import PipelineFeedForward

CPUS = [mx.cpu(i) for i in range(2)]
sym = mx.sym
needs_bfloat16 = pytest.mark.skipif(
    not amp.is_there(), reason="MXNet computes in bfloat16 on CPUs with AVX-512 alone"
)


def headed(layer):
    """A convolution, one or several layers, and a product of matrices."""
    net = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=16, name="conv")
    net = sym.FullyConnected(layer(net), num_hidden=4, name="out")
    return sym.SoftmaxOutput(net, name="softmax")


def act(kind):
    return lambda net: sym.Activation(net, act_type=kind, name="act")


def pool(kind, **kwargs):
    return lambda net: sym.Pooling(net, kernel=(2, 2), pool_type=kind, name="pool", **kwargs)


def residual(net):
    more = sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=16, name="conv2")
    return net + sym.BatchNorm(more, fix_gamma=False, name="bn")


def normalised(net):
    net = sym.FullyConnected(net, num_hidden=8, flatten=False, name="conv2")
    return sym.BatchNorm(net, axis=3, fix_gamma=False, name="bn")


def joined(net):
    few = sym.Convolution(net, kernel=(1, 1), num_filter=3, name="conv2")
    return sym.concat(net, few, sym.mean(net, axis=1, keepdims=True), dim=1)


def looped(net):
    rows = sym.reshape(net, (0, 16, -1))
    step = lambda row, state: (sym.tanh(row + state[0]), [row * 0.5 + state[0]])  # noqa: E731
    start = [sym.zeros((64, 100))]
    outputs, state = sym.contrib.foreach(step, sym.transpose(rows, (1, 0, 2)), start)
    return sym.sum(outputs, axis=0) + state[0]


def shared(net):
    weight = sym.var("shared_weight")
    net = sym.FullyConnected(net, num_hidden=64, name="narrow")
    for i in range(12):
        net = sym.FullyConnected(net, weight, num_hidden=64, no_bias=True, name=f"fc{i}")
        net = sym.tanh(net)
    return net


# Where a function has a kink, a value beside it may fall to the other side: a whole gradient apart.
SMOOTH = {
    "tanh": act("tanh"),
    "sigmoid": act("sigmoid"),
    "softsign": act("softsign"),  # MXNet has no bfloat16 for this and the next five
    "prelu": lambda net: sym.LeakyReLU(net, act_type="prelu", name="prelu"),
    "sum of patches": pool("sum"),
    "deconvolution": lambda net: sym.Deconvolution(net, kernel=(2, 2), num_filter=4, name="up"),
    "dropout": lambda net: sym.Dropout(net, p=0.0),
    "a loop": looped,
    "average": pool("avg", pooling_convention="full", stride=(2, 2)),
    "global average": pool("avg", global_pool=True),
    "layer norm": lambda net: sym.LayerNorm(net, name="norm"),
    "a parameter beside": lambda net: sym.broadcast_mul(net, sym.var("g", shape=(1, 16, 1, 1))),
    "norm of the last axis": normalised,
    "residual": residual,
    "joined": joined,
    "a weight of 12 layers": shared,
}
KINKED = {
    "relu": act("relu"),
    "greatest": pool("max", stride=(2, 2)),
    "clipped": lambda net: sym.clip(net, -1, 1),
}


def batch(symbol, rows=64):
    x, y = nets.samples(rows, (3, 12, 12))
    return ArrayIter(x, y, rows), nets.params(symbol, scale=0.1, data=x.shape)


def gradients(symbol, dtype, devices=1, times=1, **kwargs):
    """The gradients of one batch, summed over devices, and the outputs."""
    train, params = batch(symbol)
    manager = DataParallelExecutorManager(symbol, CPUS[:devices], train, amp=dtype, **kwargs)
    manager.set_params(*params)
    manager.load_data_batch(next(train))
    for _ in range(times):
        manager.forward(is_train=True)
        manager.backward()
    sums = {
        name: sum(grad.asnumpy() for grad in grads)
        for name, grads in zip(manager.param_names, manager.grad_arrays)
    }
    return sums, manager.get_outputs()[0].asnumpy()


def apart(found, wanted):
    """Relative distance of two arrays, as vectors."""
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def check_gradients(symbol, tolerance):
    found, outputs = gradients(symbol, "bfloat16")
    wanted, expected = gradients(symbol, None)
    np.testing.assert_allclose(outputs, expected, atol=0.02)
    assert not np.array_equal(outputs, expected)  # it did compute in something else
    assert {grad.dtype for grad in found.values()} == {np.dtype("float32")}
    together = [np.concatenate([g[name].ravel() for name in wanted]) for g in (found, wanted)]
    assert apart(*together) < tolerance
    for name, grad in wanted.items():  # small ones are small differences of large numbers
        off = np.linalg.norm(found[name] - grad)
        assert off < 2 * tolerance * np.linalg.norm(grad) + 1e-3 * np.linalg.norm(together[1]), name


@needs_bfloat16
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_float32_to_rounding(name):
    check_gradients(headed(SMOOTH[name]), 1e-2)


@needs_bfloat16
@pytest.mark.parametrize("name", KINKED)
def test_gradients_beside_a_kink_are_near_those_of_float32(name):
    check_gradients(headed(KINKED[name]), 0.1)


@needs_bfloat16
def test_two_devices_compute_what_one_does():
    found, wanted = (gradients(headed(act("tanh")), "bfloat16", n)[0] for n in (2, 1))
    for name, grad in wanted.items():
        assert apart(found[name], grad) < 1e-2


@needs_bfloat16
def test_gradients_that_are_added_up_add_up():
    """MXNet's own cast loses them."""
    once = gradients(headed(act("tanh")), "bfloat16")[0]
    thrice = gradients(headed(act("tanh")), "bfloat16", times=3, grad_req="add")[0]
    for name, grad in once.items():
        np.testing.assert_allclose(thrice[name], 3 * grad, 1e-5, 1e-6)


@needs_bfloat16
def test_names_and_files_know_nothing_of_casts():
    symbol = nets.conv_bn()
    low = amp.convert(symbol)
    assert low.list_arguments() == symbol.list_arguments()
    assert low.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert low.list_outputs() == symbol.list_outputs()
    assert low.tojson() == symbol.tojson()
    kinds = {
        node["name"]: node["op"] for node in json.loads(low.tojson(remove_amp_cast=False))["nodes"]
    }
    assert kinds["conv1_weight_amp_cast_bfloat16"] == "amp_cast"
    assert not [name for name in kinds if "bn1_gamma_amp" in name or "softmax_label_amp" in name]


@needs_bfloat16
def test_a_layer_that_is_an_output_keeps_its_name_and_float32():
    layer = sym.FullyConnected(sym.var("data"), num_hidden=2, name="fc")
    low = amp.convert(sym.Group([layer, sym.FullyConnected(layer, num_hidden=2, name="last")]))
    assert low.list_outputs() == ["fc_output", "last_output"]
    assert amp.kept_float32(low) == ["fc", "last"]


def digits(dtype, **kwargs):
    net = nets.mlp((128,), 10, "relu")
    return FeedForward(
        net,
        CPUS[0],
        initializer=mx.init.Xavier(),
        numpy_batch_size=50,
        learning_rate=0.1,
        momentum=0.9,
        amp=dtype,
        **kwargs,
    )


@needs_bfloat16
def test_accuracy_is_that_of_float32_within_one_percent(tmp_path):
    train, test = data.load_digits28()
    accuracy = {}
    for dtype in (None, "bfloat16"):
        model = digits(dtype, num_epoch=10).fit(*train, seed=1)
        accuracy[dtype] = model.score(*test)
    assert accuracy[None] > 0.95
    assert abs(accuracy["bfloat16"] - accuracy[None]) < 0.01
    assert {array.dtype for array in model.arg_params.values()} == {np.float32}
    outputs = model.predict(test[0])
    assert outputs.dtype == np.float32

    prefix = str(tmp_path / "digits")
    model.save(prefix, save_optimizer_states=True)
    symbol, args, aux = mx.model.load_checkpoint(prefix, 10)  # stock MXNet
    assert symbol.tojson() == model.symbol.tojson()
    assert {array.dtype for array in args.values()} == {np.float32}
    plain = FeedForward.load(prefix, 10)
    assert plain.amp is None
    np.testing.assert_allclose(plain.predict(test[0]), outputs, atol=0.03)
    assert not np.array_equal(plain.predict(test[0]), outputs)
    again = FeedForward.load(prefix, 10, amp="bfloat16")
    np.testing.assert_array_equal(again.predict(test[0]), outputs)


@needs_bfloat16
def test_normalised_networks_train_on_two_devices_and_keep_float32_statistics():
    x, y = nets.samples(256, (3, 10, 10))
    model = FeedForward(
        nets.conv_bn(), CPUS, 3, numpy_batch_size=32, learning_rate=0.05, amp="bfloat16"
    )
    model.fit(x, y, eval_data=(x, y), seed=1)
    assert model.history[-1]["val_accuracy"] == model.score(x, y) > 0.9
    assert {array.dtype for array in model.aux_params.values()} == {np.float32}


@needs_bfloat16
def test_batches_that_are_accumulated_are_one_large_one():
    x, y = nets.samples(64)
    steps = []
    for size, times in ((64, 1), (16, 4)):
        model = FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=size, amp="bfloat16")
        start = nets.params(model.symbol, data=x.shape)[0]
        model.arg_params = start
        model.fit(x, y, seed=1, accumulate=times)
        steps.append(
            {name: model.arg_params[name].asnumpy() - start[name].asnumpy() for name in start}
        )
    for name, step in steps[0].items():
        assert apart(steps[1][name], step) < 1e-2


@needs_bfloat16
def test_an_interrupted_run_resumes_to_the_bit(tmp_path):
    train, _ = data.load_digits28()
    whole = digits("bfloat16", num_epoch=3).fit(*train, seed=1)
    digits("bfloat16", num_epoch=2).fit(*train, seed=1, checkpoint=tmp_path / "run")
    resumed = digits("bfloat16", num_epoch=3)
    resumed.fit(*train, seed=1, checkpoint=tmp_path / "run", resume=True)
    for name, array in whole.arg_params.items():
        np.testing.assert_array_equal(resumed.arg_params[name].asnumpy(), array.asnumpy())


@needs_bfloat16
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_guard_names_a_gradient_that_is_not_finite(value):
    def spoil(param):
        if param.nbatch == 3:
            param.locals["executor_manager"].param_arrays[0][0][:] = value

    x, y = nets.samples(64)
    model = FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=8, amp="bfloat16")
    with pytest.raises(DivergedError, match="epoch 0.*batch 4"):
        model.fit(x, y, seed=1, batch_end_callback=spoil)


@needs_bfloat16
def test_buckets_train():
    def network(key):
        net = sym.FullyConnected(sym.var("data"), num_hidden=8, flatten=False, name="fc")
        net = sym.FullyConnected(sym.mean(net, axis=1), num_hidden=4, name="out")
        return sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    class Buckets(mx.io.DataIter):
        default_bucket_key = 6
        provide_data = [mx.io.DataDesc("data", (8, 6, 5))]
        provide_label = [mx.io.DataDesc("softmax_label", (8,))]

        def __init__(self):
            super().__init__(8)
            self.reset()

        def reset(self):
            self._left = [6, 3, 6, 3]

        def next(self):
            if not self._left:
                raise StopIteration
            length = self._left.pop()
            x, y = nets.samples(8, (length, 5), seed=length)
            return mx.io.DataBatch(
                [mx.nd.array(x)],
                [mx.nd.array(y)],
                pad=0,
                bucket_key=length,
                provide_data=[mx.io.DataDesc("data", x.shape)],
                provide_label=[mx.io.DataDesc("softmax_label", y.shape)],
            )

    found = []
    for dtype in (None, "bfloat16"):
        model = FeedForward(network, num_epoch=5, learning_rate=0.1, amp=dtype)
        model.fit(Buckets(), seed=1)
        found.append(model.arg_params["fc_weight"].asnumpy())
    assert 0 < apart(found[1], found[0]) < 0.02


@needs_bfloat16
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_stages_of_a_pipeline_compute_in_it_too(micro_batches):
    x, y = nets.samples(64)
    settings = {"num_epoch": 2, "numpy_batch_size": 16, "learning_rate": 0.1}
    found = {}
    for dtype in (None, "bfloat16"):
        model = PipelineFeedForward(
            nets.mlp((16, 16)), ["act1"], CPUS, None, micro_batches, amp=dtype, **settings
        )
        found[dtype] = model.fit(x, y, seed=1).arg_params
    for name, array in found[None].items():
        change = apart(found["bfloat16"][name].asnumpy(), array.asnumpy())
        assert 0 < change < 0.05, name


@needs_bfloat16
def test_a_monitor_reads_numbers():
    values = {}

    def note(array):
        assert array.dtype == np.float32
        return array.norm()

    monitor = mx.mon.Monitor(1, note, pattern="fc1_output.*")
    monitor.toc_print = lambda: values.update({row[1]: row[2] for row in monitor.toc()})
    x, y = nets.samples(32)
    FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=32, amp="bfloat16").fit(
        x, y, seed=1, monitor=monitor
    )
    assert float(values["fc1_output [cpu(0)]"]) > 0


@needs_bfloat16
def test_it_is_a_setting_like_the_others():
    model = digits("bfloat16")
    assert model.get_params()["amp"] == "bfloat16"
    assert model.set_params(amp=None).amp is None


@pytest.mark.parametrize("dtype", ["float16", "int8", "bf16", 16, np.float16, True])
def test_other_types_are_refused(dtype):
    with pytest.raises(ArgumentError, match=r"use 'bfloat16'"):
        FeedForward(nets.mlp(), amp=dtype)


def test_gpus_are_refused():
    with pytest.raises(ArgumentError, match=r"ctx holds gpu\(1\); .* use mx.cpu\(\)"):
        amp.check("bfloat16", [mx.gpu(1)])


def test_groups_on_several_contexts_are_refused():
    x, y = nets.samples(8)
    with pytest.raises(ArgumentError, match="group2ctxs"):
        DataParallelExecutorManager(
            nets.mlp(), CPUS[0], ArrayIter(x, y, 8), group2ctxs={"a": CPUS[1]}, amp="bfloat16"
        )


def test_a_cpu_without_it_is_told_in_one_line():
    script = "from mxloop import FeedForward, mx; FeedForward(mx.sym.var('data'), amp='bfloat16')"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DNNL_MAX_CPU_ISA": "AVX2"},  # oneDNN then uses nothing newer
        stderr=subprocess.PIPE,
        timeout=120,
    )
    assert b"ArgumentError: amp is 'bfloat16'" in found.stderr.splitlines()[-1]
    assert b"leave amp out" in found.stderr.splitlines()[-1]
