"""Libraries that only a part of mxloop needs: imported when that part is used."""

import importlib
from types import ModuleType

from mxloop.errors import InstallError


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import a module of an optional library.

    Parameters
    ----------
    module : str
    extra : str
        The extra of mxloop that brings it.
    what : str
        What needs it, as the message begins.

    Raises
    ------
    InstallError
        If it is not there.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InstallError(
            f"{what} needs {module.partition('.')[0]}; run pip install 'mxloop[{extra}]'"
        ) from error
