"""Peak memory of each peer's process, data and libraries included."""

import line_up
import report
import rounds
import targets
from line_up import FEEDFORWARD, GLUON, MODULE, MXLOOP, MXLOOP_ITER, MXLOOP_SHARED, TORCH

SETTINGS = (MXLOOP, MXLOOP_SHARED, MXLOOP_ITER, FEEDFORWARD, MODULE, GLUON, TORCH)


def run(name, options):
    found = {}
    for net in options.net or ("mlp", "lenet", "resnet20"):
        runners = [
            r for r in line_up.runners(net, options.batch, options.samples) if r.name in SETTINGS
        ]
        peaks = {n: r["peak_mib"] for n, r in rounds.interleave(runners, 2).items()}
        limit = targets.MEMORY_OF_MODULE * peaks[MODULE]
        rows = [(n, f"{p:.0f}", f"{p / peaks[MODULE]:.2f}") for n, p in peaks.items()]
        print(report.table([net, "peak MiB", "of Module's"], rows))
        print(f"\nat most Module's: {report.holds(peaks[MXLOOP] <= limit)}\n")
        found[net] = peaks
    return found
