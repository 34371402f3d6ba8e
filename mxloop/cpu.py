"""How many threads MXNet's operators may use on this machine."""

import os
from pathlib import Path, PurePosixPath
from typing import Any, Collection, Iterator, MutableMapping, Optional

# All CPU contexts share this many scratch buffers, MXNet's default being 4. Two executors that drew
# the same buffer never run at the same time, so there should be more buffers than executors.
SCRATCH_BUFFERS = 16

# Holds the number of threads that mxloop chose.
CHOSEN = "MXLOOP_OMP_NUM_THREADS"


def set_defaults(environ: MutableMapping[str, str]) -> None:
    """Give MXNet all physical cores, unless the user chose otherwise.

    MXNet reads both variables once, when its library is loaded. Left alone it takes half of what
    the system calls CPUs, which is half the machine wherever there is no hyper-threading.

    Parameters
    ----------
    environ : mapping of str to str
        The environment, changed in place; what is already set stays.
    """
    propose_threads(environ, usable_cores())
    environ.setdefault("MXNET_CPU_TEMP_COPY", str(SCRATCH_BUFFERS))


def propose_threads(environ: MutableMapping[str, str], threads: int) -> None:
    """Set OMP_NUM_THREADS, unless the user has; CHOSEN tells the two apart, in child processes too.

    Parameters
    ----------
    environ : mapping of str to str
        Changed in place.
    threads : int
    """
    if environ.get("OMP_NUM_THREADS") in (None, environ.get(CHOSEN)):
        environ["OMP_NUM_THREADS"] = environ[CHOSEN] = str(threads)


def leave_to_workers(library: Any) -> None:
    """Let this thread run MXNet's own copies alone; operators run on the engine's threads.

    A second team of OpenMP threads in the process, made for one large `asnumpy`, would be more
    threads than there are cores: OpenMP then ends all waiting by spinning, and every operator has
    to wake its helpers. On 2 cores a LeNet step took 1.7 times as long.

    Parameters
    ----------
    library : ctypes.CDLL
        MXNet's.
    """
    if hasattr(library, "omp_set_num_threads"):
        library.omp_set_num_threads(1)


def usable_cores(among: Optional[Collection[int]] = None, root: str = "/") -> int:
    """Count the physical cores that this process may use: affinity, hyper-threads, container limit.

    Parameters
    ----------
    among : collection of int, optional
        Logical CPUs that this process may run on; by default those of its affinity.
    root : str
        The folder that holds ``sys`` and ``proc``.

    Returns
    -------
    int
        At least 1. A limit of 2.5 CPUs counts as 2: the others would wait for a slower third.
    """
    cores = {_core(cpu, Path(root)) for cpu in (cpus() if among is None else among)}
    return max(1, int(min([len(cores), *_container_limits(Path(root))])))


def cpus() -> Collection[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _core(cpu: int, root: Path) -> str:
    """Name a CPU's physical core: hyper-threads of one core list the same siblings."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _read(siblings) or str(cpu)


def _container_limits(root: Path) -> Iterator[float]:
    """Yield the CPU limits of this process's control groups, v1 and v2, and of their parents."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = PurePosixPath(path)
        # A container often sees its own group mounted at the top, while the path is the host's.
        for folder in (group, *group.parents):
            yield from _limit(top / str(folder).lstrip("/"))


def _limit(folder: Path) -> Iterator[float]:
    text = _read(folder / "cpu.max") or " ".join(
        _read(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    quota, _, period = text.partition(" ")
    if quota.isdigit() and period.isdigit():  # unlimited is "max" in v2 and -1 in v1
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
