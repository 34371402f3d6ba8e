"""Kill a checkpointed run at random instants, resume it, and compare it with one never killed.

    python tests/kill_runs.py --kills 200 --seed 0

Half of the kills are aimed at the writing of a checkpoint. Prints a line of JSON; exit code 1 if
a checkpoint could not be loaded, more than one interval was lost, or the end differs by a bit.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
EVERY, EPOCHS = 2, 40
NAMES = ("kills", "inside_a_save", "unloadable", "lost_more", "runs", "differ")
CHILD = """
import json, logging, os, random, signal, sys
settings = json.load(open(sys.argv[1]))
from mxloop import storage
import resume_run
logging.getLogger("mxloop").setLevel(logging.ERROR)
at = settings.pop("die_at_call")
calls = [0]
def deadly(call):
    def watched(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return watched
class Deadly:
    def __getattr__(self, name):
        return getattr(os, name)
for name in ("open", "write", "fsync", "replace", "remove"):
    setattr(Deadly, name, staticmethod(deadly(getattr(os, name))))
storage.os = Deadly()
resume_run.stopper = lambda *_: lambda p: print(p.epoch * 6 + p.nbatch, flush=True)
print("ready", flush=True)
resume_run.run(**settings)
"""


def start(folder, epochs, die_at_call=None, out=None):
    settings = {"prefix": str(folder / "m"), "every": EVERY, "resume": "auto", "keep": 3}
    settings.update(num_epoch=epochs, out=out, die_at_call=die_at_call)
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    environ = {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def place(folder):
    """Steps done by the newest checkpoint that loads, None where there is none at all."""
    from mxloop import checkpoint

    steps_an_epoch = 6
    there = checkpoint.generations(folder / "m")
    found = checkpoint.newest(folder / "m")
    if found is None:
        return None if there else 0
    return found.epoch * steps_an_epoch + found.batch


def kill_once(folder, epochs, chosen, inside):
    """Start or resume the run and kill it; whether it was killed, and after how many steps."""
    child = start(folder, epochs, die_at_call=chosen.randint(1, 120) if inside else None)
    child.stdout.readline()
    if not inside:
        time.sleep(chosen.uniform(0, 1.2))
        child.kill()
    steps = [int(line) for line in child.communicate(timeout=120)[0].split()]
    return child.returncode == -9, max(steps, default=0)


def kill(kills, seed=0, epochs=EPOCHS):
    """Kill runs of so many epochs so often; counts by name."""
    chosen = random.Random(seed)
    counts = dict.fromkeys(NAMES, 0)
    with tempfile.TemporaryDirectory() as top:
        straight = Path(top) / "straight"
        straight.mkdir()
        end = finish(straight, epochs)
        while counts["kills"] < kills:
            folder = Path(top) / f"run{counts['runs']}"
            folder.mkdir()
            kill_often(folder, epochs, chosen, counts, min(10, kills - counts["kills"]))
            counts["runs"] += 1
            counts["differ"] += not same(finish(folder, epochs), end)
    return counts


def kill_often(folder, epochs, chosen, counts, most):
    """Kill a run so often, or until it ends."""
    for _ in range(most):
        inside = chosen.random() < 0.5
        killed, done = kill_once(folder, epochs, chosen, inside)
        now = place(folder)
        counts["kills"] += killed
        counts["inside_a_save"] += killed and inside
        counts["unloadable"] += now is None
        counts["lost_more"] += now is not None and done - now > EVERY
        if not killed:
            break


def finish(folder, epochs):
    """Let a run end; all its parameters and metrics."""
    out = folder / "out.npz"
    start(folder, epochs, out=str(out)).communicate(timeout=300)
    with np.load(out) as result:
        return dict(result)


def same(one, other):
    return set(one) == set(other) and all(np.array_equal(one[n], other[n]) for n in one)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = kill(args.kills, args.seed)
    print(json.dumps(counts))
    return int(any(counts[name] for name in ("unloadable", "lost_more", "differ")))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    sys.exit(main())
