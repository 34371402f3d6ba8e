"""Processes that ``mpiexec`` starts: how they know it, and what MXNet must know before it loads."""

import os
from typing import MutableMapping

from mxloop import cpu

# Each launcher tells its processes their numbers in variables of its own.
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
BULK = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"


def is_launched() -> bool:
    """Whether ``mpiexec`` or the like started this process, as one of several or alone."""
    return any(name in os.environ for name in RANKS)


def set_defaults(environ: MutableMapping[str, str]) -> None:
    """Set what MXNet reads when it is loaded, where nobody has said otherwise.

    In its backward passes MXNet ties operators that do not depend on each other into one task. Tied
    so, a gradient that another rank waits for can come behind the wait for that rank's own. And
    ranks of one machine share its processors.
    """
    if not is_launched():
        return
    environ.setdefault(BULK, "1")
    here = [int(environ[name]) for name in LOCAL_SIZES if environ.get(name, "").isdigit()]
    cpu.propose_threads(environ, max(1, cpu.usable_cores() // max([1, *here])))
