"""Colour images: RecordIO files, coloured digits where there are none, and noise to time with."""

import argparse

import numpy as np
from common.cli import number

from mxloop import mx
from mxloop.data import ArrayIter, load_digits28, record_iterator
from mxloop.errors import ArgumentError

CIFAR10 = (  # in the order of its labels
    ("airplane", "automobile", "bird", "cat", "deer") + ("dog", "frog", "horse", "ship", "truck")
)
SIDE = 32
BATCHES_TO_TIME = 20
COLOURED = (
    "no --data-train: scikit-learn's digits in random colours, enlarged to 32x32; not CIFAR-10"
)


def add_image_args(parser):
    """Add the flags that say where images come from, and what becomes of them on the way."""
    group = parser.add_argument_group("images")
    group.add_argument("--data-train", help="RecordIO file, as make_rec.py packs")
    group.add_argument("--data-val", help="the same, to validate with")
    group.add_argument("--image-shape", type=shape, default="3,32,32")
    group.add_argument("--num-classes", type=number(int, 2), default=10)
    group.add_argument(
        "--num-examples", type=number(int, 1), help="in an epoch, of digits or of --benchmark"
    )
    group.add_argument(
        "--benchmark", type=int, choices=(0, 1), default=0, help="1: train on noise, for its speed"
    )
    group = parser.add_argument_group("augmentation of --data-train")
    group.add_argument("--random-crop", type=int, choices=(0, 1), default=1)
    group.add_argument("--random-mirror", type=int, choices=(0, 1), default=1)
    group.add_argument("--pad-size", type=number(int, 0), default=4, help="before a random crop")
    group.add_argument("--max-random-rotate-angle", type=number(int, 0, 180), default=0)


def add_evaluation_args(parser):
    """Add the flags that say what `to_evaluate` reads."""
    parser.add_argument("--data-val", help="RecordIO file, as make_rec.py packs")
    parser.add_argument("--image-shape", type=shape, help="if the model does not tell")
    parser.add_argument("--batch-size", type=number(int, 1), default=64)


def shape(text):
    """A type for `add_argument`: three numbers, as in '3,32,32'."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of an image, as in '3,32,32'")
    return tuple(int(part) for part in parts)


def load(args, rank=0, num_workers=1):
    """Return the iterators to train and to validate with; each worker gets its share."""
    if args.benchmark:
        return noise(args), None
    if args.data_train is None:
        return coloured(args, rank, num_workers)
    if args.data_val is None:
        raise ArgumentError("--data-train needs --data-val, a RecordIO file to validate with")
    augmentation = {
        "rand_crop": bool(args.random_crop),
        "rand_mirror": bool(args.random_mirror),
        "pad": args.pad_size,
        "max_rotate_angle": args.max_random_rotate_angle,
    }
    train = records(
        args.data_train,
        args,
        shuffle=True,
        seed=args.seed,
        part_index=rank,
        num_parts=num_workers,
        **augmentation,
    )
    if rank == 0:
        print(f"data: {args.data_train}, augmented; {args.data_val} to validate", flush=True)
    return train, records(args.data_val, args)


def normalised(pixels):
    """Pixels of shape (rows, columns, channels), 0..255 -> (channels, rows, columns), as trained.

    Colour goes from -1 to 1, as in `records`; grey, as in the embedded digits, from 0 to 1.
    """
    scaled = pixels / 255 if pixels.shape[2] == 1 else (pixels - 128.0) / 128
    return scaled.transpose(2, 0, 1).astype("float32")


def records(path, args, **settings):
    """Images of a RecordIO file as the network sees them: resized, and from -1 to 1."""
    return record_iterator(
        path,
        args.image_shape,
        args.batch_size,
        resize=max(args.image_shape[1:]),
        mean_r=128,
        mean_g=128,
        mean_b=128,
        scale=1 / 128,
        **settings,
    )


def coloured(args, rank=0, num_workers=1):
    """The embedded digits in colour, which are there without a file."""
    check_fallback(args)
    (x, y), test = (coloured_digits(*split, seed) for seed, split in enumerate(load_digits28()))
    mine = slice(rank, args.num_examples, num_workers)
    train = ArrayIter(x[mine], y[mine], args.batch_size, shuffle=True, seed=args.seed)
    if rank == 0:
        print(
            f"data: {COLOURED}; {train.num_data} to train with, {len(test[0])} to validate",
            flush=True,
        )
    return train, ArrayIter(*test, args.batch_size)


def to_evaluate(args, image_shape):
    """Return an iterator over --data-val, or over the embedded digits that fit the network."""
    if args.data_val is not None:
        args.image_shape = image_shape
        return records(args.data_val, args)
    x, y = load_digits28()[1]
    if image_shape == (3, SIDE, SIDE):
        x, y = coloured_digits(x, y, 1)
    if image_shape != x.shape[1:]:
        raise ArgumentError(
            f"the network takes images of {image_shape}, and the embedded digits are of "
            f"{x.shape[1:]}; name a RecordIO file by --data-val"
        )
    print(f"data: no --data-val: the {len(x)} embedded digits that no example trains on")
    return ArrayIter(x, y, args.batch_size)


def check_fallback(args):
    if args.image_shape != (3, SIDE, SIDE) or args.num_classes < 10:
        raise ArgumentError(
            "without --data-train there are digits of 10 classes and shape 3,32,32 alone; leave "
            "--image-shape and --num-classes as they are, or name a file"
        )


def coloured_digits(x, y, seed):
    """Digits in a random light colour on a random dark one, from -1 to 1: (n, 3, 32, 32)."""
    random = np.random.RandomState(seed)
    ink = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="constant")
    light, dark = random.uniform(0, 1, (2, len(x), 3, 1, 1))
    return (ink * light + (ink - 1) * dark).astype("float32"), y


def noise(args):
    """One batch of noise, again and again: the speed of training without that of reading."""
    examples = args.num_examples or BATCHES_TO_TIME * args.batch_size
    return Repeated(args.image_shape, args.num_classes, args.batch_size, examples, args.seed)


class Repeated(mx.io.DataIter):
    """The same random batch, as often as an epoch of so many examples has batches."""

    def __init__(self, image_shape, num_classes, batch_size, num_examples, seed):
        super().__init__(batch_size)
        random = np.random.RandomState(seed)
        images = random.uniform(-1, 1, (batch_size, *image_shape)).astype("float32")
        labels = random.randint(0, num_classes, batch_size).astype("float32")
        self.once = ArrayIter(images, labels, batch_size)
        self.batch = next(self.once)
        self.length = max(1, num_examples // batch_size)
        self.position = 0

    provide_data = property(lambda self: self.once.provide_data)
    provide_label = property(lambda self: self.once.provide_label)

    def __len__(self):
        return self.length

    def reset(self):
        self.position = 0

    def next(self):
        if self.position == self.length:
            raise StopIteration
        self.position += 1
        return self.batch
