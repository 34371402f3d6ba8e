"""What matrix products in bfloat16 gain, on a CPU that has it."""

import line_up
import report
import rounds
from rounds import Runner


def run(name, options):
    found = {}
    for net in options.net or ("wide", "lenet", "resnet20"):
        work = line_up.work(net, options.batch, options.samples).but(callbacks=False)
        runners = [
            Runner("bfloat16", "mxloop_fit", work.but(amp="bfloat16")),
            Runner("float32", "mxloop_fit", work),
        ]
        found[net] = results = rounds.interleave(runners, options.rounds)
        ratio = rounds.ratio(results["bfloat16"], results["float32"])
        print(f"{net}\n\n{report.speeds(results)}\n")
        print(f"bfloat16, of the speed in float32: {ratio.median:.3f}\n")
        print(report.disturbance(results), end="")
    return found
