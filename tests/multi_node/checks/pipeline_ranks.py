"""A network in stages on several ranks, against one process with all of it."""

import contextlib
import os
import sys
import tempfile

HERE = __file__.rsplit("/checks/", 1)[0]
sys.path[:0] = [HERE, HERE.rsplit("/", 1)[0]]

import nets  # noqa: E402
import pipelines  # noqa: E402

from mxloop import FeedForward  # noqa: E402
from mxloop.compat import mx  # noqa: E402
from mxloop.data import ArrayIter  # noqa: E402
from mxloop.errors import ArgumentError  # noqa: E402
from mxloop.multi_node import PipelineFeedForward, create_multi_node_checkpointer  # noqa: E402

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


def raises(call, *words):
    try:
        call()
    except ArgumentError as error:
        assert len(str(error)) <= 250 and all(word in str(error) for word in words), error
    else:
        raise AssertionError("nothing was raised")


def model(comm, cuts=None, symbol=pipelines.SYMBOL, **settings):
    cuts = pipelines.CUTS[comm.size] if cuts is None else cuts
    args, aux = pipelines.begin(symbol, **settings.pop("shapes", {}))
    given = {**pipelines.SETTINGS, **settings}
    return PipelineFeedForward(
        symbol, cuts, arg_params=args, aux_params=aux, communicator=comm, **given
    )


def folder(comm):
    return comm.bcast_obj(tempfile.mkdtemp() if comm.rank == 0 else None)


def check_what_stages_cannot_do_is_one_line_on_all_ranks(comm):
    raises(lambda: model(comm).fit(pipelines.data(), kvstore="mpi"), "kvstore", "leave")
    raises(lambda: model(comm).fit(pipelines.data(), checkpoint="net"), "multi_node_checkpointer")
    raises(lambda: model(comm).fit(pipelines.data(43, 16 - comm.rank)), "differ in shapes")
    raises(lambda: model(comm, micro_batches=1 + comm.rank).fit(pipelines.data()), "micro_batches")


def check_saved_states_are_those_of_all_ranks(comm):
    """One process goes on where several had come to, and the other way round."""
    prefix = os.path.join(folder(comm), f"net{comm.rank}")
    model(comm, num_epoch=2).fit(pipelines.data()).save(prefix, save_optimizer_states=True)
    wanted = pipelines.whole()
    settings = {name: pipelines.SETTINGS[name] for name in ("learning_rate", "momentum")}
    found = FeedForward.load(prefix, 2, mx.cpu(), load_optimizer_states=True, **settings)
    order = pipelines.data()
    order.load_state_dict({**order.state_dict(), "epoch": 2, "position": 0})
    found.fit(order, num_epoch=1, kvstore=None)
    nets.assert_close(found.arg_params, wanted.arg_params)


def images():
    return ArrayIter(*nets.samples(32, (1, 8, 8)), 16)


def check_batches_that_are_added_up_also_when_taken_up_within_an_update(comm):
    """Of three batches, two to an update: those of one process with batches twice as large."""
    plain = model(comm).fit(pipelines.data(), accumulate=2)
    large = pipelines.whole(batches=lambda: pipelines.data(43, 32))
    nets.assert_close(plain.arg_params, large.arg_params)

    def interrupt(param):
        if (param.epoch, param.nbatch) == (1, 1):
            raise KeyboardInterrupt

    prefix = os.path.join(folder(comm), "net")
    keeper = create_multi_node_checkpointer(prefix, comm, every_n_batches=1)
    settings = {"accumulate": 2, "checkpoint": keeper}
    with contextlib.suppress(KeyboardInterrupt):
        model(comm).fit(pipelines.data(), batch_end_callback=interrupt, **settings)
    assert keeper.newest().manifest["gathered"]["batches"] == 1
    found = model(comm).fit(pipelines.data(), resume=True, **settings)
    nets.assert_equal(found.arg_params, plain.arg_params)


def check_a_pipeline_goes_on_from_a_checkpoint(comm):
    """With BatchNorm's states; by as many ranks, and by one process."""
    prefix, symbol, shapes = os.path.join(folder(comm), "net"), nets.conv_bn(), (16, 1, 8, 8)
    if comm.size > 2:
        return
    settings = {"symbol": symbol, "cuts": ["bn1"], "shapes": {"data": shapes}}
    keeper = create_multi_node_checkpointer(prefix, comm)
    model(comm, num_epoch=2, **settings).fit(images(), checkpoint=keeper)
    wanted = pipelines.whole(symbol, images, data=shapes)
    found = model(comm, **settings).fit(images(), checkpoint=keeper, resume=True)
    nets.assert_close(found.arg_params, wanted.arg_params)
    nets.assert_close(found.aux_params, wanted.aux_params)
    alone = comm.split(comm.rank)
    if comm.rank == 0:
        for epoch in (3,):
            os.remove(f"{prefix}-rank0of{comm.size}-{epoch:04d}.json")
        found = model(alone, ctx=[mx.cpu(0), mx.cpu(1)], **settings)
        found.fit(images(), checkpoint=create_multi_node_checkpointer(prefix, alone), resume=True)
        nets.assert_close(found.arg_params, wanted.arg_params)
        nets.assert_close(found.aux_params, wanted.aux_params)
