"""Residual networks of 6n+2 layers for small images, such as 32x32 or 28x28 pixels.

He, Zhang, Ren and Sun: Deep residual learning for image recognition (2015), section 4.2, with the
blocks of their Identity mappings in deep residual networks (2016): normalise, activate, convolve.
"""

from mxloop import mx
from mxloop.errors import ArgumentError

STAGES = (16, 32, 64)


def get_symbol(num_classes, num_layers=20, dtype="float32", **kwargs):
    """Return the network.

    Parameters
    ----------
    num_classes : int
    num_layers : int
        6n+2 with n of at least 1: 8, 14, 20, 32, 44, 56, 110.
    dtype : {'float32', 'float16', 'float64'}
        What the layers compute in; data, softmax and loss are float32.
    **kwargs
        Settings of other networks, which do not concern this one.

    Raises
    ------
    ArgumentError
        If there is no such network of `num_layers`.
    """
    blocks, rest = divmod(num_layers - 2, 6)
    if rest or blocks < 1:
        raise ArgumentError(
            f"a resnet of {num_layers} layers does not exist here; num_layers must be 6n+2, as in "
            "8, 14, 20, 32, 44, 56, 110"
        )
    net = mx.sym.Cast(mx.sym.var("data"), dtype=dtype)
    net = convolution(net, STAGES[0], "conv0")
    for stage, maps in enumerate(STAGES, start=1):
        for block in range(1, blocks + 1):
            net = residual(net, maps, stage > 1 and block == 1, f"stage{stage}_block{block}")
    return head(normalise(net, "last"), num_classes)


def residual(data, maps, halve, name):
    """Two convolutions, added to their input; where sizes change, a 1x1 convolution fits it."""
    stride = (2, 2) if halve else (1, 1)
    ready = normalise(data, f"{name}_1")
    net = convolution(ready, maps, f"{name}_conv1", stride=stride)
    net = convolution(normalise(net, f"{name}_2"), maps, f"{name}_conv2")
    if halve:
        data = convolution(ready, maps, f"{name}_fit", (1, 1), stride, pad=(0, 0))
    return data + net


def normalise(data, name):
    net = mx.sym.BatchNorm(data, fix_gamma=False, eps=2e-5, momentum=0.9, name=f"{name}_bn")
    return mx.sym.Activation(net, act_type="relu", name=f"{name}_relu")


def convolution(data, maps, name, kernel=(3, 3), stride=(1, 1), pad=(1, 1)):
    # Without bias: the normalisation that follows takes the mean away again.
    return mx.sym.Convolution(
        data, num_filter=maps, kernel=kernel, stride=stride, pad=pad, no_bias=True, name=name
    )


def head(data, num_classes):
    net = mx.sym.Pooling(data, global_pool=True, pool_type="avg", kernel=(1, 1), name="pool")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=num_classes, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.Cast(net, dtype="float32"), name="softmax")
