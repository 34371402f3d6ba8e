"""Flags for training, and what they mean to mxloop."""

import math
import os
import time

from common import devices, ranks
from common.cli import increasing, number

import mxloop
from mxloop import mx
from mxloop.errors import ArgumentError
from mxloop.multi_node import create_communicator, create_multi_node_checkpointer

INITIALIZERS = {
    "default": lambda: mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
    "xavier": mx.init.Xavier,
    "msra": mx.init.MSRAPrelu,
    "orthogonal": mx.init.Orthogonal,
    "normal": mx.init.Normal,
    "uniform": mx.init.Uniform,
}
LOSSES = ("ce", "nll_loss")
WITH_MOMENTUM = ("sgd", "nag", "signum", "dcasgd", "lbsgd")


def add_fit_args(parser):
    """Add the flags of every training script; names and defaults are those of MXNet's examples."""
    devices.add_device_args(parser)
    add_network_args(parser.add_argument_group("network"))
    add_optimizer_args(parser.add_argument_group("optimizer"))
    add_run_args(parser.add_argument_group("run"))


def add_network_args(group):
    group.add_argument("--network", choices=("mlp", "lenet", "resnet"), default="mlp")
    group.add_argument("--num-layers", type=number(int, 1), default=20, help="of a resnet: 6n+2")
    group.add_argument("--dtype", choices=("float32", "float16", "float64"), default="float32")
    group.add_argument("--initializer", choices=sorted(INITIALIZERS), default="default")
    group.add_argument("--loss", choices=("", *LOSSES), default="", help="also show this loss")
    group.add_argument(
        "--top-k", type=number(int, 0), default=0, help="also show the top-k accuracy; 0 does not"
    )


def add_optimizer_args(group):
    group.add_argument("--optimizer", default="sgd")
    group.add_argument("--lr", type=number(float, 0), default=0.05)
    group.add_argument("--lr-factor", type=number(float, 0, 1), default=0.1)
    group.add_argument(
        "--lr-step-epochs",
        type=increasing,
        default="10",
        help="after these epochs, multiply the rate by --lr-factor",
    )
    group.add_argument("--mom", type=number(float, 0), default=0.9)
    group.add_argument("--wd", type=number(float, 0), default=0.0001)


def add_run_args(group):
    group.add_argument("--kv-store", help="'device' by default, and 'mpi' under mpiexec")
    group.add_argument("--num-epochs", type=number(int, 1), default=20)
    group.add_argument("--batch-size", type=number(int, 1), default=64)
    group.add_argument(
        "--accumulate",
        type=number(int, 1),
        default=1,
        help="batches to an update, which is that of one so many times as large",
    )
    group.add_argument(
        "--disp-batches", type=number(int, 1), default=100, help="report every so many batches"
    )
    group.add_argument("--model-prefix", help="save after each epoch, in files of this prefix")
    group.add_argument("--save-period", type=number(int, 1), default=1, help="epochs between saves")
    group.add_argument("--load-epoch", type=number(int, 0), help="go on from this saved epoch")
    group.add_argument(
        "--checkpoint", help="save all that a run needs to go on, in files of this prefix"
    )
    group.add_argument(
        "--checkpoint-batches", type=number(int, 1), help="save so often within an epoch too"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on from the newest --checkpoint, if there is one"
    )
    group.add_argument("--history", help="file for the epochs' values, .jsonl or .csv")
    group.add_argument(
        "--monitor", type=number(int, 0), default=0, help="show statistics every so many batches"
    )
    group.add_argument("--test-io", type=int, choices=(0, 1), default=0, help="only read the data")
    group.add_argument("--seed", type=number(int, 0, 2**32 - 1), default=0, help="repeats a run")


def fit(args, network, data_loader, params=None, callbacks=()):
    """Train, and return what the model's history says of the last epoch.

    Parameters
    ----------
    args : argparse.Namespace
        What `add_fit_args` and the data loader's flags made.
    network : mxnet.symbol.Symbol
    data_loader : callable
        `data_loader(args, rank, num_workers)` gives the iterators to train and to validate with.
    params : pair of dict, optional
        Arguments and auxiliary states to begin with, unless --load-epoch names others.
    callbacks : sequence of mxloop.callback.Callback
    """
    ctx = devices.chosen(args)
    check_dtype(args)
    kvstore, rank, num_workers = make_kvstore(args)
    train, validation = data_loader(args, rank, num_workers)
    whole = is_whole(args, num_workers)
    begin = 0 if whole else args.load_epoch or 0
    # The rate's schedule counts joint steps, of which there are as many as the largest share has.
    steps = math.ceil(create_communicator().allreduce_obj(len(train), max) / args.accumulate)
    model = make_model(args, network, ctx, steps, begin, params)
    start_at(train, begin)
    keepers = [keeper for keeper in (resumable(args, rank), saves(args, rank)) if keeper]
    if whole:
        keepers.reverse()
    model.fit(
        train,
        eval_data=validation,
        eval_metric=metrics(args),
        kvstore=kvstore,
        monitor=mx.mon.Monitor(args.monitor) if args.monitor else None,
        batch_end_callback=mxloop.callback.Speedometer(args.batch_size, args.disp_batches),
        callbacks=[*callbacks, *history_files(args, rank), *keepers[1:]],
        seed=args.seed,
        checkpoint=keepers[0] if keepers else None,
        resume=args.load_epoch if whole else "auto" if args.resume else None,
        accumulate=args.accumulate,
    )
    return model.history[-1]


