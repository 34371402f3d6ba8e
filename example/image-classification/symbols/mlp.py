"""A multilayer perceptron: 784 pixels, layers of 128 and 64, one score a class."""

from mxloop import mx


def get_symbol(num_classes, dtype="float32", **kwargs):
    """Return the network for images of any one size.

    Parameters
    ----------
    num_classes : int
    dtype : {'float32', 'float16', 'float64'}
        What the layers compute in; data, softmax and loss are float32.
    **kwargs
        Settings of other networks, which do not concern this one.
    """
    net = mx.sym.Cast(mx.sym.Flatten(mx.sym.var("data")), dtype=dtype)
    for number, width in enumerate((128, 64), start=1):
        net = mx.sym.FullyConnected(net, num_hidden=width, name=f"fc{number}")
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{number}")
    net = mx.sym.FullyConnected(net, num_hidden=num_classes, name="fc3")
    return mx.sym.SoftmaxOutput(mx.sym.Cast(net, dtype="float32"), name="softmax")
