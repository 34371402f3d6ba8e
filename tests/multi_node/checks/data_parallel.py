"""Data sets, iterators, optimizer, evaluator and BatchNorm, against one process with all data."""

import numpy as np

from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.multi_node import (
    MultiNodeBatchNorm,
    average_statistics,
    create_multi_node_evaluator,
    create_multi_node_iterator,
    create_multi_node_optimizer,
    create_synchronized_iterator,
    scatter_dataset,
)

random = np.random.RandomState


def raises(kind, call):
    try:
        call()
    except kind as error:
        assert len(str(error)) <= 250 and "\n" not in str(error), error
    else:
        raise AssertionError("nothing was raised")


# --- Data sets ----------------------------------------------------------------------------------


def check_parts_of_a_data_set_are_the_whole_of_it(comm):
    size = comm.size
    for length in (0, 1, size, 5 * size - 1):
        data = np.arange(length * 3, dtype="float32").reshape(length, 3)
        for root in range(size):
            for shuffle in (False, True):
                for equal in (False, True):
                    mine = data if comm.rank == root else None
                    part = scatter_dataset(mine, comm, root, shuffle, 5, equal)
                    compare_parts(comm, data, part, shuffle, equal)


def compare_parts(comm, data, part, shuffle, equal):
    parts = comm.allgather_obj(part)
    lengths = [len(each) for each in parts]
    assert max(lengths) - min(lengths) <= (0 if equal else 1)
    rows = np.concatenate(parts)
    assert rows.dtype == data.dtype
    if not shuffle:
        np.testing.assert_array_equal(rows[: len(data)], data)
    if equal:
        rows = np.unique(rows, axis=0)
    assert sorted(map(tuple, rows)) == sorted(map(tuple, data))


def check_shuffling_follows_its_seed(comm):
    data = np.arange(50)
    first, again, other = (
        np.concatenate(comm.allgather_obj(scatter_dataset(data, comm, 0, True, seed)))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other) and not np.array_equal(first[:50], data)


def check_every_kind_of_data_set(comm):
    x, y = np.arange(40.0).reshape(10, 4), np.arange(10)
    rows = np.array_split(np.arange(10), comm.size)[comm.rank]
    give = (lambda data: data) if comm.rank == 0 else (lambda data: None)
    scatter = lambda data: scatter_dataset(give(data), comm, force_equal_length=False)  # noqa: E731
    found = scatter((x, y))
    assert isinstance(found, tuple)
    np.testing.assert_array_equal(found[0], x[rows])
    np.testing.assert_array_equal(found[1], y[rows])
    found = scatter({"a": x, "b": mx.nd.array(y)})
    np.testing.assert_array_equal(found["a"], x[rows])
    np.testing.assert_array_equal(found["b"].asnumpy(), y[rows])
    found = scatter(mx.gluon.data.ArrayDataset(x, y))
    assert isinstance(found, mx.gluon.data.ArrayDataset)
    np.testing.assert_array_equal(found[len(rows) - 1][0], x[rows[-1]])
    assert scatter([("a", i) for i in range(10)]) == [("a", i) for i in rows]
    assert scatter(mx.gluon.data.SimpleDataset(list("abcdefghij"))) == [
        "abcdefghij"[i] for i in rows
    ]
    np.testing.assert_array_equal(scatter(y > 4), (y > 4)[rows])


def check_a_data_set_that_cannot_be_shared_out_is_an_error_everywhere(comm):
    root = comm.size - 1
    for wrong in (None, 3, (np.zeros(3), np.zeros(4)), {}):
        data = wrong if comm.rank == root else np.zeros(3)
        raises((ArgumentTypeError, DataError), lambda data=data: scatter_dataset(data, comm, root))
    few = mx.nd.zeros((1, 2)) if comm.rank == root else None
    raises(DataError, lambda: scatter_dataset(few, comm, root, force_equal_length=False))


# --- Iterators ----------------------------------------------------------------------------------


def check_one_ranks_batches_reach_all(comm):
    x, y = random(0).normal(size=(10, 3)).astype("float32"), np.arange(10, dtype="float32")
    make = lambda: ArrayIter(x, y, 4, shuffle=True, last_batch="pad", seed=3)  # noqa: E731
    master = comm.size - 1
    found = create_multi_node_iterator(make() if comm.rank == master else None, comm, master)
    wanted = make()
    assert found.provide_data == wanted.provide_data and found.batch_size == 4
    for _ in range(2):
        got, expected = list(found), list(wanted)
        assert len(got) == len(expected) == 3
        for one, other in zip(got, expected):
            assert one.pad == other.pad
            for a, b in zip(one.data + one.label, other.data + other.label):
                np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
        found.reset()
        wanted.reset()


