"""Ranks that were interrupted go on as if they had not been, also as another number of ranks."""

import os
import sys
import tempfile

sys.path.insert(0, __file__.rsplit("/multi_node/", 1)[0])

import nets  # noqa: E402

from mxloop import FeedForward  # noqa: E402
from mxloop.data import ArrayIter  # noqa: E402
from mxloop.errors import ArgumentError, DataError  # noqa: E402
from mxloop.multi_node import create_multi_node_checkpointer  # noqa: E402


def data(comm):
    x, y = nets.samples(24)
    rows = slice(comm.rank, None, comm.size)
    return ArrayIter(x[rows], y[rows], 12 // comm.size, shuffle=False)


def fit(comm, keeper, num_epoch=4, stop_at=None, resume=None, kvstore="mpi", accumulate=1):
    args, _ = nets.params(nets.mlp(), data=(4, 10), softmax_label=(4,))
    model = FeedForward(
        nets.mlp(), num_epoch=num_epoch, arg_params=args, learning_rate=0.1, momentum=0.9
    )

    def interrupt(param):
        if (param.epoch, param.nbatch) == stop_at:
            raise KeyboardInterrupt

    try:
        model.fit(
            data(comm),
            kvstore=kvstore,
            batch_end_callback=interrupt,
            checkpoint=keeper,
            resume=resume,
            accumulate=accumulate,
        )
    except KeyboardInterrupt:
        assert stop_at is not None
    return model


def folder(comm):
    return comm.bcast_obj(tempfile.mkdtemp() if comm.rank == 0 else None)


def check_a_run_goes_on_within_an_epoch_to_the_bit(comm):
    for accumulate in (1, 2):  # two take the run up within an update
        prefix = os.path.join(folder(comm), "net")
        wanted = fit(comm, None, accumulate=accumulate)
        keeper = create_multi_node_checkpointer(prefix, comm)
        fit(comm, keeper, stop_at=(2, 1), accumulate=accumulate)
        assert keeper.newest().manifest["gathered"]["batches"] == accumulate - 1
        found = fit(comm, keeper, resume=True, accumulate=accumulate)
        nets.assert_equal(found.arg_params, wanted.arg_params)


def check_a_generation_that_one_rank_lacks_is_passed_over(comm):
    prefix = os.path.join(folder(comm), "net")
    keeper = create_multi_node_checkpointer(prefix, comm)
    fit(comm, keeper, num_epoch=3)
    if comm.rank == comm.size - 1:
        os.remove(f"{keeper.prefix}-0003.params")
    comm.allgather_obj(None)
    assert keeper.newest().epoch == 2
    try:
        keeper.load(3)
    except DataError as error:
        assert "not all ranks" in str(error)
    else:
        raise AssertionError("nothing was raised")
    assert keeper.load(1).epoch == 1


def check_another_number_of_ranks_goes_on_between_epochs(comm):
    """What several wrote, rank 0 takes up alone; the joint batches are the same rows."""
    prefix = os.path.join(folder(comm), "net")
    fit(comm, create_multi_node_checkpointer(prefix, comm), num_epoch=2)
    wanted = fit(comm, None)
    alone = comm.split(comm.rank)
    if comm.rank == 0:
        keeper = create_multi_node_checkpointer(prefix, alone)
        found = fit(alone, keeper, resume=True, kvstore=None)
        nets.assert_close(found.arg_params, wanted.arg_params)
        assert [row["epoch"] for row in found.history] == [0, 1, 2, 3]


def check_ranks_that_would_write_the_same_files_are_an_error(comm):
    try:
        fit(comm, os.path.join(folder(comm), "net"))
    except ArgumentError as error:
        assert "create_multi_node_checkpointer" in str(error)
    else:
        raise AssertionError("nothing was raised")


def check_without_a_checkpoint_auto_begins_anew(comm):
    keeper = create_multi_node_checkpointer(os.path.join(folder(comm), "net"), comm)
    assert keeper.newest() is None
    assert len(fit(comm, keeper, num_epoch=1, resume="auto").history) == 1
