"""Who runs, in which settings: each peer as a user gets it, and in the settings that are its best.

Which setting is the best differs with the network and the machine, so all that may be are measured.
"""

import importlib.util
import os
from typing import List, Optional

from rounds import Runner
from work import Work

CORES = len(os.sched_getaffinity(0))
SAMPLES = {"mlp": 51_200, "wide": 6_400, "lenet": 7_680, "resnet20": 1_024, "softmax": 1_280}

BARE, MXLOOP, LEAN, MXLOOP_ITER = (
    "bare limit",
    "mxloop",
    "mxloop, no guard, no callbacks",
    "mxloop, NDArrayIter",
)
MXLOOP_SHARED, MXLOOP_THREADS = f"mxloop, {CORES} contexts", f"mxloop, {CORES} threads"
FEEDFORWARD, MODULE = "mx FeedForward", "mx Module"
GLUON, GLUON_ITER, TORCH = "Gluon, DataLoader", "Gluon, NDArrayIter", "PyTorch, DataLoader"

# Settings that may be a peer's best, by the peer's default.
BEST = {
    MXLOOP: [MXLOOP, LEAN, MXLOOP_SHARED, MXLOOP_THREADS],
    FEEDFORWARD: [FEEDFORWARD, *(f"{FEEDFORWARD}, {what}" for what in ("threads", "contexts"))],
    MODULE: [MODULE, *(f"{MODULE}, {what}" for what in ("threads", "contexts"))],
    GLUON: [GLUON, GLUON_ITER, *(f"Gluon, {what}" for what in ("threads", "1 thread", "contexts"))],
    TORCH: [TORCH, "PyTorch, in memory"],
}
LIMITS = [BARE, "bare limit, 1 thread"]


def work(net: str, batch: int = 128, samples: Optional[int] = None) -> Work:
    """The training of a network, with epochs that are long enough to be measured."""
    return Work(net=net, batch=batch, samples=samples or SAMPLES[net])


def runners(net: str, batch: int = 128, samples: Optional[int] = None) -> List[Runner]:
    """Everybody, for one network."""
    plain = work(net, batch, samples)
    memory = plain.but(source="memory", threads=CORES)
    shared = plain.but(contexts=CORES, threads=1)
    found = [
        Runner(BARE, "bare", plain.but(threads=CORES)),
        Runner("bare limit, 1 thread", "bare", plain.but(threads=1)),
        Runner(MXLOOP, "mxloop_fit", plain),
        Runner(LEAN, "mxloop_fit", plain.but(callbacks=False, guard=False)),
        Runner(MXLOOP_SHARED, "mxloop_fit", plain.but(contexts=CORES)),
        Runner(MXLOOP_THREADS, "mxloop_fit", plain.but(threads=CORES)),
        Runner(MXLOOP_ITER, "mxloop_fit", plain.but(source="iterator")),
        *_stock(FEEDFORWARD, "feedforward", plain, memory, shared),
        *_stock(MODULE, "module", plain, memory, shared),
        Runner(GLUON, "gluon_trainer", plain),
        Runner(GLUON_ITER, "gluon_trainer", plain.but(source="iterator")),
        Runner("Gluon, threads", "gluon_trainer", memory),
        Runner("Gluon, 1 thread", "gluon_trainer", memory.but(threads=1)),
        Runner("Gluon, contexts", "gluon_trainer", shared.but(source="memory")),
    ]
    if importlib.util.find_spec("torch"):
        found += [
            Runner(TORCH, "torch_loop", plain.but(threads=CORES)),
            Runner("PyTorch, in memory", "torch_loop", memory),
        ]
    return found


def _stock(name, peer, work, memory, shared):
    """One of MXNet's loops; for arrays as for an iterator it takes an NDArrayIter by default."""
    return [
        Runner(name, peer, work),
        Runner(f"{name}, threads", peer, memory),
        Runner(f"{name}, contexts", peer, shared.but(source="memory")),
    ]
