"""1, 2 and 4 contexts, with 1 and 2 threads each: what several devices of one machine gain."""

import line_up
import report
import rounds
import targets
from rounds import Runner

# Samples in an epoch; more threads than cores can take ten times as long as fewer.
NETS = {"mlp": 25_600, "lenet": 1_920, "resnet20": 512}


def run(name, options):
    found = {}
    for net in options.net or NETS:
        results = rounds.interleave(list(_runners(net, options)), options.rounds)
        print(f"{net}\n\n{report.speeds(results)}\n\n{_verdicts(net, results)}\n")
        print(report.disturbance(results), end="")
        found[net] = results
    return found


def _runners(net, options):
    work = line_up.work(net, options.batch, options.samples or NETS.get(net))
    for contexts in (1, 2, 4):
        for threads in (1, 2):
            text = f"{contexts} contexts, {threads} threads"
            yield Runner(text, "mxloop_fit", work.but(contexts=contexts, threads=threads))
    yield Runner("2 contexts by default", "mxloop_fit", work.but(contexts=2))


def _verdicts(net, results):
    shared = results["2 contexts by default"]
    rows = [
        _row(net, text, rounds.ratio(shared, results[other]), least)
        for text, other, least in (
            ("1 context, 1 thread", "1 contexts, 1 threads", targets.SHARED_OVER_ONE_THREAD),
            ("1 context, 2 threads", "1 contexts, 2 threads", targets.SHARED_OVER_ALL_THREADS),
        )
    ]
    return report.table(["2 contexts against", "ratio", "min..max", "wanted", ""], rows)


def _row(net, text, ratio, least):
    holds = report.holds(ratio.median >= least)
    return (
        f"{net}: {text}",
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f}..{ratio.high:.2f}",
        f">= {least:.2f}",
        holds,
    )
