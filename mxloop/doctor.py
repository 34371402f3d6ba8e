"""What a machine has for training with mxloop, what is wrong with it, and the remedy.

`collect` looks, `examine` judges. MXNet is imported in child processes only, so that this works
where MXNet does not, and where its library ends the process.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata, util
from typing import Any, Dict, List, NamedTuple, Optional

from mxloop import cpu, cuda
from mxloop.version import __version__

OK, NOTE, TROUBLE = "ok", "note", "trouble"
PYTHONS = ((3, 8), (3, 13))
SECONDS = 120  # for a child to answer
MXNETS = ("mxnet", "mxnet-mkl", "mxnet-native", *cuda.DISTRIBUTIONS)
OPTIONAL = {"tqdm": "progress", "matplotlib": "plot", "tensorboardX": "tensorboard"}
# Compute capabilities that the CUDA wheels have machine code for, and no PTX; a card runs code of
# its own generation (the first number) up to its own.
COMPILED = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
NEWEST = (8, 9)
OLDEST_DRIVER = 11000  # as cuDriverGetVersion counts: CUDA 11.0, which later 11.x run on


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    state : {'ok', 'note', 'trouble'}
        A trouble keeps mxloop from training; a note is something to know, or that is not there.
    told, remedy : str
        What was found, and what to do; no remedy where there is nothing to do.
    """

    state: str
    told: str
    remedy: str = ""


# --- Looking ------------------------------------------------------------------------------------

WITH_MXLOOP = """
import json, sys
from mxloop.errors import InstallError
try:
    from mxloop import mx
except InstallError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
features = [name for name, each in mx.runtime.Features().items() if each.enabled]
print(json.dumps({"version": mx.__version__, "features": features, "gpus": mx.context.num_gpus()}))
"""
ALONE = """
import json
try:
    import mxnet
    print(json.dumps({}))
except Exception as error:
    print(json.dumps({"error": type(error).__name__ + ": " + str(error).strip().split(chr(10))[0]}))
"""
MPI = """
import json
from mpi4py import MPI
print(json.dumps({"library": MPI.Get_library_version().split(chr(10))[0].strip(chr(0))}))
"""
CARDS = """
import ctypes, json
driver = ctypes.CDLL("libcuda.so.1")
version, count = ctypes.c_int(), ctypes.c_int()
driver.cuDriverGetVersion(ctypes.byref(version))
failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
cards = []
for i in range(0 if failed else count.value):
    device, name, numbers = ctypes.c_int(), ctypes.create_string_buffer(100), []
    driver.cuDeviceGet(ctypes.byref(device), i)
    driver.cuDeviceGetName(name, 100, device)
    for attribute in (75, 76):  # compute capability, major and minor
        number = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    cards.append({"name": name.value.decode(), "capability": numbers})
print(json.dumps({"version": version.value, "failed": failed, "cards": cards}))
"""


def collect() -> Dict[str, Any]:
    """Look at this machine; fit for JSON. Takes some seconds."""
    return {
        "python": list(sys.version_info[:3]),
        "system": [platform.system(), platform.machine()],
        "mxloop": __version__,
        "numpy": _version("numpy"),
        "distutils": util.find_spec("distutils") is not None,
        "distributions": {name: _version(name) for name in MXNETS if _version(name)},
        "mxnet": _child(WITH_MXLOOP),
        "mxnet_alone": _child(ALONE),
        "driver": _child(CARDS),
        "cores": cpu.usable_cores(),
        "omp_num_threads": _environment_at_start().get("OMP_NUM_THREADS"),
        "mpi4py": _version("mpi4py"),
        "mpi": _child(MPI),
        "mpiexec": shutil.which("mpiexec", path=_search_path()),
        "optional": {name: _version(name) for name in OPTIONAL},
    }


