"""mxloop against itself, with one setting changed."""

import line_up
import report
import rounds
from rounds import Runner


def run(nets, options, ours, theirs, verdict):
    """Compare two settings on some networks.

    Parameters
    ----------
    nets : sequence of str
    ours, theirs : (str, dict)
        Name of a setting, and what it changes in a work without callbacks.
    verdict : str
        What the ratio of their speeds says.

    Returns
    -------
    dict
        What was measured, by network.
    """
    found = {}
    for net in nets:
        work = line_up.work(net, options.batch, options.samples).but(callbacks=False)
        runners = [
            Runner(name, "mxloop_fit", work.but(**changes)) for name, changes in (ours, theirs)
        ]
        found[net] = results = rounds.interleave(runners, options.rounds)
        ratio = rounds.ratio(results[ours[0]], results[theirs[0]])
        print(f"{net}\n\n{report.speeds(results)}\n")
        print(f"{verdict}: {ratio.median:.3f}\n")
        print(report.disturbance(results), end="")
    return found
