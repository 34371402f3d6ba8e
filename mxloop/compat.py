"""Make ``import mxnet`` work with today's Python and NumPy, and hand it out as ``compat.mx``.

MXNet 1.9.1 was made for NumPy up to 1.23 and Python up to 3.11. What has gone since then is lent to
it for the length of its import and taken away again: others find NumPy as it was.
"""

import contextlib
import os
import re
import struct
import sys
import types
from numbers import Number
from typing import Any, Dict, Iterator, Optional

import numpy as np

from mxloop import cpu, cuda, launch
from mxloop.errors import InstallError

NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0.dev0"


def import_mxnet() -> types.ModuleType:
    """Import MXNet and mend what does not work here.

    Returns
    -------
    module
        ``mxnet``, which any later ``import mxnet`` gives as well.

    Raises
    ------
    InstallError
        Where MXNet is not installed or cannot be loaded; the text names the remedy.
    """
    if "mxnet" not in sys.modules:  # both are too late once the library is loaded
        launch.set_defaults(os.environ)
        cpu.set_defaults(os.environ)
        os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else a line for every executor
        cuda.preload()
    try:
        with _lent_to_mxnet():
            import mxnet
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        known = _remedy(error)
        raise InstallError(known or _does_not_import(error)) from (None if known else error)
    if not hasattr(mxnet, "executor_manager"):
        version = getattr(mxnet, "__version__", "without a version")
        raise InstallError(f"Found MXNet {version}, mxloop needs 1.9: run {_install_command()}")
    cpu.leave_to_workers(mxnet.base._LIB)
    if NUMPY_2:
        _mend_attributes(mxnet)
        _mend_recordio(mxnet.recordio)
    return mxnet


# Names


@contextlib.contextmanager
def _lent_to_mxnet() -> Iterator[None]:
    """Lend MXNet the names that newer NumPy and Python lack, while it is imported."""
    numpy_names = _absent(_removed_numpy_names(), vars(np))  # hasattr would warn of some
    modules = _absent(_removed_modules(), sys.modules)
    vars(np).update(numpy_names)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in numpy_names:
            del vars(np)[name]
        for name in modules:
            del sys.modules[name]
        vars(np).update(_absent(_names_used_later(), vars(np)))


def _absent(wanted: Dict[str, Any], present: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in wanted.items() if name not in present}


def _names_used_later() -> Dict[str, Any]:
    """Names that MXNet reads from NumPy in its functions, so that they must stay."""
    # Up to NumPy 1.23, np.bool is Python's bool, and a user's code may count on that.
    if np.lib.NumpyVersion(np.__version__) < "1.24.0":
        return {}
    return {"bool": np.bool_, "Inf": np.inf}


def _removed_numpy_names() -> Dict[str, Any]:
    names = {
        **_names_used_later(),
        "NAN": np.nan,
        "NaN": np.nan,
        "PINF": np.inf,
        "NINF": -np.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "alltrue": np.all,
        "sometrue": np.any,
        "product": np.prod,
        "round_": np.round,
        "msort": lambda a: np.sort(a, axis=0),
        "in1d": lambda a, b, **options: np.isin(np.ravel(a), b, **options),
        "trapz": getattr(np, "trapezoid", None),  # the new name came before the old one went
    }
    financial = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")
    return {**names, **{name: _gone(name) for name in financial}}


def _gone(name: str) -> Any:
    def function(*args, **kwargs):
        raise NotImplementedError(f"NumPy removed {name}: use numpy_financial.{name} instead")

    return function


class _Version(tuple):
    """A version that compares by its first three numbers."""

    def __new__(cls, text: str) -> "_Version":
        return super().__new__(cls, map(int, re.findall(r"\d+", text)[:3]))


def _removed_modules() -> Dict[str, types.ModuleType]:
    if sys.version_info < (3, 12):
        return {}
    version = types.ModuleType("distutils.version")
    version.LooseVersion = version.StrictVersion = _Version
    return {"distutils.version": version}


