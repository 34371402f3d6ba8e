"""Small networks, data for them, and the oracles that tests compare with."""

import numpy as np

from mxloop.compat import mx
from mxloop.errors import MXLoopError

CPUS = [mx.cpu(i) for i in range(4)]


def mlp(widths=(16,), classes=4, act="tanh", head=True):
    net = mx.sym.Flatten(mx.sym.var("data"))
    for i, width in enumerate(widths, start=1):
        net = mx.sym.FullyConnected(net, num_hidden=width, name=f"fc{i}")
        net = mx.sym.Activation(net, act_type=act, name=f"act{i}")
    net = mx.sym.FullyConnected(net, num_hidden=classes, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax") if head else net


def lenet(classes=4):
    """LeNet with fewer maps, for images of 1x12x12."""
    net = mx.sym.var("data")
    for i, maps in enumerate((4, 8), start=1):
        net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=maps, name=f"conv{i}")
        net = mx.sym.Activation(net, act_type="tanh")
        net = mx.sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2))
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=16, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=classes, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def conv_bn(classes=4):
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=6, name="conv1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn1")
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=6, name="conv2")
    net = mx.sym.BatchNorm(net, fix_gamma=False, momentum=0.8, name="bn2")
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=classes, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def samples(n, shape=(10,), classes=4, seed=0):
    """Rows that can be told apart by class, so that training moves every parameter."""
    random = np.random.RandomState(seed)
    centres = np.random.RandomState(99).normal(size=(classes, *shape))
    y = random.randint(0, classes, n)
    x = 0.5 * centres[y] + random.normal(size=(n, *shape))
    return x.astype("float32"), y.astype("float32")


def params(symbol, seed=1, scale=0.3, **shapes):
    """The same parameters at every call, as (arg_params, aux_params)."""
    random = np.random.RandomState(seed)
    arg_shapes, _, aux_shapes = symbol.infer_shape(**shapes)
    args = {
        name: mx.nd.array(random.normal(scale=scale, size=shape))
        for name, shape in zip(symbol.list_arguments(), arg_shapes)
        if name not in shapes and not name.endswith("label")
    }
    aux = {
        name: mx.nd.ones(shape) if name.endswith("var") else mx.nd.zeros(shape)
        for name, shape in zip(symbol.list_auxiliary_states(), aux_shapes)
    }
    return args, aux


def batches(x, y, size):
    """Batches of `size` rows, the last one as short as it comes."""
    for start in range(0, len(x), size):
        yield batch(x[start : start + size], y[start : start + size])


def batch(x, y=None, pad=0, **keywords):
    label = None if y is None else [mx.nd.array(y, dtype=y.dtype)]
    return mx.io.DataBatch([mx.nd.array(x, dtype=x.dtype)], label, pad=pad, **keywords)


class Described:
    """What a manager wants to know of an iterator."""

    def __init__(self, data, label=(), **more):
        self.provide_data = [desc if isinstance(desc, tuple) else desc for desc in data]
        self.provide_label = list(label)
        self.__dict__.update(more)


def described(rows, shape=(10,), label="softmax_label"):
    return Described([("data", (rows, *shape))], [(label, (rows,))])


def fresh_outputs(symbol, arg_params, aux_params, inputs, is_train=False):
    """What a stock executor, bound for this one call, makes of the inputs."""
    shapes = {name: value.shape for name, value in inputs.items()}
    executor = symbol.simple_bind(mx.cpu(0), grad_req="write", **shapes)
    executor.copy_params_from(arg_params, aux_params)
    executor.forward(is_train=is_train, **{n: mx.nd.array(v) for n, v in inputs.items()})
    return [output.asnumpy() for output in executor.outputs]


def mlp_outputs(arg_params, x, layers=("fc1",)):
    """The outputs of `mlp` in NumPy."""
    value = x.reshape(len(x), -1).astype("float64")
    for name in layers:
        value = np.tanh(dense(arg_params, name, value))
    value = dense(arg_params, "out", value)
    value = np.exp(value - value.max(axis=1, keepdims=True))
    return value / value.sum(axis=1, keepdims=True)


def dense(arg_params, name, value):
    weight, bias = arg_params[f"{name}_weight"].asnumpy(), arg_params[f"{name}_bias"].asnumpy()
    return value @ weight.T.astype("float64") + bias


def numpy_of(arrays):
    return {name: array.asnumpy() for name, array in arrays.items()}


def assert_equal(found, wanted):
    """Dicts of arrays are equal to the bit."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(_numpy(found[name]), _numpy(wanted[name]), err_msg=name)


def assert_close(found, wanted, atol=1e-6):
    """Dicts of arrays are equal within `atol`, and finite."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert np.isfinite(_numpy(wanted[name])).all(), name
        np.testing.assert_allclose(
            _numpy(found[name]), _numpy(wanted[name]), rtol=0, atol=atol, err_msg=name
        )


def _numpy(value):
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else np.asarray(value)


def one_line(caught):
    """The message of a caught error, which must be one short line of mxloop's own."""
    message = str(caught.value)
    assert isinstance(caught.value, MXLoopError)
    assert "\n" not in message and len(message) <= 250, message
    return message
