"""Batch sizes: where the cost of a step counts, and where only that of its operators."""

import line_up
import report
import rounds
from line_up import BARE, FEEDFORWARD, MODULE, MXLOOP

SIZES = (16, 64, 128, 512)


def run(name, options):
    found = {}
    for net in options.net or ("mlp",):
        for size in SIZES:
            found[f"{net}, {size}"] = results = _measure(net, size, options)
            print(f"{net}, batches of {size}\n\n{report.speeds(results)}\n")
            print(report.disturbance(results), end="")
    return found


def _measure(net, size, options):
    samples = options.samples or line_up.SAMPLES[net] // 2
    runners = line_up.runners(net, batch=size, samples=max(samples, 4 * size))
    wanted = [r for r in runners if r.name in (BARE, MXLOOP, FEEDFORWARD, MODULE)]
    return rounds.interleave(wanted, options.rounds)
