"""A saved model, for the scripts that use one."""

from common import devices
from common.cli import number

import mxloop
from mxloop.errors import ArgumentError


def add_model_args(parser):
    """Add the flags that name a saved model and the devices to run it on."""
    parser.add_argument("--model-prefix", required=True, help="as the training script had it")
    parser.add_argument("--load-epoch", type=number(int, 0), required=True)
    devices.add_device_args(parser)


def load(args):
    """Return the model, and the shape of an image that it takes: (channels, rows, columns)."""
    model = mxloop.FeedForward.load(args.model_prefix, args.load_epoch, devices.chosen(args))
    shape = model.input_shapes.get("data") or getattr(args, "image_shape", None)
    if shape is None or len(shape) != 3:
        raise ArgumentError(
            f"{args.model_prefix} does not say what images it takes; give --image-shape 3,32,32"
        )
    return model, tuple(shape)
