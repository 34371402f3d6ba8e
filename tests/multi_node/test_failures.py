"""Whatever happens to one rank, all end soon, with a code and one readable error."""

import time

import pytest
from ranks import ROOT, needs_mpi, run_text

pytestmark = needs_mpi

PROGRAM = """
import os, signal, sys, time
from mxloop.compat import mx
from mxloop.multi_node import create_communicator, functions as F
comm = create_communicator(seconds={seconds})
print("ready", flush=True)
if comm.rank == 1:
    {happens}
else:
    {others}
"""
WAIT = "comm.recv(1)"
COMPUTE = "time.sleep(40)"


def run(happens, others=WAIT, seconds=20, size=2):
    began = time.monotonic()
    ended = run_text(size, PROGRAM.format(happens=happens, others=others, seconds=seconds), 40)
    took = time.monotonic() - began
    assert ended.code not in (None, 0), ended.output
    return ended, took


def lines(ended, text):
    """Lines with this text, but not those of the program that raise it."""
    found = [line for line in ended.output.splitlines() if text in line]
    return [line for line in found if not line.startswith("    raise")]


@pytest.mark.parametrize("others", [pytest.param(WAIT, marks=pytest.mark.slow), COMPUTE])
def test_an_exception_ends_all_with_its_traceback(others):
    ended, took = run("raise KeyError('lost key')", others)
    assert took < 12
    assert lines(ended, "KeyError: 'lost key'") and lines(ended, "Traceback")
    assert lines(ended, "rank 1 of 2 failed") and not lines(ended, "PeerError")


def test_an_exit_with_a_code_ends_all_with_that_code():
    ended, took = run("sys.exit(5)", COMPUTE)
    assert took < 12 and ended.code == 5
    assert len(lines(ended, "rank 1 of 2 ended with sys.exit(5)")) == 1


@pytest.mark.slow
def test_an_exit_with_a_message_ends_all():
    ended, took = run("sys.exit('no data here')", COMPUTE)
    assert took < 12 and lines(ended, "no data here")


@pytest.mark.parametrize(
    "happens",
    [
        "sys.exit(0)",
        "os._exit(0)",
        *[pytest.param(h, marks=pytest.mark.slow) for h in ("pass", "raise SystemExit(3)")],
    ],
)
def test_an_end_while_others_wait_is_an_error_of_theirs(happens):
    ended, took = run(happens)
    assert took < 12
    assert lines(ended, "PeerError: rank") and lines(ended, "but rank 1 has ended")


def test_a_killed_rank_ends_all():
    ended, took = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert took < 12
    assert lines(ended, "KILLED BY SIGNAL: 9") or lines(ended, "BAD TERMINATION")


@pytest.mark.slow
def test_an_error_in_a_backward_thread_ends_all():
    happens = """
    from mxloop.multi_node.graph import record
    x, y = mx.nd.ones(1), mx.nd.ones(1)
    def fails(grad):
        raise KeyError('in a thread')
    with mx.autograd.record():
        record([x], [y], fails, 'a test')
    y.backward()
    comm.recv(0)
    """.replace("\n    ", "\n    ").strip()
    ended, took = run(happens)
    assert took < 12
    assert lines(ended, "KeyError: 'in a thread'") and lines(ended, "failed in a test")


def test_a_rank_that_is_not_at_this_step_is_an_error_within_the_deadline():
    ended, took = run(COMPUTE, seconds=2)
    assert took < 14
    (line, *_) = lines(ended, "PeerError")
    assert "waited 2 s for rank 1 to send the message with tag 0" in line
    assert len(line.partition(": ")[2]) <= 250


@pytest.mark.slow
def test_a_large_send_that_nobody_takes_is_an_error_within_the_deadline():
    ended, took = run(COMPUTE, "comm.send(mx.nd.ones((1000, 1000)), 1)", seconds=2)
    assert took < 14
    assert lines(ended, "for rank 1 to take the message with tag 0")


@pytest.mark.slow
def test_a_sum_that_one_does_not_join_is_an_error_within_the_deadline():
    ended, took = run(COMPUTE, "comm.average([mx.nd.ones(3)])", seconds=2)
    assert took < 14
    assert lines(ended, "waited 2 s for rank") and lines(ended, "to join in the sum of 1 arrays")