def _version(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _child(code: str) -> Dict[str, Any]:
    """What a child process says; `error`, in one line, where it fails."""
    # A server or scheduler of a kvstore would not return from its import of MXNet.
    environ = {n: v for n, v in _environment_at_start().items() if not n.startswith("DMLC_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"gave no answer in {SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}


def _environment_at_start() -> Dict[str, str]:
    """The environment before mxloop, which sets variables for MXNet, was imported here."""
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _search_path():
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


# --- Judging ------------------------------------------------------------------------------------


def examine(facts: Dict[str, Any]) -> List[Finding]:
    """Judge what `collect` found.

    Returns
    -------
    list of Finding
    """
    parts = (_python, _numpy, _mxnet, _alone, _several, _gpus, _threads, _kvstores, _mpi, _optional)
    return [finding for part in parts for finding in part(facts)]


def _python(facts):
    version = ".".join(map(str, facts["python"]))
    told = f"Python {version} on {' '.join(facts['system'])}, mxloop {facts['mxloop']}"
    if not PYTHONS[0] <= tuple(facts["python"][:2]) <= PYTHONS[1]:
        yield Finding(TROUBLE, told, "use Python 3.8 to 3.13: mxloop runs on these")
    elif facts["system"] != ["Linux", "x86_64"]:
        yield Finding(NOTE, told, "mxloop is tested on Linux x86_64 alone")
    else:
        yield Finding(OK, told)


def _numpy(facts):
    version = facts["numpy"]
    if version is None:
        yield Finding(TROUBLE, "NumPy is not installed", "pip install numpy")
    elif _numpy_2(facts):
        yield Finding(
            NOTE,
            f"NumPy {version} is newer than what MXNet was made for",
            "import mxloop before mxnet, which mends that; or, without mxloop, "
            "pip install 'numpy<1.24'",
        )
    else:
        yield Finding(OK, f"NumPy {version}")


def _numpy_2(facts):
    return int(facts["numpy"].split(".")[0]) >= 2


def _mxnet(facts):
    found = facts["mxnet"]
    if "error" in found:
        told, _, remedy = found["error"].partition(": ")
        known = bool(remedy) and any(word in remedy for word in ("run ", "install", "add "))
        if known:
            yield Finding(TROUBLE, told, remedy)
        else:
            yield Finding(
                TROUBLE,
                f"MXNet does not work: {found['error']}",
                f"reinstall it: {_install(facts)}",
            )
        return
    build = next(iter(facts["distributions"]), "of unknown origin")
    yield Finding(OK, f"MXNet {found['version']} imports with mxloop ({build})")


def _install(facts):
    if tuple(facts["python"][:2]) >= (3, 13):
        return 'pip install --no-deps mxnet==1.9.1 && pip install requests "graphviz<0.9"'
    return 'pip install "mxloop[cpu]"'


def _alone(facts):
    """Why a bare ``import mxnet`` fails where ``import mxloop`` makes it work."""
    if "error" in facts["mxnet"] or "error" not in facts["mxnet_alone"]:
        return
    error = facts["mxnet_alone"]["error"]
    if "distutils" in error:
        why, instead = "this Python has no distutils", "pip install setuptools"
    elif "numpy" in error and _numpy_2(facts):
        return  # told already
    elif "numpy" in error:
        why, instead = f"NumPy {facts['numpy']} lacks old names", "pip install 'numpy<1.24'"
    else:
        why, instead = error[:80], ""
    yield Finding(
        NOTE,
        f"import mxnet by itself fails: {why}",
        "import mxloop before mxnet, which lends what is missing"
        + (f"; or, without mxloop, {instead}" if instead else ""),
    )


def _several(facts):
    names = list(facts["distributions"])
    if len(names) > 1:
        yield Finding(
            TROUBLE,
            f"{' and '.join(names)} are installed into one folder, each over the other",
            f"pip uninstall {' '.join(names)}, then install one of them",
        )


def _gpus(facts):
    build = next((n for n in facts["distributions"] if n in cuda.DISTRIBUTIONS), None)
    driver = facts["driver"]
    if "error" in driver:
        if build is None:
            yield Finding(OK, "no NVIDIA driver, and MXNet is a build for CPUs")
        elif "libcuda" not in facts["mxnet"].get("error", ""):  # else it is told already
            yield Finding(
                TROUBLE,
                f"{build} is a CUDA build, and there is no NVIDIA driver",
                f"install the driver, or: pip uninstall {build}; {_install(facts)}",
            )
        return
    if not driver["cards"]:
        yield Finding(NOTE, "there is an NVIDIA driver, and it shows no card", _no_card(driver))
    elif build is None:
        yield Finding(
            NOTE,
            f"{driver['cards'][0]['name']} is here, and MXNet is a build for CPUs",
            'pip uninstall mxnet; pip install "mxloop[cu117]"',
        )
    else:
        if driver["version"] < OLDEST_DRIVER:
            yield _old_driver(driver, build)
        for card in driver["cards"]:
            yield _card(card, build, facts)


def _no_card(driver):
    return f"look at nvidia-smi and CUDA_VISIBLE_DEVICES (cuInit gave {driver['failed']})"


def _old_driver(driver, build):
    major, minor = driver["version"] // 1000, driver["version"] % 1000 // 10
    return Finding(
        TROUBLE,
        f"the NVIDIA driver is of CUDA {major}.{minor}, and {build} needs 11.0",
        "install driver 450.80 or newer",
    )


def _card(card, build, facts):
    capability = tuple(card["capability"])
    told = f"{card['name']}, compute capability {capability[0]}.{capability[1]}"
    if capability > NEWEST:
        return Finding(
            TROUBLE,
            f"{told}, is newer than {build}, which has code for 5.0 to 8.9 and no newer cards",
            "use an MXNet 1.9 built for this card (a vendor's container, or your own build), "
            f"or train on the CPU: pip uninstall {build}; {_install(facts)}",
        )
    if capability < COMPILED[0]:
        return Finding(
            TROUBLE,
            f"{told}, is older than what {build} has code for, 5.0 and up",
            f"train on the CPU: pip uninstall {build}; {_install(facts)}",
        )
    return Finding(OK, f"{told}: {build} has code for it")


def _threads(facts):
    cores, chosen = facts["cores"], facts["omp_num_threads"]
    if chosen is None:
        yield Finding(OK, f"{cores} cores, all of which mxloop lets MXNet use")
    elif not chosen.isdigit() or int(chosen) < 1:
        yield Finding(
            NOTE,
            f"OMP_NUM_THREADS={chosen} is no number of threads",
            f"unset it, or OMP_NUM_THREADS={cores}",
        )
    elif int(chosen) > cores:
        yield Finding(
            NOTE,
            f"OMP_NUM_THREADS={chosen} is more than the {cores} cores that this process may use",
            f"OMP_NUM_THREADS={cores}, or unset it",
        )
    else:
        yield Finding(OK, f"{cores} cores, OMP_NUM_THREADS={chosen}")


def _kvstores(facts):
    if "error" in facts["mxnet"]:
        return
    features = facts["mxnet"]["features"]
    names = ["local", "device"]
    names += ["dist_sync", "dist_async"] if "DIST_KVSTORE" in features else []
    names += ["nccl"] if "NCCL" in features else []
    yield Finding(OK, f"kvstores: {', '.join(names)}")


def _mpi(facts):
    if facts["mpi4py"] is None:
        yield Finding(NOTE, "no MPI, which several processes need", 'pip install "mxloop[mpi]"')
    elif "error" in facts["mpi"]:
        yield Finding(
            NOTE,
            f"mpi4py finds no MPI library: {facts['mpi']['error'][:80]}",
            "pip install mpich, or load the system's MPI",
        )
    elif facts["mpiexec"] is None:
        yield Finding(
            NOTE,
            "MPI has no mpiexec on the PATH",
            "pip install mpich, or add MPI's bin folder to PATH",
        )
    else:
        yield Finding(OK, f"MPI: mpi4py {facts['mpi4py']}, {facts['mpi']['library'][:60]}")


def _optional(facts):
    for name, version in facts["optional"].items():
        if version is None:
            remedy = f'pip install "mxloop[{OPTIONAL[name]}]"'
            yield Finding(NOTE, f"no {name}, which is optional", remedy)
    there = [f"{name} {version}" for name, version in facts["optional"].items() if version]
    if there:
        yield Finding(OK, f"optional: {', '.join(there)}")
