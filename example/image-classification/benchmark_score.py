"""Measure how many images a second networks predict, on noise, for several batch sizes."""

import importlib
import sys
import time

import numpy as np

try:
    from common import cli, devices, images

    import mxloop
    from mxloop import mx
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)

WARM_UP = 3
NETWORKS = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "resnet": (3, 32, 32)}


def parse(argv=None):
    parser = cli.Parser(description=__doc__)
    devices.add_device_args(parser)
    parser.add_argument("--network", choices=NETWORKS, help="one; all by default")
    parser.add_argument("--num-layers", type=cli.number(int, 1), default=20, help="of resnet")
    parser.add_argument("--image-shape", type=images.shape, help="that usual for the network")
    parser.add_argument("--batch-sizes", type=cli.increasing, default="1,8,32")
    parser.add_argument("--num-batches", type=cli.number(int, 1), default=10)
    return parser.parse_args(argv)


def main(args):
    for name in [args.network] if args.network else NETWORKS:
        module = importlib.import_module(f"symbols.{name}")
        network = module.get_symbol(num_classes=10, num_layers=args.num_layers)
        for batch_size in args.batch_sizes:
            speed = measure(args, network, args.image_shape or NETWORKS[name], batch_size)
            print(f"network: {name}\tbatch size: {batch_size}\timages/s: {speed:.1f}", flush=True)
    return 0


def measure(args, network, shape, batch_size):
    """Return images a second, once the first batches have warmed up."""
    descs = [mx.io.DataDesc("data", (batch_size, *shape))]
    arg_params, aux_params = mxloop.model.init_params(network, descs, mx.init.Xavier())
    manager = mxloop.DataParallelExecutorManager(
        network, devices.chosen(args), mx.io.NDArrayIter(mx.nd.zeros(descs[0].shape), None)
    )
    manager.set_params(arg_params, aux_params)
    noise = np.random.RandomState(0).uniform(size=(batch_size, *shape))
    batch = mx.io.DataBatch([mx.nd.array(noise)], None)
    for number in range(WARM_UP + args.num_batches):
        if number == WARM_UP:
            start = time.time()
        manager.load_data_batch(batch)
        manager.forward(is_train=False)
        for output in manager.get_outputs():
            output.wait_to_read()
    return args.num_batches * batch_size / (time.time() - start)


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
