"""What must hold, in one place: which settings are compared, and what the ratio has to be."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import line_up
import rounds
from line_up import BARE, FEEDFORWARD, GLUON, GLUON_ITER, LEAN, MODULE, MXLOOP, MXLOOP_ITER, TORCH


class Target(NamedTuple):
    """The fastest of `ours` is to be `least` times as fast as the fastest of `theirs`."""

    text: str
    net: str
    ours: Sequence[str]
    theirs: Sequence[str]
    least: float


class Verdict(NamedTuple):
    """What became of a target; names are those of the settings that were the fastest."""

    target: Target
    ours: str
    theirs: str
    ratio: rounds.Spread
    holds: bool


def _for_nets(text, ours, theirs, **least) -> List[Target]:
    return [Target(text, net, ours, theirs, value) for net, value in least.items()]


_BEST = line_up.BEST
_GLUON_BEST = [name for name in _BEST[GLUON] if name != GLUON_ITER]

TARGETS = [
    *_for_nets("the bare limit", [MXLOOP], [BARE], mlp=0.80, lenet=0.97, resnet20=0.97),
    *_for_nets("the bare limit, no guard or callbacks", [LEAN], [BARE], mlp=0.85),
    *_for_nets("Module by default", [MXLOOP], [MODULE], mlp=2.5, lenet=1.7, resnet20=1.3),
    *_for_nets("FeedForward by default", [MXLOOP], [FEEDFORWARD], mlp=2.5, lenet=1.7, resnet20=1.3),
    *_for_nets(
        "Module, one NDArrayIter", [MXLOOP_ITER], [MODULE], mlp=1.05, lenet=1.05, resnet20=1.05
    ),
    *_for_nets(
        "FeedForward, one NDArrayIter",
        [MXLOOP_ITER],
        [FEEDFORWARD],
        mlp=1.05,
        lenet=1.05,
        resnet20=1.05,
    ),
    *_for_nets(
        "Module at its best", _BEST[MXLOOP], _BEST[MODULE], mlp=2.0, lenet=1.0, resnet20=1.0
    ),
    *_for_nets(
        "FeedForward at its best",
        _BEST[MXLOOP],
        _BEST[FEEDFORWARD],
        mlp=2.0,
        lenet=1.0,
        resnet20=1.0,
    ),
    *_for_nets("Gluon by default", [MXLOOP], [GLUON], mlp=1.6, lenet=1.0, resnet20=1.0),
    *_for_nets(
        "Gluon, one NDArrayIter", [MXLOOP_ITER], [GLUON_ITER], mlp=1.0, lenet=1.0, resnet20=1.0
    ),
    *_for_nets("Gluon at its best", _BEST[MXLOOP], _GLUON_BEST, mlp=1.6, lenet=1.0, resnet20=1.0),
    *_for_nets("PyTorch", _BEST[MXLOOP], _BEST[TORCH], mlp=1.6, lenet=0.9, resnet20=1.25),
]

# Of the further modes.
SHARED_OVER_ONE_THREAD = 1.6
SHARED_OVER_ALL_THREADS = 0.95
MEMORY_OF_MODULE = 1.0
IMPORT_MS = 60
PYTHON_US = 150
METRIC_OF_LARGE_SOFTMAX = 0.95


def judge(net: str, results: Dict[str, Any]) -> List[Verdict]:
    """Hold one network's results against its targets; those of peers that did not run are left."""
    found = [_verdict(target, results) for target in TARGETS if target.net == net]
    return [verdict for verdict in found if verdict is not None]


def _verdict(target, results) -> Optional[Verdict]:
    ours = rounds.fastest(results, target.ours)
    theirs = rounds.fastest(results, target.theirs)
    if ours is None or theirs is None:
        return None
    ratio = rounds.ratio(results[ours], results[theirs])
    return Verdict(target, ours, theirs, ratio, ratio.median >= target.least)
