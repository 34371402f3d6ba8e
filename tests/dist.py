"""MXNet's parameter server on this machine: real processes, watched, and gone in the end."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import mxloop

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(mxloop.__file__)))
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
DEADLINE = 90


class Ended(NamedTuple):
    """How a process ended: None where it had to be killed."""

    code: object
    output: str


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    """This process's environment without its MXNet cluster, if it is in one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "MXLOOP_"))}
    return {**kept, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **more}


def cluster_environment(role, workers, port, **more):
    return environment(
        DMLC_ROLE=role,
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT=str(port),
        DMLC_NUM_WORKER=str(workers),
        DMLC_NUM_SERVER="1",
        DMLC_NODE_HOST="127.0.0.1",
        **more,
    )


def _die_with_parent():
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


class Cluster:
    """A scheduler, a server and workers; leaving the block ends them all, whatever happened."""

    def __init__(self, directory):
        self._directory = directory
        self._started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, arguments, env):
        """Start Python in a process group of its own, with its output in a file."""
        path = os.path.join(str(self._directory), f"process{len(self._started)}.txt")
        with open(path, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._started.append((process, path))
        return process

    def wait(self, processes, seconds=DEADLINE):
        """Wait for processes, but not for ever; return how each ended."""
        until = time.monotonic() + seconds
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.01))
        return [Ended(process.poll(), self._output(process)) for process in processes]

    def _output(self, process):
        path = next(path for started, path in self._started if started is process)
        with open(path, errors="replace") as output:
            return output.read()


def run(directory, workers, seconds=DEADLINE, **more):
    """Run one script a worker, with a scheduler and a server; return how all of them ended.

    Parameters
    ----------
    workers : list of list of str
        Arguments of Python, for each worker.

    Returns
    -------
    workers, services : list of Ended
        The services are the scheduler and the server, which only do ``import mxloop``.
    """
    port = free_port()
    with Cluster(directory) as cluster:
        services = [
            cluster.start(
                ["-c", "import mxloop; print('returned from the import')"],
                cluster_environment(role, len(workers), port, **more),
            )
            for role in ("scheduler", "server")
        ]
        started = [
            cluster.start(arguments, cluster_environment("worker", len(workers), port, **more))
            for arguments in workers
        ]
        ended = cluster.wait(started, seconds)
        # Without a clean end of all workers, the services have nothing that tells them to end.
        clean = all(worker.code == 0 for worker in ended)
        return ended, cluster.wait(services, 15 if clean else 0)
