"""LeNet: two convolutions and two full layers.

LeCun, Bottou, Bengio and Haffner: Gradient-based learning applied to document recognition (1998),
here with more maps, as is usual in MXNet's examples.
"""

from mxloop import mx


def get_symbol(num_classes, dtype="float32", **kwargs):
    """Return the network for images of 28x28 pixels, or any size from 16x16.

    Parameters
    ----------
    num_classes : int
    dtype : {'float32', 'float16', 'float64'}
        What the layers compute in; data, softmax and loss are float32.
    **kwargs
        Settings of other networks, which do not concern this one.
    """
    net = mx.sym.Cast(mx.sym.var("data"), dtype=dtype)
    for number, maps in enumerate((20, 50), start=1):
        net = mx.sym.Convolution(net, kernel=(5, 5), num_filter=maps, name=f"conv{number}")
        net = mx.sym.Activation(net, act_type="tanh", name=f"tanh{number}")
        net = mx.sym.Pooling(
            net, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{number}"
        )
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=500, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh", name="tanh3")
    net = mx.sym.FullyConnected(net, num_hidden=num_classes, name="fc2")
    return mx.sym.SoftmaxOutput(mx.sym.Cast(net, dtype="float32"), name="softmax")
