"""The networks of `nets.py` as a Symbol, as a Gluon block and as a PyTorch module."""

from typing import Any, Sequence

from nets import (
    NORM_EPSILON,
    NORM_MOMENTUM,
    Activation,
    Conv,
    Dense,
    Flatten,
    GlobalPool,
    MaxPool,
    Net,
    Norm,
    Residual,
)

NORM = {"eps": NORM_EPSILON, "momentum": NORM_MOMENTUM}

# --- Symbol -------------------------------------------------------------------------------------


def symbol(mx: Any, net: Net) -> Any:
    """The network as a Symbol that ends in a SoftmaxOutput."""
    out = _chain(mx.sym, mx.sym.Variable("data"), net.layers)
    return mx.sym.SoftmaxOutput(out, name="softmax")


def _chain(sym, value, layers):
    for layer in layers:
        value = SYMBOLS[type(layer)](sym, value, layer)
    return value


def _residual(sym, value, layer):
    both = _chain(sym, value, layer.main) + _chain(sym, value, layer.shortcut)
    return sym.Activation(both, act_type="relu")


SYMBOLS = {
    Dense: lambda sym, x, a: sym.FullyConnected(x, num_hidden=a.outputs),
    Conv: lambda sym, x, a: sym.Convolution(
        x,
        num_filter=a.outputs,
        kernel=(a.kernel, a.kernel),
        stride=(a.stride, a.stride),
        pad=(a.pad, a.pad),
        no_bias=not a.bias,
    ),
    Norm: lambda sym, x, a: sym.BatchNorm(x, fix_gamma=False, **NORM),
    Activation: lambda sym, x, a: sym.Activation(x, act_type=a.kind),
    MaxPool: lambda sym, x, a: sym.Pooling(
        x, pool_type="max", kernel=(a.size, a.size), stride=(a.size, a.size)
    ),
    GlobalPool: lambda sym, x, a: sym.Pooling(x, pool_type="avg", kernel=(1, 1), global_pool=True),
    Flatten: lambda sym, x, a: sym.Flatten(x),
    Residual: _residual,
}

# --- Gluon --------------------------------------------------------------------------------------


def gluon(mx: Any, net: Net) -> Any:
    """The network as a Gluon block that gives scores, its loss being apart."""
    return _gluon_chain(mx.gluon.nn, net.layers)


def _gluon_chain(nn, layers):
    chain = nn.HybridSequential()
    for layer in layers:
        chain.add(GLUON[type(layer)](nn, layer))
    return chain


def _gluon_residual(nn, layer):
    class Block(nn.HybridSequential):
        def __init__(self):
            super().__init__()
            self.add(_gluon_chain(nn, layer.main), _gluon_chain(nn, layer.shortcut))

        def hybrid_forward(self, F, x):
            main, shortcut = self._children.values()
            return F.Activation(main(x) + (shortcut(x) if layer.shortcut else x), act_type="relu")

    return Block()


GLUON = {
    Dense: lambda nn, a: nn.Dense(a.outputs, in_units=a.inputs),
    Conv: lambda nn, a: nn.Conv2D(
        a.outputs, a.kernel, a.stride, a.pad, in_channels=a.inputs, use_bias=a.bias
    ),
    Norm: lambda nn, a: nn.BatchNorm(
        in_channels=a.channels, epsilon=NORM["eps"], momentum=NORM["momentum"]
    ),
    Activation: lambda nn, a: nn.Activation(a.kind),
    MaxPool: lambda nn, a: nn.MaxPool2D(a.size, a.size),
    GlobalPool: lambda nn, a: nn.GlobalAvgPool2D(),
    Flatten: lambda nn, a: nn.Flatten(),
    Residual: _gluon_residual,
}

# --- PyTorch ------------------------------------------------------------------------------------


def torch(framework: Any, net: Net) -> Any:
    """The network as a PyTorch module that gives scores."""
    return _torch_chain(framework.nn, net.layers)


def _torch_chain(nn: Any, layers: Sequence[Any]) -> Any:
    return nn.Sequential(*[TORCH[type(layer)](nn, layer) for layer in layers])


def _torch_residual(nn, layer):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.shortcut = (
                _torch_chain(nn, layer.main),
                _torch_chain(nn, layer.shortcut),
            )

        def forward(self, x):
            return nn.functional.relu(self.main(x) + self.shortcut(x))

    return Block()


TORCH = {
    Dense: lambda nn, a: nn.Linear(a.inputs, a.outputs),
    Conv: lambda nn, a: nn.Conv2d(a.inputs, a.outputs, a.kernel, a.stride, a.pad, bias=a.bias),
    Norm: lambda nn, a: nn.BatchNorm2d(a.channels, NORM["eps"], 1 - NORM["momentum"]),
    Activation: lambda nn, a: {"relu": nn.ReLU, "tanh": nn.Tanh}[a.kind](),
    MaxPool: lambda nn, a: nn.MaxPool2d(a.size),
    GlobalPool: lambda nn, a: nn.AdaptiveAvgPool2d(1),
    Flatten: lambda nn, a: nn.Flatten(),
    Residual: _torch_residual,
}
