"""What progress and logging cost, as a share of an MLP's training step.

    python benchmark/eyes.py

The same training with and without them takes turns. Told are the ratio of the shortest times, which
other load on the machine touches least, and the ratios pair by pair. Exit code 1 where the first is
1 % or more.
"""

import io
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import mxloop
from mxloop import mx
from mxloop.callback import Callback, HistoryFile, Progress, Throughput

ROWS, BATCH, PAIRS, EPOCHS = 60_000, 128, 24, 2
ALLOWED = 0.01


class Clock(Callback):
    """The time from the first batch to the end of the last epoch."""

    def on_epoch_begin(self, state):
        if state.epoch == 0:
            self.begun = time.perf_counter()

    def on_train_end(self, state):
        self.seconds = time.perf_counter() - self.begun


class Terminal(io.StringIO):
    """What tqdm takes for a terminal."""

    def isatty(self):
        return True


def network():
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    for i, width in enumerate((128, 64), start=1):
        net = mx.sym.FullyConnected(net, num_hidden=width, name=f"fc{i}")
        net = mx.sym.Activation(net, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10), name="softmax")


def seconds(data, *callbacks):
    """What the epochs of a short training take."""
    clock = Clock()
    model = mxloop.FeedForward(network(), num_epoch=EPOCHS, learning_rate=0.05, momentum=0.9)
    model.fit(data, callbacks=[*callbacks, clock], seed=1)
    return clock.seconds


def compare(data, *callbacks):
    """Seconds without and with the callbacks, of each pair."""
    pairs = []
    for i in range(PAIRS):
        # Who comes first changes: a machine that grows slower favours the first.
        both = {made: seconds(data, *made) for made in ((), callbacks)[:: 1 if i % 2 else -1]}
        pairs.append((both[()], both[callbacks]))
    return pairs


def main():
    logging.getLogger("mxloop").addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("mxloop").setLevel(logging.INFO)
    random = np.random.RandomState(0)
    x, y = random.rand(ROWS, 1, 28, 28).astype("float32"), random.randint(0, 10, ROWS)
    data = mxloop.data.ArrayIter(x, y, BATCH, shuffle=True, seed=1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        history = HistoryFile(Path(folder) / "run.jsonl")
        for name, stream in (("bar on a terminal", Terminal()), ("lines in a file", io.StringIO())):
            pairs = compare(data, Progress(stream=stream), Throughput(), history)
            ratios = [seen / plain - 1 for plain, seen in pairs]
            low, median, high = statistics.quantiles(ratios, n=4)
            plain, seen = (min(times) for times in zip(*pairs))
            step = plain / EPOCHS / (ROWS / BATCH)
            print(
                f"{name}: {seen / plain - 1:+.2%} of a step of {step * 1e6:.0f} us (shortest of "
                f"{PAIRS}); pair by pair {median:+.2%} (quartiles {low:+.2%}, {high:+.2%})"
            )
            worst = max(worst, seen / plain - 1)
    return 0 if worst < ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
