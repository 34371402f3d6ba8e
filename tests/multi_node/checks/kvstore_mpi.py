"""Data parallelism by kvstore='mpi', against one process that trains on the joint batches."""

import sys

import numpy as np

from mxloop import DataParallelExecutorManager, FeedForward, model
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError

sys.path.insert(0, __file__.rsplit("/multi_node/", 1)[0])

import nets  # noqa: E402

BATCH = 8


def shard(rank, shape=(10,)):
    """Ranks have different numbers of rows: of batches too, and their last ones are short."""
    return nets.samples(BATCH + 5 * rank + 3, shape, seed=rank)


class Joint(mx.io.DataIter):
    """The batches that the ranks take at the same time, as one."""

    def __init__(self, size, shape=(10,)):
        super().__init__()
        self._iters = [ArrayIter(*shard(rank, shape), BATCH) for rank in range(size)]
        self.provide_data = self._iters[0].provide_data
        self.provide_label = self._iters[0].provide_label

    def reset(self):
        for each in self._iters:
            each.reset()

    def next(self):
        found = [batch for batch in (next(each, None) for each in self._iters) if batch]
        if not found:
            raise StopIteration
        join = lambda arrays: [mx.nd.concat(*parts, dim=0) for parts in zip(*arrays)]  # noqa: E731
        return mx.io.DataBatch(join([b.data for b in found]), join([b.label for b in found]))


def train(symbol, data, kvstore, shape=(10,), ctx=None, accumulate=1, **settings):
    args, aux = nets.params(symbol, data=(BATCH, *shape), softmax_label=(BATCH,))
    found = FeedForward(symbol, ctx, 3, arg_params=args, aux_params=aux, **settings)
    x, y = nets.samples(20, shape, seed=77)
    evaluated = ArrayIter(x, y, BATCH)
    return found.fit(data, eval_data=evaluated, kvstore=kvstore, accumulate=accumulate)


def compare(comm, symbol, shape=(10,), ctx=None, atol=1e-6, **settings):
    data = ArrayIter(*shard(comm.rank, shape), BATCH)
    found = train(symbol, data, "mpi", shape, ctx, **settings)
    wanted = train(symbol, Joint(comm.size, shape), None, shape, **settings)
    nets.assert_close(found.arg_params, wanted.arg_params, atol)
    assert len(set(comm.allgather_obj([v.tobytes() for v in values(found)].__repr__()))) == 1
    return found, wanted


def values(trained):
    return [array.asnumpy() for _, array in sorted(trained.arg_params.items())]


def check_parameters_are_those_of_the_joint_batches(comm):
    found, wanted = compare(comm, nets.mlp(), learning_rate=0.1, momentum=0.9)
    moved = nets.params(nets.mlp(), data=(BATCH, 10), softmax_label=(BATCH,))[0]
    assert (
        np.abs(found.arg_params["fc1_weight"].asnumpy() - moved["fc1_weight"].asnumpy()).max()
        > 0.01
    )
    for one, other in zip(found.history, wanted.history):
        for name in ("train_accuracy", "val_accuracy"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6)


def check_by_adam_and_an_optimizer_object(comm):
    compare(comm, nets.mlp(), optimizer="adam", learning_rate=0.01)
    for train_with in (mx.optimizer.SGD(learning_rate=0.1, wd=0.01),):
        compare(comm, nets.mlp(), optimizer=train_with)


def check_with_two_contexts_a_rank(comm):
    compare(comm, nets.mlp(), ctx=[mx.cpu(0), mx.cpu(1)], learning_rate=0.1, momentum=0.9)


def check_batches_that_are_added_up(comm):
    """An epoch has two batches or more on each rank: of three, the last is a step of its own."""
    compare(comm, nets.mlp(), accumulate=2, learning_rate=0.1, momentum=0.9)
    compare(comm, nets.mlp(), accumulate=100, optimizer="adam", learning_rate=0.01)


def check_convolutions(comm):
    compare(comm, nets.lenet(), (1, 12, 12), atol=3e-6, learning_rate=0.05)


def check_a_given_rescale_grad_is_kept(comm):
    compare(comm, nets.mlp(), learning_rate=0.1, rescale_grad=0.01)


