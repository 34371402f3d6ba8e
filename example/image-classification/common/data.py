"""The data sets that the examples train on."""

from common.cli import number

from mxloop.data import ArrayIter, load_digits28, load_mnist
from mxloop.errors import ArgumentError

NOTES = {
    "digits": "scikit-learn's 8x8 digits, enlarged to 28x28: real handwriting, but not MNIST",
    "mnist": "MNIST",
    "fashion": "Fashion-MNIST",
}


def add_data_args(parser):
    """Add the flags that choose a data set."""
    parser.add_argument(
        "--dataset", choices=sorted(NOTES), default="digits", help="'digits' needs no files"
    )
    parser.add_argument("--data-dir", help="folder with the four files of 'mnist' or 'fashion'")
    parser.add_argument("--num-classes", type=number(int, 2), default=10)
    parser.add_argument(
        "--num-examples", type=number(int, 1), help="train on at most so many images"
    )


def load(args, rank=0, num_workers=1):
    """Return the iterators to train and to validate with; each worker gets its share."""
    (x, y), validation = load_arrays(args)
    check_classes(args, y)
    mine = slice(rank, args.num_examples, num_workers)
    train = ArrayIter(x[mine], y[mine], args.batch_size, shuffle=True, seed=args.seed)
    if rank == 0:
        counts = f"{train.num_data} images to train with, {len(validation[0])} to validate"
        print(f"data: {NOTES[args.dataset]}; {counts}", flush=True)
    return train, ArrayIter(*validation, args.batch_size)


def load_arrays(args):
    """Return ((x, y), (x, y)) to train and to validate with."""
    if args.dataset == "digits":
        return load_digits28()
    if args.data_dir is None:
        raise ArgumentError(
            f"--dataset {args.dataset} needs --data-dir, the folder with its four files; Debian's "
            "package dataset-fashion-mnist has those of 'fashion'"
        )
    return load_mnist(args.data_dir)


def check_classes(args, labels):
    highest = int(labels.max())
    if highest >= args.num_classes:
        raise ArgumentError(
            f"--num-classes {args.num_classes} is too few: the labels of {args.dataset} go from 0 "
            f"to {highest}"
        )
