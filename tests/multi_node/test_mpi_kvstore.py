"""kvstore='mpi': parameters do not depend on how many processes there are."""

import pytest
from ranks import Checks, check_names, needs_mpi, run_text

import mxloop
from mxloop import model
from mxloop.errors import ArgumentError

ON = {size: Checks("kvstore_mpi", size, 90) for size in (1, 2, 3, 4)}


@needs_mpi
@pytest.mark.parametrize("size", [2, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4)]])
@pytest.mark.parametrize("name", check_names("kvstore_mpi"))
def test_ranks_together_train_as_one_process(name, size):
    ON[size].outcome(name)


def test_one_process_has_the_store_as_well():
    store, on_store = model.create_kvstore("mpi", 1, {})
    assert (store.type, store.rank, store.num_workers, on_store) == ("mpi", 0, 1, False)
    assert store.total(3) == 3
    grads = [mxloop.mx.nd.ones(3), mxloop.mx.nd.ones(3) * 2]
    store.pushpull("w", grads)
    assert all((grad.asnumpy() == 3).all() for grad in grads)


def test_a_typo_names_the_store():
    with pytest.raises(ArgumentError, match="'mpi'"):
        model.create_kvstore("mpy", 1, {})


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_ends_within_an_epoch_is_an_error_of_the_others():
    text = """
    import sys, time
    sys.path.insert(0, 'tests')
    import nets
    from mxloop import FeedForward
    from mxloop.data import ArrayIter
    from mxloop.multi_node import create_communicator
    comm = create_communicator()

    def leave(param):
        if comm.rank == 1 and param.nbatch == 3:
            sys.exit(0)

    data = ArrayIter(*nets.samples(80), batch_size=8)
    FeedForward(nets.mlp(), num_epoch=2).fit(data, kvstore='mpi', batch_end_callback=leave)
    """
    ended = run_text(2, text, 40)
    assert ended.code not in (None, 0)
    assert "PeerError: rank 0 waited" in ended.output and "rank 1 has ended" in ended.output