def check_orders_are_those_of_rank_0(comm):
    data = ArrayIter(np.arange(20.0), batch_size=5, shuffle=True, seed=comm.rank)
    data = create_synchronized_iterator(data, comm)
    for _ in range(2):
        order = np.concatenate([batch.data[0].asnumpy() for batch in data])
        for other in comm.allgather(order):
            np.testing.assert_array_equal(order, other)
        data.reset()
    np.random.seed(comm.rank)
    loader = mx.gluon.data.DataLoader(
        mx.gluon.data.SimpleDataset(list(range(20))), batch_size=5, shuffle=True
    )
    orders = []
    loader = create_synchronized_iterator(loader, comm)
    for _ in range(2):
        orders.append(np.concatenate([batch.asnumpy() for batch in loader]))
        for other in comm.allgather(orders[-1]):
            np.testing.assert_array_equal(orders[-1], other)
    assert not np.array_equal(*orders)


def check_iterators_that_cannot_be_in_step_are_an_error(comm):
    stock = mx.io.NDArrayIter(np.zeros((4, 2)), batch_size=2, shuffle=True)
    raises(ArgumentTypeError, lambda: create_synchronized_iterator(stock, comm))
    unequal = ArrayIter(np.zeros((4 + comm.rank, 2)), batch_size=2)
    raises(DataError, lambda: create_synchronized_iterator(unequal, comm))
    raises(ArgumentTypeError, lambda: create_multi_node_iterator([1], comm))


# --- Optimizer ----------------------------------------------------------------------------------


def network(seed, norm=None):
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(6, in_units=4, activation="tanh"))
    if norm is not None:
        net.add(norm)
    net.add(mx.gluon.nn.Dense(2, in_units=6))
    net.initialize(mx.init.Zero())
    for i, param in enumerate(net.collect_params().values()):
        if param.name.endswith(("weight", "bias")):
            values = random([seed, i]).normal(size=param.shape)
            param.set_data(mx.nd.array(values))
    return net


def steps(net, trainer, batches, batch_size):
    for x, y in batches:
        with mx.autograd.record():
            loss = mx.nd.sum((net(mx.nd.array(x)) - mx.nd.array(y)) ** 2)
        loss.backward()
        trainer.step(batch_size)
    return [param.data().asnumpy() for param in net.collect_params().values()]


def batches(rank, rows=3, count=4):
    return [
        (random([rank, i]).normal(size=(rows, 4)), random([rank, i, 1]).normal(size=(rows, 2)))
        for i in range(count)
    ]


def joint(size, rows=lambda rank: 3):
    parts = [batches(rank, rows(rank)) for rank in range(size)]
    return [tuple(np.concatenate(each) for each in zip(*step)) for step in zip(*parts)]


def check_trainers_step_by_the_mean_gradient_and_lose_no_step(comm):
    for name, settings in (("sgd", {"momentum": 0.9}), ("adam", {})):
        for overlap in (False, True):
            net = network(seed=comm.rank)
            trainer = mx.gluon.Trainer(net.collect_params(), name, settings, kvstore=None)
            trainer = create_multi_node_optimizer(trainer, comm, overlap=overlap)
            found = steps(net, trainer, batches(comm.rank), 3)
            oracle = network(seed=0)
            trainer = mx.gluon.Trainer(oracle.collect_params(), name, settings, kvstore=None)
            wanted = steps(oracle, trainer, joint(comm.size), 3 * comm.size)
            for a, b in zip(found, wanted):
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


def check_a_trainer_on_two_devices_counts_both(comm):
    ctx = [mx.cpu(0), mx.cpu(1)]
    param = mx.gluon.Parameter("w", shape=(3,))
    param.initialize(mx.init.Constant(comm.rank), ctx=ctx)
    trainer = mx.gluon.Trainer([param], "sgd", {"learning_rate": 1.0}, kvstore=None)
    create_multi_node_optimizer(trainer, comm)
    for i, grad in enumerate(param.list_grad()):
        grad[:] = 10 * comm.rank + i
    comm.mean_grad([param])
    wanted = np.mean([20 * rank + 1 for rank in range(comm.size)])
    for grad, data in zip(param.list_grad(), param.list_data()):
        assert (grad.asnumpy() == wanted).all() and (data.asnumpy() == 0).all()


def check_a_trainer_without_values_is_an_error(comm):
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    raises(StateError, lambda: create_multi_node_optimizer(trainer, comm))
    raises(TypeError, lambda: create_multi_node_optimizer(mx.optimizer.SGD(), comm))
    raises(TypeError, lambda: create_multi_node_optimizer(trainer, "mpi"))


