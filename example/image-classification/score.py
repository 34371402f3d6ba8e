"""Score a saved model on a RecordIO file, or on the embedded digits."""

import sys
import time

try:
    from common import cli, images, saved

    import mxloop
    from mxloop import mx
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)


def parse(argv=None):
    parser = cli.Parser(description=__doc__)
    saved.add_model_args(parser)
    images.add_evaluation_args(parser)
    parser.add_argument("--metrics", default="acc,ce", help="MXNet's names, with commas")
    parser.add_argument(
        "--top-k", type=cli.number(int, 0), default=5, help="also the top-k accuracy; 0: not"
    )
    return parser.parse_args(argv)


def main(args):
    model, shape = saved.load(args)
    data = images.to_evaluate(args, shape)
    best = [mx.metric.create("top_k_accuracy", top_k=args.top_k)] if args.top_k > 1 else []
    metric = mxloop.metric.create([*args.metrics.split(","), *best])
    start, counted = time.time(), []
    model.score(data, eval_metric=metric, batch_end_callback=lambda at: counted.append(at.nbatch))
    for name, value in metric.get_name_value():
        print(f"{name}={value:.6f}")
    print(f"{len(counted)} batches of {args.batch_size} in {time.time() - start:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
