"""Tell what images show: the likeliest classes of each, by a saved model."""

import sys
from pathlib import Path

import numpy as np

try:
    from common import cli, images, saved

    from mxloop import mx
    from mxloop.errors import ArgumentError, DataError
    from mxloop.validation import shown
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)


def parse(argv=None):
    parser = cli.Parser(description=__doc__)
    saved.add_model_args(parser)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="PNG or JPEG file")
    parser.add_argument("--image-shape", type=images.shape, help="if the model does not tell")
    parser.add_argument("--classes", help="file with a name a line; 'cifar10'; else numbers")
    parser.add_argument("--top", type=cli.number(int, 1), default=5, help="how many to show")
    return parser.parse_args(argv)


def main(args):
    model, shape = saved.load(args)
    scores = model.predict(np.stack([read(path, shape) for path in args.images]))
    names = class_names(args.classes, scores.shape[1])
    for path, row in zip(args.images, scores):
        print(path)
        for number in np.argsort(-row, kind="stable")[: args.top]:
            print(f"  {row[number]:.4f} {names[number]}")
    return 0


def read(path, shape):
    """One image as the network sees it: the shorter side fitted, the middle cut out."""
    channels, rows, columns = shape
    try:
        image = mx.image.imdecode(Path(path).read_bytes(), flag=0 if channels == 1 else 1)
        image = mx.image.resize_short(image, max(rows, columns))
        image, _ = mx.image.center_crop(image, (columns, rows))
    except OSError as error:
        raise DataError(f"cannot read {shown(path)}: {error.strerror}") from error
    except (mx.base.MXNetError, ValueError) as error:
        raise DataError(f"{shown(path)} is no image that can be decoded") from error
    return images.normalised(image.asnumpy())


def class_names(source, count):
    """Return a name for each class."""
    if source is None:
        return [f"class {number}" for number in range(count)]
    try:
        names = images.CIFAR10 if source == "cifar10" else Path(source).read_text().split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read --classes {shown(source)}: {shown(error)}") from error
    names = [name for name in names if name]
    if len(names) != count:
        raise ArgumentError(
            f"--classes {shown(source)} has {len(names)} names, and the model has {count} classes"
        )
    return names


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
