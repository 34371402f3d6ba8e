"""A network in stages on several ranks, against one process with all of it."""

import sys

HERE = __file__.rsplit("/checks/", 1)[0]
sys.path[:0] = [HERE, HERE.rsplit("/", 1)[0]]

import nets  # noqa: E402
import pipelines  # noqa: E402

from mxloop.compat import mx  # noqa: E402
from mxloop.errors import ArgumentError  # noqa: E402

WHOLE = pipelines.whole()


def check_one_micro_batch_to_the_bit(comm):
    found = pipelines.in_stages(pipelines.CUTS[comm.size], communicator=comm)
    pipelines.compare(found, WHOLE, exactly=True)


def check_micro_batches_by_1f1b(comm):
    several(comm, "1f1b")


def check_micro_batches_by_gpipe(comm):
    several(comm, "gpipe")


def several(comm, schedule):
    for micro_batches in (2, 3, 4, 8):
        found = pipelines.in_stages(
            pipelines.CUTS[comm.size],
            communicator=comm,
            micro_batches=micro_batches,
            schedule=schedule,
        )
        pipelines.compare(found, WHOLE, exactly=False)


def check_two_contexts_a_rank(comm):
    """Twice as many stages as ranks: values go from one to the next inside and between ranks."""
    cuts = ["fc1", "act1", "fc2", "act2", "out"][: 2 * comm.size - 1]
    found = pipelines.in_stages(
        cuts, communicator=comm, ctx=[mx.cpu(0), mx.cpu(1)], micro_batches=3
    )
    pipelines.compare(found, WHOLE, exactly=False)


def check_by_hand(comm):
    found, accuracy = pipelines.by_hand(
        pipelines.CUTS[comm.size], communicator=comm, micro_batches=2
    )
    wanted, expected = pipelines.by_hand([])
    nets.assert_close(found, wanted)
    assert accuracy == expected
    assert len(set(comm.allgather_obj(accuracy))) == 1


def check_large_values_cross_without_a_deadlock(comm):
    symbol = nets.mlp(widths=(3000, 3000))
    batches = lambda: pipelines.data(64, 32)  # noqa: E731
    settings = {"symbol": symbol, "batches": batches}
    wanted = pipelines.whole(**settings)
    for micro_batches in (1, 4):
        found = pipelines.in_stages(
            pipelines.CUTS[comm.size], communicator=comm, micro_batches=micro_batches, **settings
        )
        # Sums over 3,000 numbers in another order; with one micro-batch the same to the bit.
        nets.assert_close(found.arg_params, wanted.arg_params, 2e-4 if micro_batches > 1 else 0)


def check_stages_must_be_as_many_as_ranks(comm):
    try:
        pipelines.in_stages(["act1"] * (comm.size + 1), communicator=comm)
    except ArgumentError as error:
        assert len(str(error)) <= 250
    else:
        raise AssertionError("nothing was raised")
