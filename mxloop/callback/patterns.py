"""Parameters by patterns of their names."""

import fnmatch
from typing import Iterable, List

from mxloop.errors import ArgumentError
from mxloop.validation import names, shown


def matching(pattern: str, param_names: Iterable[str]) -> List[str]:
    """Names that a shell pattern, as 'conv*_weight', matches.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    param_names = list(param_names)
    found = fnmatch.filter(param_names, pattern)
    if not found:
        raise ArgumentError(
            f"{shown(repr(pattern), 60)} matches no parameter of the network; those are "
            f"{names(param_names, 120)}"
        )
    return found