# --- Evaluator ----------------------------------------------------------------------------------


def both_metrics():
    return mx.metric.CompositeEvalMetric(["acc", "ce"])


def check_metrics_count_each_sample_of_unequal_shards_once(comm):
    rows = [3 * rank + 1 for rank in range(comm.size)]
    labels = [random([7, r]).randint(0, 2, rows[r]) for r in range(comm.size)]
    outputs = [random([8, r]).dirichlet([1, 1], rows[r]) for r in range(comm.size)]
    for make in (mx.metric.Accuracy, mx.metric.CrossEntropy, both_metrics):
        metric, oracle = make(), make()
        found = create_multi_node_evaluator(metric, comm)
        for ours, parts in ((found, [comm.rank]), (oracle, range(comm.size))):
            y = np.concatenate([labels[r] for r in parts])
            p = np.concatenate([outputs[r] for r in parts])
            ours.update([mx.nd.array(y)], [mx.nd.array(p)])
        np.testing.assert_allclose(found.get()[1], oracle.get()[1], rtol=1e-6)
        np.testing.assert_allclose(found.get()[1], oracle.get()[1], rtol=1e-6)  # looking counts not


def check_functions_are_weighted_by_samples(comm):
    evaluate = create_multi_node_evaluator(lambda: ({"loss": comm.rank}, comm.rank), comm)
    ranks = np.arange(comm.size)
    assert evaluate() == {"loss": (ranks**2).sum() / ranks.sum()}
    raises(TypeError, lambda: create_multi_node_evaluator(3, comm))
    for metric in (mx.metric.PCC(), mx.metric.F1()):
        raises(ArgumentError, lambda m=metric: create_multi_node_evaluator(m, comm))


# --- BatchNorm ----------------------------------------------------------------------------------


def check_batch_norm_is_that_of_the_joint_batch(comm):
    rows = lambda rank: 2 + 2 * rank  # noqa: E731
    net = network(0, MultiNodeBatchNorm(comm, in_channels=6))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None)
    total = sum(rows(rank) for rank in range(comm.size))
    trainer = create_multi_node_optimizer(trainer, comm)
    found = steps(net, trainer, batches(comm.rank, rows(comm.rank)), total / comm.size)
    oracle = network(0, mx.gluon.nn.BatchNorm(in_channels=6))
    trainer = mx.gluon.Trainer(
        oracle.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None
    )
    wanted = steps(oracle, trainer, joint(comm.size, rows), total)
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    x = mx.nd.array(random(9).normal(size=(5, 4)))
    np.testing.assert_allclose(net(x).asnumpy(), oracle(x).asnumpy(), rtol=1e-4, atol=1e-5)


def check_batch_norm_of_images_with_deferred_shapes(comm):
    norm, oracle = MultiNodeBatchNorm(comm, scale=False), mx.gluon.nn.BatchNorm(scale=False)
    parts = [random([10, r]).normal(size=(2, 3, 4, 4)) for r in range(comm.size)]
    found = []
    for each, values in ((norm, parts[comm.rank]), (oracle, np.concatenate(parts))):
        each.initialize()
        x = mx.nd.array(values)
        x.attach_grad()
        with mx.autograd.record():
            out = each(x)
            loss = mx.nd.sum(out * out * out)
        loss.backward()
        found.append((out.asnumpy(), x.grad.asnumpy()))
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b[mine], rtol=1e-3, atol=1e-4)


def check_batch_norm_of_other_channels_is_an_error_on_all_ranks(comm):
    norm = MultiNodeBatchNorm(comm, in_channels=3 + comm.rank)
    norm.initialize()
    with mx.autograd.record():
        raises(DataError, lambda: norm(mx.nd.ones((4, 3 + comm.rank))))


def check_running_statistics_are_averaged(comm):
    norm = mx.gluon.nn.BatchNorm(in_channels=2)
    norm.initialize(mx.init.Zero())
    norm.running_mean.set_data(mx.nd.ones(2) * comm.rank)
    norm.gamma.set_data(mx.nd.ones(2) * comm.rank)
    average_statistics(comm, norm)
    assert (norm.running_mean.data().asnumpy() == (comm.size - 1) / 2).all()
    assert (norm.gamma.data().asnumpy() == comm.rank).all()
    states = {"moving_var": mx.nd.ones(2) * comm.rank}
    average_statistics(comm, states)
    assert (states["moving_var"].asnumpy() == (comm.size - 1) / 2).all()
