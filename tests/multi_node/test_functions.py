"""Model parallelism: gradients through ranks, against one process."""

import pytest
from nets import one_line
from ranks import Checks, check_names, needs_mpi

from mxloop.compat import mx
from mxloop.multi_node import Communicator, MultiNodeChainList

ON = {2: Checks("gradients", 2), 3: Checks("gradients", 3), 4: Checks("gradients", 4)}


@needs_mpi
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", check_names("gradients"))
def test_gradients_equal_those_of_one_process(name, size):
    ON[size].outcome(name)


MODEL = Checks("model_parallel", 2)


@needs_mpi
@pytest.mark.parametrize("name", check_names("model_parallel"))
def test_a_network_on_two_ranks_learns_as_on_one(name):
    MODEL.outcome(name)


# --- Mistakes in a network, found without other ranks -------------------------------------------


class OnRank0(Communicator):
    """Rank 0 of 2, as far as one can be without the other."""

    size = 2


def chain_list(*links):
    net = MultiNodeChainList(OnRank0())
    for link in links:
        net.add_link(*link)
    return net


def same(*values):
    return values[0]


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: chain_list((same,), (same,)), ValueError, "second part without rank_out"),
        (lambda: chain_list((same, 2, None)), ValueError, "2 ranks"),
        (lambda: chain_list((same, [], None)), ValueError, "empty list"),
        (lambda: chain_list((same, "a", None)), TypeError, "integer"),
        (lambda: chain_list((3,)), TypeError, "Block"),
        (lambda: MultiNodeChainList("mpi"), TypeError, "create_communicator"),
        (lambda: chain_list((same, 0, None))(mx.nd.ones(1)), RuntimeError, "sent nothing yet"),
        (lambda: chain_list((same, None, 0))(mx.nd.ones(1)), RuntimeError, "were not taken"),
        (lambda: chain_list()(mx.nd.ones(1)), RuntimeError, "add_link"),
    ],
)
def test_a_mistake_in_a_network_is_one_line(call, kind, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    one_line(caught)


def test_a_queue_is_first_in_first_out():
    net = chain_list(
        (lambda x: x + 1, None, 0),
        (lambda x: x * 10, None, [0, 0]),
        (lambda a, b: a - b, [0, 0], 0),
        (lambda a, b: (a, b), [0, 0], None),
    )
    first, second = net(mx.nd.array([3]))
    assert (first.asscalar(), second.asscalar()) == (30, -26)


def test_parameters_of_the_parts_are_the_networks():
    net = chain_list((mx.gluon.nn.Dense(2, in_units=3), None, 0), (same, 0, None))
    assert len(list(net.collect_params())) == 2
    net.initialize()
    assert net(mx.nd.ones((1, 3))).shape == (1, 2)
