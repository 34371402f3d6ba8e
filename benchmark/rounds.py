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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from work import Work

HERE = os.path.dirname(os.path.abspath(__file__))
REST = 0.25  # seconds; OpenMP's threads go on spinning for a while after their last work
PATIENCE = 60  # seconds to wait in all, where other processes keep the machine busy
TICK = 0.03  # seconds; the system counts CPU time in steps of a hundredth
BUSY = 0.1  # cores that others may use without being noticed


class Runner(NamedTuple):
    """A peer in one of its settings."""

    name: str
    peer: str
    work: Work


class Worker:
    """The process of a runner."""

    def __init__(self, runner: Runner, **environment: str):
        self.name = runner.name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in end)
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
        """Run an epoch; `others` is the CPU time that other processes took, for each second."""
        before = _busy()
        self.start()
        answer = self.answer()
        others = max(_busy() - before - answer["cpu"] - TICK, 0.0) / answer["seconds"]
        return {**answer, "others": others}

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def _busy():
    """CPU seconds that the whole machine has spent since it started; 0 where nothing tells."""
    try:
        with open("/proc/stat") as stream:
            user, nice, system, _, _, irq, softirq = map(int, stream.readline().split()[1:8])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _rest(quiet_by):
    """Let the last worker's threads fall asleep; where others are at work, wait for them a bit."""
    while True:
        before = _busy()
        time.sleep(REST)
        if _busy() - before < BUSY * REST + TICK or time.monotonic() > quiet_by:
            return


def _environment(work):
    """As a user's: no setting of threads, unless the work has one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MXNET_", "DMLC_"))}
    path = [os.path.dirname(HERE), kept.get("PYTHONPATH")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return kept if work.threads is None else {**kept, "OMP_NUM_THREADS": str(work.threads)}


def interleave(
    runners: Sequence[Runner], rounds: int, make: Callable[[Runner], Any] = Worker
) -> Dict[str, Dict[str, Any]]:
    """Run all, round by round, in an order that changes.

    Parameters
    ----------
    runners : list of Runner
    rounds : int
        To be counted.
    make : callable
        Makes what runs a runner; several processes, for instance.

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
            workers.append(make(timed))
            stack.callback(workers[-1].end)
        for worker in workers:
            worker.answer()  # ready
        epochs: Dict[str, List[Any]] = {worker.name: [] for worker in workers}
        quiet_by = time.monotonic() + PATIENCE
        for number in range(rounds + 1):
            for worker in random.Random(number).sample(workers, len(workers)):
                _rest(quiet_by)
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


def speeds(*results: Dict[str, Any]) -> List[List[float]]:
    """Samples per second, for each of the results, in the rounds in which all had the machine.

    Where fewer than three rounds are left, those that others disturbed count as well.
    """
    each = list(zip(*(result["epochs"] for result in results)))
    quiet = [epochs for epochs in each if all(epoch["others"] <= BUSY for epoch in epochs)]
    samples = [result["work"]["samples"] for result in results]
    return [
        [count / epoch["seconds"] for epoch in epochs]
        for count, epochs in zip(samples, zip(*(quiet if len(quiet) > 2 else each)))
    ]


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
    return spread([a / b for a, b in zip(*speeds(result, other))])


def fastest(results: Dict[str, Any], names: Sequence[str]) -> Optional[str]:
    """Whose median is best among those that ran; None where none did."""
    ran = [name for name in names if name in results]
    return max(ran, key=lambda name: spread(*speeds(results[name])).median, default=None)
