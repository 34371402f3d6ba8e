"""The devices of this machine."""

from typing import List

from mxloop import cpu
from mxloop.compat import mx


def available_devices() -> List[mx.Context]:
    """All GPUs; where there is none, a CPU context for each physical core of this process.

    Contexts of the CPU run in parallel, on the cores that they share; see `mxloop.threads`.
    """
    gpus = [mx.gpu(number) for number in range(mx.context.num_gpus())]
    return gpus or [mx.cpu(number) for number in range(cpu.usable_cores())]
