"""What a communicator's calls return, against what NumPy makes of all ranks' values."""

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.multi_node import functions
from mxloop.multi_node.functions import recv, send

DTYPES = ("float16", "float32", "float64", "int32", "int64")


def values(rank, dtype="float32", rows=3):
    return np.random.RandomState([rank, 7]).uniform(-9, 9, (rows, 4)).astype(dtype)


def each_kind(rank, rows=3):
    for dtype in DTYPES:
        yield values(rank, dtype, rows)
        yield mx.nd.array(values(rank, dtype, rows), dtype=dtype)


def equal(found, wanted):
    assert type(found).__module__.split(".")[0] in ("numpy", "mxnet")
    found = found.asnumpy() if isinstance(found, mx.nd.NDArray) else found
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        message = str(error)
        assert len(message) <= 250 and "\n" not in message, message
        assert all(word in message for word in words), message
    else:
        raise AssertionError("nothing was raised")


def check_ranks_are_numbered(comm):
    assert comm.allgather_obj(comm.rank) == list(range(comm.size))
    assert comm.allgather_obj(comm.intra_rank) == list(range(comm.size))
    assert comm.intra_size == comm.size


def check_messages_keep_kind_dtype_and_order(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for mine, theirs in zip(each_kind(comm.rank), each_kind(before)):
        comm.send(mine, after)
        comm.send((mine * 2, mine[:1]), after)
        found = comm.recv(before)
        assert type(found) is type(mine)
        theirs = theirs.asnumpy() if isinstance(theirs, mx.nd.NDArray) else theirs
        equal(found, theirs)
        found = comm.recv(before)
        assert isinstance(found, tuple)
        equal(found[0], theirs * 2)
        equal(found[1], theirs[:1])


def check_arrays_may_change_once_they_are_sent(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for n in (10, 1_000_000):
        array = mx.nd.ones((n,)) * comm.rank
        comm.send(array, after)
        array[:] = -1
        assert (comm.recv(before).asnumpy() == before).all()


def check_tags_tell_messages_apart(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for tag in range(4):
        comm.send(np.array([tag]), after, tag)
    for tag in (3, 0, 2, 1):
        assert comm.recv(before, tag) == [tag]


def check_empty_and_scalar_arrays_travel(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for array in (np.zeros((0, 3), "float32"), np.array(2.5)):
        comm.send(array, after)
        equal(comm.recv(before), array)


def check_collectives(comm):
    rank, size = comm.rank, comm.size
    for root in range(size):
        equal(comm.bcast(values(rank) if rank == root else None, root), values(root))
        found = comm.gather(values(rank, rows=rank + 1), root)
        assert (found is None) == (rank != root)
        for r, each in enumerate(found or ()):
            equal(each, values(r, rows=r + 1))
        entries = [values(r, rows=r) for r in range(size)] if rank == root else None
        equal(comm.scatter(entries, root), values(rank, rows=rank))
    for r, each in enumerate(comm.allgather(values(rank))):
        equal(each, values(r))
    for r, each in enumerate(comm.alltoall([values(rank) * to for to in range(size)])):
        equal(each, values(r) * rank)


def check_sums_are_the_same_bits_everywhere(comm):
    for dtype in DTYPES:
        total = comm.allreduce(mx.nd.array(values(comm.rank, dtype), dtype=dtype)).asnumpy()
        wanted = sum(values(r, dtype).astype("float64") for r in range(comm.size))
        assert total.dtype == np.dtype(dtype)
        np.testing.assert_allclose(total, wanted, 1e-2 if dtype == "float16" else 1e-5, 1e-2)
        assert len(set(comm.allgather_obj(total.tobytes()))) == 1


def check_a_sum_of_unlike_arrays_is_an_error(comm):
    raises(DataError, lambda: comm.allreduce(np.zeros(comm.rank + 1)), "differ")


def check_sums_of_unlike_arrays_are_an_error_on_all_ranks(comm):
    """MPI itself adds up whatever bytes there are."""
    for mine in (
        [mx.nd.ones((3 + comm.rank,))],
        [mx.nd.ones((300000 + comm.rank,))],
        [mx.nd.ones((6,), dtype=("float32", "float64")[comm.rank % 2])],
        [mx.nd.ones((2, 3) if comm.rank else (3, 2))],
        [mx.nd.ones((6,))] * (1 + comm.rank),
    ):
        raises(DataError, lambda mine=mine: comm.mean_grad(mine), "another rank something else")
        assert all((each.asnumpy() == 1).all() for each in mine)


def check_an_object_that_cannot_travel_is_one_line(comm):
    raises(TypeError, lambda: comm.send_obj(lambda: 0, (comm.rank + 1) % comm.size), "cannot go")


def check_objects(comm):
    rank, size, root = comm.rank, comm.size, comm.size - 1
    thing = {"rank": rank, "text": "ü" * rank}
    after, before = (rank + 1) % size, (rank - 1) % size
    comm.send_obj(thing, after)
    assert comm.recv_obj(before)["rank"] == before
    assert comm.bcast_obj(thing if rank == root else None, root)["rank"] == root
    assert comm.allreduce_obj(rank) == sum(range(size))
    assert comm.allreduce_obj(rank, max) == size - 1
    found = comm.gather_obj(thing, root)
    assert found is None or [each["rank"] for each in found] == list(range(size))
    assert comm.scatter_obj(list("abcd")[:size] if rank == root else None, root) == "abcd"[rank]
    assert comm.alltoall_obj([(rank, to) for to in range(size)]) == [(r, rank) for r in range(size)]


def check_models(comm):
    """Parameters become those of rank 0, gradients the mean over all ranks."""
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Constant(comm.rank + 1))
    comm.bcast_data(net)
    assert (net.weight.data().asnumpy() == 1).all()
    x = mx.nd.array(values(comm.rank))
    with mx.autograd.record():
        loss = mx.nd.sum(net(x))
    loss.backward()
    comm.mean_grad(net)
    wanted = np.mean([values(r).sum(axis=0) for r in range(comm.size)], axis=0)
    np.testing.assert_allclose(net.weight.grad().asnumpy(), np.tile(wanted, (3, 1)), 1e-5, 1e-5)


def check_split(comm):
    part = comm.split(comm.rank % 2, key=-comm.rank + comm.size)
    mine = [r for r in range(comm.size) if r % 2 == comm.rank % 2][::-1]
    assert (part.rank, part.size) == (mine.index(comm.rank), len(mine))
    assert part.allgather_obj(comm.rank) == mine
    part.finalize()


def check_wrong_arguments_are_one_line(comm):
    other, x = (comm.rank + 1) % comm.size, mx.nd.ones((2,))
    raises(ValueError, lambda: send(x, comm, comm.rank), "itself")
    raises(ValueError, lambda: recv(comm, comm.rank), "itself")
    raises(ValueError, lambda: send(x, comm, comm.size), "ranks")
    raises(TypeError, lambda: send(x, "mpi", other), "create_communicator")
    raises(TypeError, lambda: recv(None, other), "create_communicator")
    raises(TypeError, lambda: send(3, comm, other), "3")
    raises(TypeError, lambda: send(np.zeros(2), comm, other), "mx.nd.array")
    raises(ArgumentTypeError, lambda: comm.send(np.array(["a"]), other), "cast")
    raises(ArgumentTypeError, lambda: comm.send({}, other), "_obj")
    raises(ArgumentError, lambda: comm.send(x, comm.rank), "itself")
    raises(ArgumentError, lambda: comm.send(x, other, tag=-1), "tag")
    raises(ArgumentError, lambda: comm.send(x, other, tag=2**40), "tag")
    raises(ArgumentTypeError, lambda: comm.send(x, 0.5), "integer")
    raises(ArgumentError, lambda: comm.alltoall([x]), "ranks")
    raises(ArgumentError, lambda: functions.alltoall(comm, [x]), "ranks")
    raises(ArgumentError, lambda: comm.bcast(x, root=comm.size), "root")
    raises(ArgumentTypeError, lambda: comm.mean_grad([1]), "params")


def check_collective_calls_that_differ_are_an_error(comm):
    """After this nobody is in step any more, so it comes last."""
    if comm.rank == 0:
        comm.exchange("gather", -1, {1: mx.nd.ones(1)}, [])
    elif comm.rank == 1:
        raises(StateError, lambda: comm.exchange("bcast", -1, {}, [0]), "gather", "bcast")
