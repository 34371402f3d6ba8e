"""What a step costs outside MXNet's operators: CPU time of Python's thread, a step and device.

That thread queues the operators and hands data over; it also computes for peers that compute where
they are called (PyTorch). CPU time / wall time tells whether the other cores were at work.
"""

import line_up
import report
import rounds
import targets
from line_up import BARE, FEEDFORWARD, GLUON, LEAN, MODULE, MXLOOP, MXLOOP_ITER, MXLOOP_SHARED

SETTINGS = (BARE, MXLOOP, LEAN, MXLOOP_SHARED, MXLOOP_ITER, FEEDFORWARD, MODULE, GLUON)


def run(name, options):
    found = {}
    for net in options.net or ("mlp",):
        runners = [
            r for r in line_up.runners(net, options.batch, options.samples) if r.name in SETTINGS
        ]
        found[net] = results = rounds.interleave(runners, options.rounds)
        print(f"{net}\n\n{report.speeds(results)}\n")
        for setting in (MXLOOP, LEAN, MXLOOP_SHARED):
            spent = report.python_us(results[setting])
            holds = report.holds(spent <= targets.PYTHON_US)
            print(f"{setting}: {spent:.0f} us, at most {targets.PYTHON_US}: {holds}")
        print(report.disturbance(results), end="")
    return found
