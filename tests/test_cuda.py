"""CUDA libraries out of wheels, with files and a loader that are made up: there need be no GPU."""

import ctypes

import pytest

from mxloop import cuda

# What the wheels of the cu112 and cu117 extras contain, in the order in which one needs the other.
WHEELS = [
    "cuda_runtime/lib/libcudart.so.11.0",
    "nvtx/lib/libnvToolsExt.so.1",
    "cuda_nvrtc/lib/libnvrtc.so.11.2",
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    "cufft/lib/libcufft.so.10",
    "curand/lib/libcurand.so.10",
    "cusparse/lib/libcusparse.so.11",
    "cusolver/lib/libcusolver.so.11",
    "cudnn/lib/libcudnn.so.8",
    "nccl/lib/libnccl.so.2",
]


def site_packages(folder, mxnet="mxnet-cu117", libraries=WHEELS):
    info = folder / f"{mxnet.replace('-', '_')}-1.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {mxnet}\nVersion: 1.9.1\n")
    for library in libraries:
        path = folder / "nvidia" / library
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


class Loader:
    """Notes what is loaded; refuses what it was told to."""

    def __init__(self, refused=()):
        self.loaded = []
        self.refused = refused

    def __call__(self, path, mode):
        if any(path.endswith(name) for name in self.refused):
            raise OSError(f"{path}: invalid ELF header")
        self.loaded.append((path, mode))


@pytest.mark.parametrize("mxnet", ["mxnet-cu112", "mxnet-cu117"])
def test_the_extras_libraries_are_all_loaded_in_the_order_of_their_needs(tmp_path, mxnet):
    site, load = site_packages(tmp_path, mxnet), Loader()
    loaded = cuda.preload([str(tmp_path / "empty"), str(site)], load)
    expected = [site / "nvidia" / library for library in WHEELS]
    assert loaded == expected
    assert load.loaded == [(str(path), ctypes.RTLD_GLOBAL) for path in expected]


def test_what_no_wheel_brings_is_left_to_the_system(tmp_path):
    site = site_packages(tmp_path, libraries=[WHEELS[9], WHEELS[0]])
    names = [path.name for path in cuda.preload([str(site)], Loader())]
    assert names == ["libcudart.so.11.0", "libcudnn.so.8"]


def test_libraries_of_another_cuda_are_not_touched(tmp_path):
    other = ["cuda_runtime/lib/libcudart.so.12", "cudnn/lib/libcudnn.so.9"]
    site = site_packages(tmp_path, libraries=other)
    assert cuda.preload([str(site)], Loader()) == []


def test_a_library_that_does_not_load_keeps_no_other_from_loading(tmp_path):
    site, load = site_packages(tmp_path), Loader(refused=["libcufft.so.10"])
    loaded = cuda.preload([str(site)], load)
    assert [path.name for path in loaded] == [
        library.rpartition("/")[2] for library in WHEELS if "cufft" not in library
    ]


def test_the_first_folder_with_a_library_wins(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        site_packages(tmp_path / name, libraries=WHEELS[:1])
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert cuda.find(folders) == [tmp_path / "first" / "nvidia" / WHEELS[0]]


def test_a_cpu_build_loads_nothing(tmp_path):
    site, load = site_packages(tmp_path, mxnet="mxnet"), Loader()
    assert cuda.preload([str(site)], load) == []
    assert load.loaded == []
    assert cuda.distribution([str(site)]) is None
