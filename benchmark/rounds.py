"""Peers that take turns: in every round each runs one epoch, while all others sleep.

So a machine that is slower for a while is slower for all. The first round, which warms up, is not
counted, and neither is anything before it.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from work import Work

HERE = os.path.dirname(os.path.abspath(__file__))
REST = 0.25  # seconds; OpenMP's threads go on spinning for a while after their last work


class Runner(NamedTuple):
    """A peer in one of its settings."""

    name: str
    peer: str
    work: Work


class Worker:
    """The process of a runner."""

    def __init__(self, runner: Runner, **environment: str):
        self.name = runner.name
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "worker.py"), runner.peer, runner.work.to_json()],
            env={**_environment(runner.work), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def start(self) -> None:
        """Let an epoch begin."""
        with contextlib.suppress(BrokenPipeError):  # the answer that does not come says why
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def answer(self) -> Dict[str, Any]:
        """Wait for the next answer."""
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended early:\n{self._log.read()[-3000:]}")
        return json.loads(line)

    def run(self) -> Dict[str, Any]:
        """Run an epoch."""
        self.start()
        return self.answer()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()


def _environment(work):
    """As a user's: no setting of threads, unless the work has one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MXNET_", "DMLC_"))}
    path = [os.path.dirname(HERE), kept.get("PYTHONPATH")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return kept if work.threads is None else {**kept, "OMP_NUM_THREADS": str(work.threads)}


def interleave(runners: Sequence[Runner], rounds: int) -> Dict[str, Dict[str, Any]]:
    """Run all, round by round, in an order that changes.

    Returns
    -------
    dict of str to dict
        By the runner's name: `epochs`, what each counted round took, `work`, and what the worker
        said in the end.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for runner in runners:
            timed = runner._replace(work=runner.work.but(epochs=rounds + 1))
            workers.append(Worker(timed))
            stack.callback(workers[-1].end)
        for worker in workers:
            worker.answer()  # ready
        epochs: Dict[str, List[Any]] = {worker.name: [] for worker in workers}
        for number in range(rounds + 1):
            for worker in random.Random(number).sample(workers, len(workers)):
                time.sleep(REST)
                epochs[worker.name].append(worker.run())
        last = {worker.name: worker.answer() for worker in workers}
    return {
        runner.name: {
            "peer": runner.peer,
            "work": runner.work.as_dict(),
            "warm_up": epochs[runner.name][0],
            "epochs": epochs[runner.name][1:],
            **last[runner.name],
        }
        for runner in runners
    }


def speeds(result: Dict[str, Any]) -> List[float]:
    """Samples per second in each round."""
    work = result["work"]
    samples = work["samples"] // work["batch"] * work["batch"]
    return [samples / epoch["seconds"] for epoch in result["epochs"]]


class Spread(NamedTuple):
    """The median of some values, and their extremes."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(result: Dict[str, Any], other: Dict[str, Any]) -> Spread:
    """How many times as fast as another, round by round."""
    return spread([a / b for a, b in zip(speeds(result), speeds(other))])


def fastest(results: Dict[str, Any], names: Sequence[str]) -> Optional[str]:
    """Whose median is best among those that ran; None where none did."""
    ran = [name for name in names if name in results]
    return max(ran, key=lambda name: spread(speeds(results[name])).median, default=None)
