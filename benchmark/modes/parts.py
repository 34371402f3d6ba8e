"""What the parts of a step cost over the bare limit: how near to it any loop can come here."""

import line_up
import report
import rounds
from rounds import Runner

PARTS = ("rows", "decay", "guard", "outputs", "python")


def run(name, options):
    found = {}
    for net in options.net or ("mlp",):
        for threads in (line_up.CORES, 1):
            work = line_up.work(net, options.batch, options.samples).but(threads=threads)
            runners = [
                Runner(text, "parts", work.but(parts=list(parts))) for text, parts in _settings()
            ]
            results = rounds.interleave(runners, options.rounds)
            print(f"{net}, {threads} threads\n\n{report.speeds(results)}\n")
            print(report.disturbance(results), end="")
            found[f"{net}, {threads} threads"] = results
    return found


def _settings():
    """The limit, each part by itself, and all of them."""
    yield line_up.BARE, ()
    for part in PARTS:
        yield f"with {part}", (part,)
    yield "with all but python", PARTS[:-1]
    yield "with all", PARTS
