"""doctor: the remedy for each trouble, with machines that are made up, and here as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_compat import fake_distribution, fake_mxnet

from mxloop import doctor

ROOT = Path(__file__).resolve().parent.parent
WORKS = {"version": "1.9.1", "features": ["MKLDNN", "DIST_KVSTORE"], "gpus": 0}
NO_DRIVER = {"error": "OSError: libcuda.so.1: cannot open shared object file"}
HEALTHY = {
    "python": [3, 11, 7],
    "system": ["Linux", "x86_64"],
    "mxloop": "1.0",
    "numpy": "1.23.5",
    "distutils": True,
    "distributions": {"mxnet": "1.9.1"},
    "mxnet": WORKS,
    "mxnet_alone": {},
    "driver": NO_DRIVER,
    "cores": 4,
    "omp_num_threads": None,
    "mpi4py": "4.0",
    "mpi": {"library": "MPICH 4"},
    "mpiexec": "/usr/bin/mpiexec",
    "optional": {"tqdm": "4", "matplotlib": "3", "tensorboardX": "2"},
}


def driver(*capability, name="a card", version=11080):
    cards = [{"name": name, "capability": list(capability)}] if capability else []
    return {"version": version, "failed": 0, "cards": cards}


def examined(**changes):
    """What is no plain 'ok' on a machine that differs from a healthy one."""
    return [each for each in doctor.examine({**HEALTHY, **changes}) if each.state != doctor.OK]


def error(text):
    return {"error": text}


CUDA = {"distributions": {"mxnet-cu117": "1.9.1"}}
# name -> (what differs, state, words of what is told, words of the remedy)
CASES = {
    "numpy alias": (
        {
            "numpy": "1.26.4",
            "mxnet_alone": error("AttributeError: module 'numpy' has no attribute 'bool'."),
        },
        "note",
        ["import mxnet by itself", "NumPy 1.26.4"],
        ["import mxloop before mxnet", "pip install 'numpy<1.24'"],
    ),
    "numpy 2": (
        {
            "numpy": "2.1.0",
            "mxnet_alone": error("AttributeError: `np.bool` was removed from numpy"),
        },
        "note",
        ["NumPy 2.1.0"],
        ["import mxloop before mxnet", "numpy<1.24"],
    ),
    "no numpy": ({"numpy": None}, "trouble", ["NumPy is not installed"], ["pip install numpy"]),
    "no distutils": (
        {
            "python": [3, 12, 4],
            "mxnet_alone": error("ModuleNotFoundError: No module named 'distutils'"),
        },
        "note",
        ["distutils"],
        ["import mxloop before mxnet", "pip install setuptools"],
    ),
    "no mxnet": (
        {
            "distributions": {},
            "mxnet": error('MXNet is not installed: run pip install "mxloop[cpu]"'),
        },
        "trouble",
        ["MXNet is not installed"],
        ['pip install "mxloop[cpu]"'],
    ),
    "no cudnn": (
        {
            **CUDA,
            "mxnet": error(
                'mxnet-cu117 does not find libcudnn.so.8 of CUDA: run pip install "mxloop[cu117]"'
            ),
            "driver": driver(8, 0),
        },
        "trouble",
        ["libcudnn.so.8"],
        ['pip install "mxloop[cu117]"'],
    ),
    "no driver": (
        {
            **CUDA,
            "mxnet": error(
                "mxnet-cu117 is built for CUDA and finds no NVIDIA driver (libcuda.so.1): install "
                'the driver, or uninstall mxnet-cu117 and run pip install "mxloop[cpu]"'
            ),
        },
        "trouble",
        ["no NVIDIA driver"],
        ["install the driver", 'pip install "mxloop[cpu]"'],
    ),
    "no driver but its library": (
        {**CUDA},
        "trouble",
        ["mxnet-cu117", "no NVIDIA driver"],
        ["install the driver", "pip uninstall mxnet-cu117"],
    ),
    "card newer than the wheel": (
        {**CUDA, "driver": driver(9, 0, name="NVIDIA H100")},
        "trouble",
        ["NVIDIA H100", "9.0", "newer than mxnet-cu117"],
        ["container", "train on the CPU"],
    ),
    "card older than the wheel": (
        {**CUDA, "driver": driver(3, 7)},
        "trouble",
        ["3.7", "older"],
        ["train on the CPU"],
    ),
    "old driver": (
        {**CUDA, "driver": driver(7, 0, version=10020)},
        "trouble",
        ["CUDA 10.2"],
        ["450.80"],
    ),
    "card without a build for it": (
        {"driver": driver(8, 6, name="RTX 3090")},
        "note",
        ["RTX 3090", "build for CPUs"],
        ['pip install "mxloop[cu117]"'],
    ),
    "no card": ({**CUDA, "driver": driver()}, "note", ["no card"], ["CUDA_VISIBLE_DEVICES"]),
    "two builds": (
        {"distributions": {"mxnet": "1.9.1", "mxnet-cu117": "1.9.1"}, "driver": driver(8, 0)},
        "trouble",
        ["mxnet and mxnet-cu117"],
        ["pip uninstall mxnet mxnet-cu117"],
    ),
    "no mpi": ({"mpi4py": None}, "note", ["no MPI"], ['pip install "mxloop[mpi]"']),
    "no mpi library": (
        {"mpi": error("ImportError: libmpi.so.12: cannot open")},
        "note",
        ["no MPI library"],
        ["pip install mpich"],
    ),
    "no mpiexec": ({"mpiexec": None}, "note", ["mpiexec"], ["PATH"]),
    "no tqdm": (
        {"optional": {"tqdm": None}},
        "note",
        ["tqdm"],
        ['pip install "mxloop[progress]"'],
    ),
    "old python": ({"python": [3, 7, 1]}, "trouble", ["3.7.1"], ["3.8 to 3.13"]),
    "another system": ({"system": ["Darwin", "arm64"]}, "note", ["arm64"], ["Linux x86_64"]),
    "too many threads": (
        {"omp_num_threads": "64"},
        "note",
        ["OMP_NUM_THREADS=64", "4 cores"],
        ["OMP_NUM_THREADS=4"],
    ),
    "a crash": (
        {"mxnet": error("ended with -11")},
        "trouble",
        ["ended with -11"],
        ["reinstall"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_trouble_is_told_with_its_remedy_and_nothing_else_is(name):
    changes, state, told, remedy = CASES[name]
    (found,) = examined(**changes)
    assert found.state == state
    assert all(word in found.told for word in told), found.told
    assert all(word in found.remedy for word in remedy), found.remedy


def test_a_healthy_machine_has_none():
    assert examined() == []
    assert examined(**CUDA, driver=driver(8, 9)) == []
    assert examined(omp_num_threads="2") == []


def test_kvstores_are_those_of_the_build():
    told = [each.told for each in doctor.examine(HEALTHY)]
    assert "kvstores: local, device, dist_sync, dist_async" in told
    mac = {**HEALTHY, "mxnet": {**WORKS, "features": []}}
    assert "kvstores: local, device" in [each.told for each in doctor.examine(mac)]


# --- The command --------------------------------------------------------------------------------


def command(*flags, folder=None, code=0, **environ):
    path = os.pathsep.join(map(str, [*([folder] if folder else []), ROOT]))
    done = subprocess.run(
        [sys.executable, "-m", "mxloop", "doctor", *flags],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=200,
        cwd=str(folder or ROOT),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_this_machine_can_train():
    told = json.loads(command("--json", OMP_NUM_THREADS="1"))
    assert told["ok"]
    assert told["facts"]["mxnet"]["version"].startswith("1.9")
    assert told["facts"]["omp_num_threads"] == "1"
    assert {"state", "told", "remedy"} == set(told["findings"][0])
    assert told["findings"] == [each._asdict() for each in doctor.examine(told["facts"])]


@pytest.mark.parametrize(
    ("fake", "remedy"),
    [
        (
            "raise ModuleNotFoundError('no', name='mxnet')",
            "mxnet==1.9.1" if sys.version_info >= (3, 13) else 'pip install "mxloop[cpu]"',
        ),
        (
            "raise OSError('libcudnn.so.8: cannot open shared object file: No such file')",
            'pip install "mxloop[cu112]"',
        ),
        (
            "raise OSError('libcuda.so.1: cannot open shared object file: No such file')",
            "install the driver",
        ),
        ("import os; os.kill(os.getpid(), 11)", "reinstall"),
    ],
    ids=["no mxnet", "no cudnn", "no driver", "a crash"],
)
def test_the_command_works_where_mxnet_does_not(tmp_path, fake, remedy):
    fake_mxnet(tmp_path, fake)
    fake_distribution(tmp_path, "mxnet-cu112")
    output = command(folder=tmp_path, code=1)
    troubles = output[output.index("trouble") :]
    assert remedy in troubles
    assert output.splitlines()[-1].startswith("mxloop cannot train here")


def test_a_role_of_a_kvstore_does_not_make_it_wait(tmp_path):
    fake_mxnet(tmp_path, "import os; raise OSError(os.environ.get('DMLC_ROLE', 'no role'))")
    assert "no role" in command(folder=tmp_path, code=1, DMLC_ROLE="server")
