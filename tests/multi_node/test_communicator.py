"""The communicator: several ranks, and one process as a communicator of size 1."""

import re

import numpy as np
import pytest
from nets import one_line
from ranks import Checks, check_names, needs_mpi, run_text

from mxloop.compat import mx
from mxloop.errors import ArgumentError, InstallError
from mxloop.multi_node import create_communicator, functions, world

ON = {2: Checks("communication", 2), 3: Checks("communication", 3)}


@needs_mpi
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", check_names("communication"))
def test_calls_of_several_ranks(name, size):
    ON[size].outcome(name)


def test_one_process_is_rank_0_of_1_and_needs_no_mpi4py(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    comm = create_communicator()
    x = np.arange(3)
    assert (comm.rank, comm.size, comm.intra_rank, comm.intra_size) == (0, 1, 0, 1)
    for found in (comm.bcast(x), comm.gather(x)[0], comm.allgather(x)[0], comm.scatter([x])):
        np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(comm.allreduce(x), x)
    np.testing.assert_array_equal(comm.alltoall([x])[0], x)
    assert comm.allreduce_obj(3) == 3 and comm.bcast_obj("a") == "a"
    assert comm.split(0).size == 1
    comm.finalize()


def test_collectives_of_one_process_have_gradients():
    comm = create_communicator()
    x = mx.nd.array([1, 2, 3])
    x.attach_grad()
    with mx.autograd.record():
        (y,) = functions.allgather(comm, x * 2)
        loss = mx.nd.sum(functions.bcast(comm, y) ** 2)
    loss.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), 8 * x.asnumpy())


def test_what_one_process_cannot_do_is_one_line():
    comm = create_communicator()
    for call in (lambda: comm.send(mx.nd.ones(1), 1), lambda: comm.recv(0)):
        with pytest.raises(ValueError) as caught:
            call()
        one_line(caught)


@pytest.mark.parametrize("name", ["mpi4py", "", None, "MPI"])
def test_a_communicator_of_another_name_is_an_error(name):
    with pytest.raises(ArgumentError, match="communicator") as caught:
        create_communicator(name)
    one_line(caught)


@pytest.mark.parametrize("seconds", [0, -1, "5", True])
def test_a_deadline_is_a_number_of_seconds(seconds):
    with pytest.raises(ArgumentError, match="seconds") as caught:
        create_communicator(seconds=seconds)
    one_line(caught)


def test_without_mpi4py_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(InstallError, match=re.escape("mxloop[mpi]")) as caught:
        world._started(1)
    one_line(caught)


@needs_mpi
def test_mpiexec_with_one_rank_is_one_process():
    ended = run_text(1, "from mxloop.multi_node import *; print(create_communicator().size)")
    assert ended == (0, "1\n")
