"""kvstore 'dist_sync': 2 workers with a server and a scheduler, all on this machine."""

import contextlib
import os
import socket
import subprocess
import sys

import line_up
import report
import rounds
from rounds import Runner, Worker

WORKERS = 2
SAMPLES = {"mlp": 6_400, "lenet": 1_280, "resnet20": 512}
SERVICE = {
    "mxloop_fit": "import mxloop",
    "module": "import stock; stock.import_mxnet()",
}


class Cluster:
    """What `rounds.Worker` is for one process, for a cluster: all its workers run an epoch."""

    def __init__(self, runner):
        self.name = runner.name
        environ = {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(_free_port()),
            "DMLC_NUM_WORKER": str(WORKERS),
            "DMLC_NUM_SERVER": "1",
        }
        self._services = [
            _service(SERVICE[runner.peer], {**environ, "DMLC_ROLE": role})
            for role in ("scheduler", "server")
        ]
        self._workers = [Worker(runner, **environ, DMLC_ROLE="worker") for _ in range(WORKERS)]

    def answer(self):
        """Wait for all; the slowest one's answer, with the CPU time of all."""
        answers = [worker.answer() for worker in self._workers]
        slowest = max(answers, key=lambda answer: answer.get("seconds", 0))
        return {**slowest, "cpu": sum(answer.get("cpu", 0) for answer in answers)}

    def run(self):
        """Run an epoch on all; what the services use of the CPU belongs to it as well."""
        for worker in self._workers:
            worker.start()
        return {**self.answer(), "others": 0.0}

    def end(self):
        """End all processes."""
        for worker in self._workers:
            worker.end()
        for service in self._services:
            service.kill()
            service.wait()


def _service(statement, environ):
    path = os.pathsep.join([rounds.HERE, os.path.dirname(rounds.HERE)])
    return subprocess.Popen(
        [sys.executable, "-c", statement],
        env={**os.environ, **environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(name, options):
    found = {}
    for net in options.net or ("mlp", "lenet"):
        work = line_up.work(net, options.batch, options.samples or SAMPLES[net])
        work = work.but(kvstore="dist_sync", threads=1)
        runners = [
            Runner("mxloop", "mxloop_fit", work),
            Runner("mx Module", "module", work),
        ]
        found[net] = results = rounds.interleave(runners, options.rounds, Cluster)
        print(f"{net}, samples of each of {WORKERS} workers\n\n{report.speeds(results)}\n")
    return found
