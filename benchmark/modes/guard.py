"""What looking for NaN in each step costs."""

import line_up
import report
import rounds
from rounds import Runner


def run(name, options):
    found = {}
    for net in options.net or ("lenet", "mlp"):
        work = line_up.work(net, options.batch, options.samples).but(callbacks=False)
        runners = [
            Runner("guarded", "mxloop_fit", work),
            Runner("no guard", "mxloop_fit", work.but(guard=False)),
        ]
        found[net] = results = rounds.interleave(runners, options.rounds)
        ratio = rounds.ratio(results["guarded"], results["no guard"])
        print(f"{net}\n\n{report.speeds(results)}\n")
        print(f"guarded, of the speed without: {ratio.median:.3f}\n")
        print(report.disturbance(results), end="")
    return found
