"""One peer in a process of its own: trains an epoch whenever it is told to, and sleeps in between.

    python worker.py PEER WORK

PEER is a file in `peers`, WORK the JSON of a `Work`. Each line of standard input starts an epoch;
each epoch answers with a line of JSON, and so does the end. The first line says that all is ready.
"""

import importlib
import json
import os
import resource
import sys
import time

import numpy as np
from work import Work


class Clock:
    """What has passed since an epoch began."""

    def start(self):
        """Begin an epoch."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._main = time.thread_time()

    def read(self):
        """Seconds by the clock, of all threads' CPU time, and of the main thread's, Python's."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu": time.process_time() - self._cpu,
            "main": time.thread_time() - self._main,
        }


def main(peer, text):
    work = Work.from_json(text)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed shall not come between the answers
    clock = Clock()
    epochs = []

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    def wait():
        if not sys.stdin.readline():
            os._exit(1)  # nobody is there any more
        clock.start()

    def epoch_done(samples, metric):
        passed = clock.read()
        epochs.append(samples)
        answer(**passed, samples=samples, metric=None if metric is None else float(metric))
        if len(epochs) < work.epochs:
            wait()

    module = importlib.import_module(f"peers.{peer}")
    answer(ready=True)
    wait()
    params = module.train(work, epoch_done)
    answer(
        parameters=int(sum(array.size for array in params)),
        norms=[float(np.linalg.norm(array.astype("float64"))) for array in params],
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