def is_whole(args, num_workers):
    """Whether --load-epoch names all that a run needs to go on, and not parameters alone."""
    if args.load_epoch is None or args.resume or num_workers > 1:
        return False
    return "random" in saved(args).manifest


def make_model(args, network, ctx, steps_per_epoch, begin, params=None):
    """Return the model, with the parameters of --load-epoch where that is given."""
    found = None if args.load_epoch is None else saved(args)
    params = (found.arg_params, found.aux_params) if found else params or (None, None)
    return mxloop.FeedForward(
        network,
        ctx=ctx,
        num_epoch=args.num_epochs,
        optimizer=args.optimizer,
        initializer=INITIALIZERS[args.initializer](),
        arg_params=params[0],
        aux_params=params[1],
        begin_epoch=begin,
        **optimizer_settings(args),
        **schedule(args, steps_per_epoch, begin),
    )


def saved(args):
    """Return what --load-epoch names."""
    if args.model_prefix is None:
        raise ArgumentError("--load-epoch needs --model-prefix, the prefix of the saved files")
    return mxloop.checkpoint.load(args.model_prefix, args.load_epoch)


def start_at(train, epoch):
    """Let the order of the samples go on as well, as if training had never stopped."""
    if epoch:
        train.load_state_dict({**train.state_dict(), "epoch": epoch})


def schedule(args, steps_per_epoch, begin):
    """Return the rate at the first epoch of this run, and what lowers it after later ones."""
    ahead = [epoch for epoch in args.lr_step_epochs if epoch > begin]
    passed = len(args.lr_step_epochs) - len(ahead)
    settings = {"learning_rate": args.lr * args.lr_factor**passed}
    if ahead:
        settings["lr_scheduler"] = mx.lr_scheduler.MultiFactorScheduler(
            step=[steps_per_epoch * (epoch - begin) for epoch in ahead],
            factor=args.lr_factor,
            base_lr=settings["learning_rate"],
        )
    return settings


def optimizer_settings(args):
    """Return what the optimizer takes besides the rate."""
    settings = {"wd": args.wd}
    if args.optimizer in WITH_MOMENTUM:
        settings["momentum"] = args.mom
    if args.dtype == "float16":
        # Updates are too small for float16: keep a float32 copy of the weights.
        settings["multi_precision"] = True
    return settings


def check_dtype(args):
    if args.dtype == "float16" and not args.gpus:
        raise ArgumentError("--dtype float16 needs --gpus: MXNet's layers for CPUs do not have it")


def make_kvstore(args):
    """Return the store, by name or as it is for several processes, this worker's rank and count."""
    name = args.kv_store or default_kvstore()
    if name != "mpi" and "dist" not in name:
        return name, 0, 1
    kvstore, _ = mxloop.model.create_kvstore(name, 1, {})
    if name == "mpi":
        ranks.let_first_speak(kvstore.rank)
    return kvstore, kvstore.rank, kvstore.num_workers


def default_kvstore():
    communicator = create_communicator()
    if communicator.size == 1:
        return "device"
    if communicator.rank == 0:
        print(f"kvstore: 'mpi', as mpiexec started {communicator.size} ranks", flush=True)
    return "mpi"


def metrics(args):
    """Return the metrics to show: accuracy first."""
    if args.top_k > args.num_classes:
        raise ArgumentError(f"--top-k {args.top_k} is more than the {args.num_classes} classes")
    found = mx.metric.CompositeEvalMetric(["acc"])
    if args.top_k > 1:
        found.add(mx.metric.create("top_k_accuracy", top_k=args.top_k))
    if args.loss:
        found.add(args.loss)
    return found


def saves(args, rank):
    """Return the callback that saves; several workers are equal, and the first one saves."""
    if args.model_prefix is None or rank:
        return None
    check_folder("--model-prefix", args.model_prefix)
    return mxloop.callback.Checkpoint(args.model_prefix, every_n_epochs=args.save_period)


def resumable(args, rank):
    """Return the callback that saves what a run needs to go on to the bit."""
    if args.checkpoint is None and (args.resume or args.checkpoint_batches):
        raise ArgumentError("--resume and --checkpoint-batches need --checkpoint, a file prefix")
    if args.checkpoint is None:
        return None
    check_folder("--checkpoint", args.checkpoint)
    communicator, often = create_communicator(), {"every_n_batches": args.checkpoint_batches}
    if communicator.size > 1:
        return create_multi_node_checkpointer(args.checkpoint, communicator, **often)
    return None if rank else mxloop.callback.Checkpoint(args.checkpoint, **often)


def history_files(args, rank):
    """Return the callbacks that write the history: one, where --history asks for it."""
    if args.history is None or rank:
        return []
    check_folder("--history", args.history)
    return [mxloop.callback.HistoryFile(args.history)]


def check_folder(flag, prefix):
    folder = os.path.dirname(prefix) or "."
    if not os.path.isdir(folder):
        raise ArgumentError(f"{flag}: there is no folder {folder}; make it first")


def test_io(args, data_loader):
    """Read one epoch of the training data, report how fast, and return the exit code."""
    train, _ = data_loader(args)
    start, samples = time.time(), 0
    for nbatch, batch in enumerate(train, start=1):
        mx.nd.waitall()  # reading may be asynchronous: time what has arrived
        samples += batch.data[0].shape[0] - (batch.pad or 0)
        if nbatch % args.disp_batches == 0:
            print(f"Batch [{nbatch}]\tSpeed: {samples / (time.time() - start):.0f} samples/s")
    print(f"Read {samples} samples at {samples / (time.time() - start):.0f} samples/s")
    return 0
