"""The networks, described once; `twins.py` builds them in each framework.

One description for all is what makes them equal: same layers, same padding, same parameters in the
same order.
"""

from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np

NORM_EPSILON = 1e-5
NORM_MOMENTUM = 0.9  # of the old running value, as MXNet counts; PyTorch counts the new one's share


class Dense(NamedTuple):
    inputs: int
    outputs: int


class Conv(NamedTuple):
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    pad: int = 0
    bias: bool = True


class Norm(NamedTuple):
    channels: int


class Activation(NamedTuple):
    kind: str


class MaxPool(NamedTuple):
    size: int


class GlobalPool(NamedTuple):
    pass


class Flatten(NamedTuple):
    pass


class Residual(NamedTuple):
    """The sum of two ways through, and a relu; an empty shortcut hands its input on."""

    main: tuple
    shortcut: tuple


class Net(NamedTuple):
    shape: Tuple[int, ...]
    classes: int
    layers: tuple


def mlp() -> Net:
    relu = Activation("relu")
    return Net((784,), 10, (Dense(784, 128), relu, Dense(128, 64), relu, Dense(64, 10)))


def wide() -> Net:
    """An MLP whose time is spent in matrix products."""
    relu = Activation("relu")
    return Net((784,), 10, (Dense(784, 1024), relu, Dense(1024, 1024), relu, Dense(1024, 10)))


def lenet() -> Net:
    tanh = Activation("tanh")
    maps = (Conv(1, 20, 5), tanh, MaxPool(2), Conv(20, 50, 5), tanh, MaxPool(2), Flatten())
    return Net((1, 28, 28), 10, (*maps, Dense(800, 500), tanh, Dense(500, 10)))


def resnet20() -> Net:
    """ResNet-20 for images of 32x32, with convolutions where the shape changes."""
    blocks: List[Any] = []
    inputs = 16
    for outputs in (16, 32, 64):
        for _ in range(3):
            blocks.append(_block(inputs, outputs))
            inputs = outputs
    start = (Conv(3, 16, 3, pad=1, bias=False), Norm(16), Activation("relu"))
    return Net((3, 32, 32), 10, (*start, *blocks, GlobalPool(), Flatten(), Dense(64, 10)))


def _block(inputs, outputs):
    stride = outputs // inputs
    main = (
        Conv(inputs, outputs, 3, stride, 1, bias=False),
        Norm(outputs),
        Activation("relu"),
        Conv(outputs, outputs, 3, 1, 1, bias=False),
        Norm(outputs),
    )
    shortcut = (Conv(inputs, outputs, 1, stride, bias=False), Norm(outputs)) if stride > 1 else ()
    return Residual(main, shortcut)


def softmax(classes: int = 100_000, inputs: int = 32) -> Net:
    """One layer of many classes, for the cost of a metric over them."""
    return Net((inputs,), classes, (Dense(inputs, classes),))


NETS = {"mlp": mlp, "wide": wide, "lenet": lenet, "resnet20": resnet20, "softmax": softmax}


def shapes(layers: Sequence[Any]) -> List[Tuple[str, Tuple[int, ...]]]:
    """Kind and shape of each parameter, in the order in which all frameworks list them."""
    return [entry for layer in layers for entry in _shapes_of(layer)]


def _shapes_of(layer):
    if isinstance(layer, Residual):
        return shapes([*layer.main, *layer.shortcut])
    if isinstance(layer, Norm):
        return [("gamma", (layer.channels,)), ("beta", (layer.channels,))]
    if isinstance(layer, Dense):
        return [("weight", (layer.outputs, layer.inputs)), ("bias", (layer.outputs,))]
    if isinstance(layer, Conv):
        weight = ("weight", (layer.outputs, layer.inputs, layer.kernel, layer.kernel))
        return [weight, ("bias", (layer.outputs,))] if layer.bias else [weight]
    return []


def initial(net: Net) -> List[np.ndarray]:
    """The values that every peer begins with."""
    random = np.random.RandomState(1)
    return [_value(random, kind, shape) for kind, shape in shapes(net.layers)]


def _value(random, kind, shape):
    if kind == "weight":
        bound = np.sqrt(3 / np.prod(shape[1:]))
        return random.uniform(-bound, bound, shape).astype("float32")
    return np.full(shape, float(kind == "gamma"), "float32")
