"""100,000 classes: what a cross-entropy metric costs."""

import line_up
import report
import rounds
import targets
from rounds import Runner


def run(name, options):
    work = line_up.work("softmax", options.batch, options.samples)
    work = work.but(callbacks=False, metric=None)
    counting = work.but(metric="ce")
    runners = [
        Runner("mxloop, no metric", "mxloop_fit", work),
        Runner("mxloop, cross-entropy", "mxloop_fit", counting),
        Runner("mx Module, cross-entropy", "module", counting),
    ]
    results = rounds.interleave(runners, options.rounds)
    ratio = rounds.ratio(results["mxloop, cross-entropy"], results["mxloop, no metric"])
    least = targets.METRIC_OF_LARGE_SOFTMAX
    print(report.speeds(results))
    print(
        f"\nwith the metric, of the speed without: {ratio.median:.2f} ({ratio.low:.2f}.."
        f"{ratio.high:.2f}), at least {least:.2f}: {report.holds(ratio.median >= least)}"
    )
    print(report.disturbance(results), end="")
    return results
