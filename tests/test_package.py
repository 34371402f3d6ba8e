"""What the distribution contains and asks for, read off a wheel that is built here."""

import email
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mxloop import cuda
from mxloop.version import __version__

ROOT = Path(__file__).resolve().parents[1]

BUILD = "from setuptools import build_meta; build_meta.build_wheel('.')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="70.1", reason="older ones build no wheels")
    folder = tmp_path_factory.mktemp("source")
    for path in (ROOT / name for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md")):
        if path.exists():
            shutil.copy(str(path), str(folder))
    shutil.copytree(str(ROOT / "mxloop"), str(folder / "mxloop"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=str(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout.decode()
    with zipfile.ZipFile(str(next(folder.glob("*.whl")))) as archive:
        yield archive


@pytest.fixture
def headers(wheel):
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


@pytest.fixture
def needs(headers):
    """Map each extra, and None for what is always needed, to its requirements without spaces."""
    requirements = {}
    for line in headers.get_all("Requires-Dist"):
        requirement, _, condition = line.partition(";")
        extra = re.search(r"""extra == ["'](\w+)["']""", condition)
        key = extra.group(1) if extra else None
        requirements.setdefault(key, []).append(requirement.replace(" ", "").strip())
    return requirements


def test_the_wheel_is_of_this_version_and_for_these_pythons(headers):
    assert headers["Name"] == "mxloop"
    assert headers["Version"] == __version__
    assert set(headers["Requires-Python"].split(",")) == {">=3.8", "<3.14"}


def test_the_wheel_contains_all_modules_the_digits_and_their_licence(wheel):
    contained = {name for name in wheel.namelist() if name.startswith("mxloop/")}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "mxloop").rglob("*.py")}
    data = {f"mxloop/data/{path.name}" for path in (ROOT / "mxloop" / "data").iterdir()}
    assert contained == sources | data
    assert "mxloop/data/digits.npz" in data
    assert any(b"icen" in wheel.read(name) for name in data if name.endswith(".md"))


def test_the_data_folder_does_not_hide_the_data_module():
    assert not (ROOT / "mxloop" / "data" / "__init__.py").exists()


def test_numpy_alone_is_always_needed(needs):
    assert needs[None] == ["numpy>=1.17"]


def test_there_are_the_extras_that_the_readme_names(needs):
    named = "cpu cu112 cu117 docs mpi onnx plot progress sklearn tensorboard test yaml"
    assert set(named.split()) <= set(needs)
    assert needs["cpu"] == ["mxnet==1.9.1"]


@pytest.mark.parametrize("extra", ["cu112", "cu117"])
def test_a_cuda_extra_brings_every_library_that_is_preloaded(needs, extra):
    assert f"mxnet-{extra}==1.9.1" in needs[extra]
    parts = {
        "libcudart.so.11.0": "nvidia-cuda-runtime-cu11",
        "libnvToolsExt.so.1": "nvidia-nvtx-cu11",
        "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11",
        "libcublasLt.so.11": "nvidia-cublas-cu11",
        "libcublas.so.11": "nvidia-cublas-cu11",
        "libcufft.so.10": "nvidia-cufft-cu11",
        "libcurand.so.10": "nvidia-curand-cu11",
        "libcusparse.so.11": "nvidia-cusparse-cu11",
        "libcusolver.so.11": "nvidia-cusolver-cu11",
        "libcudnn.so.8": "nvidia-cudnn-cu11",
        "libnccl.so.2": "nvidia-nccl-cu11",
    }
    assert set(parts) == set(cuda.LIBRARIES)
    pinned = {need.partition("==")[0] for need in needs[extra] if "==" in need}
    assert pinned == {f"mxnet-{extra}", *parts.values()}
