"""CUDA from wheels: what the ``cu112`` and ``cu117`` extras install, loaded before MXNet."""

import ctypes
import logging
import sys
from pathlib import Path
from typing import Callable, List, Optional, Sequence

DISTRIBUTIONS = ("mxnet-cu112", "mxnet-cu117")

# Each library comes after those that it needs, which the loader would not find by itself.
LIBRARIES = (
    "libcudart.so.11.0",
    "libnvToolsExt.so.1",
    "libnvrtc.so.11.2",
    "libcublasLt.so.11",
    "libcublas.so.11",
    "libcufft.so.10",
    "libcurand.so.10",
    "libcusparse.so.11",
    "libcusolver.so.11",
    "libcudnn.so.8",
    "libnccl.so.2",
)

logger = logging.getLogger(__name__)


def preload(folders: Optional[Sequence[str]] = None, load: Callable = ctypes.CDLL) -> List[Path]:
    """Load the CUDA libraries of the installed wheels, where MXNet is a CUDA build.

    The loader reuses a library that is already in memory, so MXNet then needs neither a CUDA
    installation nor ``LD_LIBRARY_PATH``. What no wheel brings is left to the system's CUDA.

    Parameters
    ----------
    folders : sequence of str, optional
        Where packages are installed; by default ``sys.path``.
    load : callable
        Called as ``load(path, mode=...)``, like ``ctypes.CDLL``.

    Returns
    -------
    list of Path
        The libraries loaded, in that order; empty for a CPU build.
    """
    folders = sys.path if folders is None else folders
    if distribution(folders) is None:
        return []
    return [path for path in find(folders) if _loads(path, load)]


def distribution(folders: Optional[Sequence[str]] = None) -> Optional[str]:
    """Name the installed CUDA distribution of MXNet, or None where there is none."""
    path = list(sys.path if folders is None else folders)
    for name in DISTRIBUTIONS:
        # importlib.metadata, and the half of the standard library that it needs, take 20 ms.
        folder_name = f"{name.replace('-', '_')}-*.dist-info"
        if any(found for folder in path for found in Path(folder).glob(folder_name)):
            return name
    return None


def find(folders: Sequence[str]) -> List[Path]:
    """List the CUDA libraries that wheels put into `folders`, in the order of ``LIBRARIES``."""
    copies = (_copies(library, folders) for library in LIBRARIES)
    return [paths[0] for paths in copies if paths]


def _copies(library: str, folders: Sequence[str]) -> List[Path]:
    return [path for folder in folders for path in Path(folder).glob(f"nvidia/*/lib/{library}")]


def _loads(path: Path, load: Callable) -> bool:
    try:
        load(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:  # MXNet's own import will say what is missing, if it needs this one
        logger.debug("%s does not load: %s", path, error)
        return False
    return True
