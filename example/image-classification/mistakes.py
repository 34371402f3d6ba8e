"""Draw what a saved model gets wrong: its confusion matrix, and a sheet of the wrong images."""

import sys

import numpy as np

try:
    from common import cli, images, saved

    from mxloop import plotting
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)


def parse(argv=None):
    parser = cli.Parser(description=__doc__)
    saved.add_model_args(parser)
    images.add_evaluation_args(parser)
    parser.add_argument("--most", type=cli.number(int, 1), default=40, help="images on the sheet")
    parser.add_argument("--confusion", default="confusion.png", help="where the matrix goes")
    parser.add_argument("--sheet", default="mistakes.png", help="where the wrong images go")
    return parser.parse_args(argv)


def main(args):
    model, shape = saved.load(args)
    data = images.to_evaluate(args, shape)
    probabilities, pixels, labels = model.predict(data, return_data=True)
    labels = np.asarray(labels, int)
    counts = plotting.confusion(labels, probabilities.argmax(axis=1), probabilities.shape[1])
    plotting.draw_confusion(counts, args.confusion)
    wrong = plotting.draw_mistakes(pixels, labels, probabilities, args.sheet, args.most)
    print(f"{wrong} of {len(labels)} wrong; wrote {args.confusion} and {args.sheet}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
