"""mxloop: a training-loop toolkit for Apache MXNet 1.9."""

from mxloop.compat import mx  # isort: skip  (makes MXNet importable, so it comes first)

from mxloop import callback, data, errors, executor_manager, metric, model
from mxloop.checkpoint import load_checkpoint, save_checkpoint
from mxloop.executor_manager import DataParallelExecutorManager
from mxloop.model import FeedForward
from mxloop.version import __version__

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
