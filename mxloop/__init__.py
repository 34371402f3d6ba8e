"""mxloop: a training-loop toolkit for Apache MXNet 1.9."""

import os
import sys

from mxloop.errors import InstallError
from mxloop.version import __version__

# `mxloop doctor` and `python -m mxloop doctor` (Python calls it "-m" while it looks for the module)
# tell what is wrong with MXNet, whose import may fail, or end the process: they do without.
_is_command = os.path.basename(sys.argv[0]) in ("mxloop", "-m")

try:
    if _is_command and sys.argv[1:2] == ["doctor"]:
        raise InstallError("the doctor looks at MXNet from outside")
    from mxloop.compat import mx  # makes MXNet importable, so it comes first
except InstallError:
    if not _is_command:  # a command tells it in one line
        raise
else:
    from mxloop import amp, callback, data, errors, executor_manager, metric, model
    from mxloop.checkpoint import load_checkpoint, save_checkpoint
    from mxloop.devices import available_devices
    from mxloop.executor_manager import DataParallelExecutorManager
    from mxloop.model import FeedForward

__all__ = [
    "DataParallelExecutorManager",
    "FeedForward",
    "__version__",
    "amp",
    "available_devices",
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