def test_a_rank_that_never_starts_mpi_is_an_error_within_the_deadline():
    text = """
    import os, time
    if os.environ['PMI_RANK'] == '1':
        time.sleep(40)
    from mxloop.multi_node import create_communicator
    create_communicator()
    """
    began = time.monotonic()
    ended = run_text(2, text, MXLOOP_MPI_SECONDS="2")
    assert ended.code not in (None, 0) and time.monotonic() - began < 14
    assert "not all ranks started MPI within 2 s" in ended.output


@pytest.mark.slow
def test_a_deadline_that_is_no_number_is_one_line():
    text = "from mxloop.multi_node import create_communicator as create; create()"
    ended = run_text(2, text, MXLOOP_MPI_SECONDS="soon")
    assert ended.code not in (None, 0)
    assert "MXLOOP_MPI_SECONDS is 'soon'" in ended.output


def test_all_ending_well_is_code_0_and_a_caught_exit_is_no_end():
    text = """
    import sys
    from mxloop.multi_node import create_communicator
    comm = create_communicator(seconds=20)
    try:
        sys.exit(3)
    except SystemExit:
        pass
    print(comm.allreduce_obj(comm.rank))
    """
    code, output = run_text(2, text)
    assert (code, output.split()) in [(0, ["1", "1"]), (0, ["11"])]  # two ranks' lines may mix


@pytest.mark.slow
def test_training_beside_predicting_ends_all_with_one_error():
    happens = "F.recv(comm, 0)"
    others = """
    if comm.rank == 0:
        w = mx.nd.ones(2)
        w.attach_grad()
        with mx.autograd.record():
            head = F.send(w, comm, 1)
        head.backward()
        mx.nd.waitall()
    """.strip()
    ended, took = run(happens, others)
    assert took < 12
    assert lines(ended, "StateError: rank 0 trains (autograd.record) and rank 1 predicts")


PIPELINE = """
    import sys
    sys.path[:0] = ['tests', 'tests/multi_node']
    import pipelines, tempfile
    from mxloop.multi_node import *
    comm = create_communicator(seconds=30)

    def happens(param):
        if comm.rank == 1 and param.nbatch == 1:
            {happens}

    prefix = comm.bcast_obj(tempfile.mkdtemp()) + "/net"
    model = PipelineFeedForward(pipelines.SYMBOL, ["act2"], communicator=comm, num_epoch=2)
    keeper = create_multi_node_checkpointer(prefix, comm)
    model.fit(pipelines.data(), batch_end_callback=happens, checkpoint=keeper)
"""


@pytest.mark.parametrize(
    "happens, text",
    [
        ("raise KeyError('lost key')", "KeyError: 'lost key'"),
        pytest.param("sys.exit(0)", "PeerError: rank 0 waited", marks=pytest.mark.slow),
        pytest.param("sys.exit(4)", "rank 1 of 2 ended with sys.exit(4)", marks=pytest.mark.slow),
    ],
)
def test_a_failure_within_an_epoch_of_a_pipeline_ends_all_at_once(happens, text):
    began = time.monotonic()
    ended = run_text(2, PIPELINE.format(happens=happens), 40, cwd=str(ROOT))
    assert ended.code not in (None, 0) and time.monotonic() - began < 14
    assert lines(ended, text) and len(lines(ended, "Error: ")) <= 1


@pytest.mark.slow
def test_a_last_sum_that_nobody_asks_for_is_an_error_at_the_end():
    text = """
    from mxloop.compat import mx
    from mxloop.multi_node import create_communicator
    comm = create_communicator(seconds=20)
    store = mx.kv.create('mpi')
    store.pushpull('w', mx.nd.ones((3 + comm.rank,)))
    """
    ended = run_text(2, text)
    assert ended.code not in (None, 0)
    assert lines(ended, "failed: rank") and lines(ended, "another rank something else")


@pytest.mark.slow
def test_an_end_of_all_by_os_exit_is_code_0_and_that_of_a_child_ends_nobody():
    text = """
    import os
    from mxloop.multi_node import create_communicator
    comm = create_communicator(seconds=20)
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitpid(child, 0)[1] >> 8 == 3
    print(comm.allreduce_obj(comm.rank), flush=True)
    os._exit(0)
    """
    ended = run_text(2, text)
    assert ended.code == 0 and ended.output.endswith("1\n1\n")  # 3.12 warns of forks
