"""mxloop: a training-loop toolkit for Apache MXNet 1.9."""

import os
import sys

from mxloop.errors import InstallError
from mxloop.version import __version__

try:
    from mxloop.compat import mx  # makes MXNet importable, so it comes first
except InstallError:
    # The commands `mxloop doctor` and `python -m mxloop doctor` (Python calls it "-m" while it
    # looks for the module) go on: to say what is wrong with MXNet is what they are for.
    if os.path.basename(sys.argv[0]) not in ("mxloop", "-m"):
        raise
else:
    from mxloop import callback, data, errors, executor_manager, metric, model
    from mxloop.checkpoint import load_checkpoint, save_checkpoint
    from mxloop.executor_manager import DataParallelExecutorManager
    from mxloop.model import FeedForward

__all__ = [
    "DataParallelExecutorManager",
    "FeedForward",
    "__version__",
    "callback",
    "data",
    "errors",
    "executor_manager",
    "load_checkpoint",
    "metric",
    "model",
    "mx",
    "save_checkpoint",
]