# Numbers as text


class _AttributeText(type):
    """Stands in for ``str`` where MXNet writes operator attributes, in the way NumPy 1 did.

    MXNet's library parses ``str((np.int64(3), 3))``, which NumPy 2 prints as ``(np.int64(3), 3)``.
    ``np.set_printoptions(legacy='1.25')`` for good would change what users see and, from NumPy 2.1
    on, would not hold in other threads, where data loaders and custom operators run.
    """

    def __call__(cls, value: Any) -> str:
        text = str(value)
        if "np." in text:
            with np.printoptions(legacy="1.25"):
                text = str(value)
        return text

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)


def _mend_attributes(mxnet: types.ModuleType) -> None:
    text = _AttributeText("str", (), {})
    for module in (mxnet._ctypes.ndarray, mxnet._ctypes.symbol, mxnet.symbol.symbol, mxnet.io.io):
        module.str = text


# RecordIO


def _mend_recordio(recordio: types.ModuleType) -> None:
    """Replace the two functions that call ``ndarray.tostring``, which NumPy 2.3 removed."""
    stock_pack = recordio.pack

    def pack(header, s):
        header = recordio.IRHeader(*header)
        if isinstance(header.label, Number):
            return stock_pack(header, s)
        label = np.asarray(header.label, dtype=np.float32)
        header = header._replace(flag=label.size, label=0)
        return struct.pack(recordio._IR_FORMAT, *header) + label.tobytes() + s

    def pack_img(header, img, quality=95, img_fmt=".jpg"):
        cv2 = recordio.cv2
        is_png = img_fmt.lower() == ".png"
        option = cv2.IMWRITE_PNG_COMPRESSION if is_png else cv2.IMWRITE_JPEG_QUALITY
        encoded = cv2.imencode(img_fmt, img, [option, quality])[1]
        return pack(header, encoded.tobytes())

    recordio.pack, recordio.pack_img = pack, pack_img


# What to do when it does not import


def _remedy(error: Exception) -> Optional[str]:
    """Say in one line what is missing and how to get it; None where nothing is known to be."""
    package = getattr(error, "name", None) or "mxnet."
    if package == "mxnet":
        return f"MXNet is not installed: run {_install_command()}"
    if isinstance(error, ModuleNotFoundError) and not package.startswith("mxnet."):
        return f"MXNet needs the package {package!r}: run pip install {package}"
    library = re.match(r"(\S+): cannot open shared object file", str(error))
    return _library_remedy(library.group(1)) if library else None


def _library_remedy(library: str) -> str:
    build = cuda.distribution()
    if library == "libcuda.so.1":
        return (
            f"{build or 'This MXNet'} is built for CUDA and finds no NVIDIA driver ({library}): "
            f"install the driver, or uninstall {build or 'it'} and run {_cpu_command()}"
        )
    if build and library in cuda.LIBRARIES:
        extra = build.partition("-")[2]
        return f'{build} does not find {library} of CUDA: run pip install "mxloop[{extra}]"'
    return (
        f"MXNet does not find the library {library}: install the system's package that has it, "
        "or add its folder to LD_LIBRARY_PATH"
    )


def _does_not_import(error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0][:80]
    python = ".".join(map(str, sys.version_info[:2]))
    return (
        f"MXNet does not import with Python {python} and NumPy {np.__version__} ({reason}): "
        f"reinstall it, as with {_cpu_command()}"
    )


def _install_command() -> str:
    gpu = "" if sys.version_info >= (3, 13) else ' (for NVIDIA GPUs "mxloop[cu117]")'
    return _cpu_command() + gpu


def _cpu_command() -> str:
    # No NumPy 1 is built for 3.13, and MXNet's metadata forbid NumPy 2: pip would refuse the extra.
    if sys.version_info >= (3, 13):
        return 'pip install --no-deps mxnet==1.9.1; pip install requests "graphviz<0.9"'
    return 'pip install "mxloop[cpu]"'


mx = import_mxnet()
