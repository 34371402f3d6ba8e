"""Fine-tune a saved model: a new head for other classes, old layers at a lower rate or frozen.

Exit codes: 0 done, 1 failed or below --target-acc, 2 a mistake in the flags or an environment that
cannot do what they ask for, 130 ended by Ctrl-C, 143 by SIGTERM.
"""

import json
import logging
import sys

try:
    from common import cli, fit, images

    import mxloop
    from mxloop import mx
    from mxloop.callback import LayerRates
    from mxloop.errors import ArgumentError
    from mxloop.validation import check_known
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)

HEAD = "new_fc"


def parse(argv=None):
    parser = cli.Parser(description=__doc__.splitlines()[0])
    fit.add_fit_args(parser)
    images.add_image_args(parser)
    group = parser.add_argument_group("fine-tuning")
    group.add_argument("--pretrained", required=True, help="prefix of the saved model")
    group.add_argument("--pretrained-epoch", type=cli.number(int, 0), required=True)
    group.add_argument(
        "--layer", help="whose output the new head reads; else what the last full layer reads"
    )
    group.add_argument(
        "--base-rate", type=cli.number(float, 0), default=0.1, help="of old layers, times --lr"
    )
    group.add_argument("--freeze", metavar="LAYER", help="do not train it, nor what it reads")
    group.add_argument(
        "--freeze-statistics", action="store_true", help="nor move BatchNorm's statistics there"
    )
    group.add_argument("--target-acc", type=cli.number(float, 0, 1), default=0)
    parser.set_defaults(batch_size=32, num_epochs=3, lr=0.05, lr_step_epochs=[])
    return parser.parse_args(argv)


def main(args):
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if args.freeze_statistics and not args.freeze:
        raise ArgumentError("--freeze-statistics needs --freeze, the layer up to which to freeze")
    old, arg_params, aux_params = mxloop.load_checkpoint(args.pretrained, args.pretrained_epoch)
    network = with_new_head(old, args.layer, args.num_classes)
    frozen = parameters_under(network, args.freeze) if args.freeze else set()
    if args.freeze_statistics:
        network = with_fixed_statistics(network, frozen)
    base = {name: arg_params[name] for name in network.list_arguments() if name in arg_params}
    rates = LayerRates({name: 0 if name in frozen else args.base_rate for name in base})
    last = fit.fit(args, network, images.load, params=(base, aux_params), callbacks=[rates])
    print(f"Final validation accuracy: {last['val_accuracy']:.4f}")
    return 0 if last["val_accuracy"] >= args.target_acc else 1


def with_new_head(symbol, layer, num_classes):
    """The network up to a layer, and a new full layer and softmax on top."""
    inside = symbol.get_internals()
    if layer is None:
        full = [node["name"] for node in nodes_of(symbol) if node["op"] == "FullyConnected"]
        if not full:
            raise ArgumentError("the network has no full layer to replace; name one by --layer")
        net = inside[f"{full[-1]}_output"].get_children()[0]
    else:
        net = inside[outputs_of(symbol, layer)[-1]]
    net = mx.sym.FullyConnected(net, num_hidden=num_classes, name=HEAD)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def outputs_of(symbol, layer):
    """Names of the outputs of a layer, or of all layers whose names begin with its own and _."""
    known = [name for name in symbol.get_internals().list_outputs() if name.endswith("_output")]
    found = [name for name in known if name.startswith(f"{layer}_")]
    if not found:
        check_known(f"{layer}_output", known, "layer of the network")
    return found


def parameters_under(symbol, layer):
    """Names of the parameters of a layer, or several, and of all that it reads."""
    inside = symbol.get_internals()
    found = {name for out in outputs_of(symbol, layer) for name in inside[out].list_arguments()}
    if any(name.startswith(HEAD) for name in found):
        raise ArgumentError(f"--freeze {layer} would freeze the new head; name a layer before it")
    return found - {"data"}


def with_fixed_statistics(symbol, frozen):
    """The network whose BatchNorm layers of frozen parameters keep their saved statistics."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        if node["op"] == "BatchNorm" and graph["nodes"][node["inputs"][1][0]]["name"] in frozen:
            node["attrs"]["use_global_stats"] = "True"
    return mx.sym.load_json(json.dumps(graph))


def nodes_of(symbol):
    return json.loads(symbol.tojson())["nodes"]


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