def check_ranks_begin_with_rank_0s_parameters(comm):
    symbol = nets.mlp()
    mx.random.seed(comm.rank)
    data = ArrayIter(*shard(comm.rank), BATCH)
    found = FeedForward(symbol, num_epoch=1, initializer=mx.init.Uniform(0.5))
    found.fit(data, kvstore="mpi")
    for each in values(found):
        for other in comm.allgather(each):
            np.testing.assert_array_equal(each, other)


def check_running_statistics_and_metrics_are_the_same_everywhere(comm):
    symbol, shape = nets.conv_bn(), (1, 8, 8)
    data = ArrayIter(*shard(comm.rank, shape), BATCH)
    found = train(symbol, data, "mpi", shape, learning_rate=0.05)
    seen = {
        **{name: array.asnumpy().tolist() for name, array in found.aux_params.items()},
        **{k: v for k, v in found.history[-1].items() if k.endswith("accuracy")},
    }
    assert len({repr(each) for each in comm.allgather_obj(sorted(seen.items()))}) == 1
    x, y = nets.samples(20, shape, seed=77)
    assert abs(found.score(x, y) - found.history[-1]["val_accuracy"]) < 1e-6


def check_a_loop_of_ones_own(comm):
    x, y = shard(comm.rank)
    x, y = x[:BATCH], y[:BATCH]
    symbol = nets.mlp()
    args, aux = nets.params(symbol, data=(BATCH, 10), softmax_label=(BATCH,))
    manager = DataParallelExecutorManager(symbol, mx.cpu(), nets.described(BATCH))
    manager.set_params(args, aux)
    store, on_store = model.create_kvstore("mpi", 1, args)
    assert not on_store and store.type == "mpi"
    assert (store.rank, store.num_workers) == (comm.rank, comm.size)
    names, params, grads = manager.param_names, manager.param_arrays, manager.grad_arrays
    model.initialize_kvstore(store, params, args, names, on_store)
    optimizer = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / BATCH / comm.size)
    updater = mx.optimizer.get_updater(optimizer)
    for _ in range(3):
        manager.load_data_batch(nets.batch(x, y))
        manager.forward(is_train=True)
        manager.backward()
        model.update_params(params, grads, updater, 1, store, names)
    found = [array[0].asnumpy() for array in params]
    xs, ys = zip(*[[each[:BATCH] for each in shard(rank)] for rank in range(comm.size)])
    wanted = FeedForward(symbol, num_epoch=3, arg_params=args, learning_rate=0.1)
    wanted.fit(ArrayIter(np.concatenate(xs), np.concatenate(ys), BATCH * comm.size), kvstore=None)
    for name, value in zip(names, found):
        np.testing.assert_allclose(value, wanted.arg_params[name].asnumpy(), 0, 1e-6)


def check_a_gluon_trainer(comm):
    ctx = [mx.cpu(0), mx.cpu(1)]
    param = mx.gluon.Parameter("w", shape=(3,))
    param.initialize(mx.init.Constant(5 + comm.rank), ctx=ctx)
    store = mx.kv.create("mpi")
    trainer = mx.gluon.Trainer([param], "sgd", {"learning_rate": 1.0}, kvstore=store)
    for _ in range(2):
        losses = []
        with mx.autograd.record():
            for i, each in enumerate(ctx):
                losses.append(mx.nd.sum(param.data(each)) * (comm.rank + i))
        mx.autograd.backward(losses)
        trainer.step(comm.size)
    wanted = 5 - 2 * sum(2 * rank + 1 for rank in range(comm.size)) / comm.size
    for data in param.list_data():
        np.testing.assert_allclose(data.asnumpy(), wanted, rtol=1e-6)


def check_what_the_store_cannot_do_is_one_line(comm):
    store = model.create_kvstore("mpi", 1, {})[0]
    sparse = mx.nd.zeros((3, 2)).tostype("row_sparse")
    for kind, call in (
        (ArgumentTypeError, lambda: store.pushpull("w", sparse)),
        (ArgumentError, lambda: fit_with_metric(comm, "f1")),
    ):
        try:
            call()
        except kind as error:
            assert len(str(error)) <= 250 and "\n" not in str(error)
        else:
            raise AssertionError("nothing was raised")


def fit_with_metric(comm, metric):
    data = ArrayIter(*shard(comm.rank), BATCH)
    FeedForward(nets.mlp(), num_epoch=1).fit(data, eval_metric=metric, kvstore="mpi")
