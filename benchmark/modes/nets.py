"""One network on all peers, and its targets."""

import line_up
import report
import rounds
import targets


def run(net, options):
    runners = line_up.runners(net, options.batch, options.samples)
    if options.only:
        runners = [r for r in runners if r.name.startswith(tuple(options.only))]
    results = rounds.interleave(runners, options.rounds)
    verdicts = targets.judge(net, results)
    print(report.speeds(results), "\n")
    print(report.verdicts(verdicts), "\n")
    print(report.disturbance(results), end="")
    return {
        "runs": results,
        "targets": [
            {
                "target": v.target._asdict(),
                "ours": v.ours,
                "theirs": v.theirs,
                "ratio": v.ratio._asdict(),
                "holds": v.holds,
            }
            for v in verdicts
        ],
    }
