"""`import mxloop` against `import mxnet`, in fresh processes that take turns."""

import os
import subprocess
import sys
import tempfile
import time

import report
import rounds
import targets

STATEMENTS = {
    "import mxnet": "import stock; stock.import_mxnet()",
    "import mxloop": "import mxloop",
}


def run(name, options):
    with tempfile.TemporaryDirectory() as compiled:
        return _compare(options, compiled)


def _compare(options, compiled):
    taken = {what: [] for what in STATEMENTS}
    for number in range(2 * options.rounds + 1):
        for what, statement in STATEMENTS.items():
            seconds = _seconds(statement, compiled)
            if number:  # the first one reads the files from the disk, and compiles them
                taken[what].append(1000 * seconds)
    spreads = {what: rounds.spread(values) for what, values in taken.items()}
    rows = [(what, *(f"{value:.0f}" for value in spread)) for what, spread in spreads.items()]
    print(report.table(["milliseconds", "median", "min", "max"], rows))
    more = spreads["import mxloop"].median - spreads["import mxnet"].median
    holds = report.holds(more <= targets.IMPORT_MS)
    print(f"\nmore than mxnet: {more:.0f} ms, at most {targets.IMPORT_MS}: {holds}")
    return {"milliseconds": taken, "more": more}


def _seconds(statement, compiled):
    path = os.pathsep.join([rounds.HERE, os.path.dirname(rounds.HERE)])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": compiled}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=environ, check=True, cwd=rounds.HERE)
    return time.perf_counter() - begin
