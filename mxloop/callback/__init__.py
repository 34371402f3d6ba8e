"""What happens beside the training: one idea a file. MXNet's own callables work unchanged."""

from mxloop.callback.base import Callback, CallbackList, State, as_callbacks
from mxloop.callback.checkpointing import Checkpoint, do_checkpoint
from mxloop.callback.epoch_log import EpochLog
from mxloop.callback.speedometer import Speedometer
from mxloop.compat import mx

BatchEndParam = mx.model.BatchEndParam
log_train_metric = mx.callback.log_train_metric
module_checkpoint = mx.callback.module_checkpoint
LogValidationMetricsCallback = mx.callback.LogValidationMetricsCallback
ProgressBar = mx.callback.ProgressBar

__all__ = [
    "BatchEndParam",
    "Callback",
    "CallbackList",
    "Checkpoint",
    "EpochLog",
    "LogValidationMetricsCallback",
    "ProgressBar",
    "Speedometer",
    "State",
    "as_callbacks",
    "do_checkpoint",
    "log_train_metric",
    "module_checkpoint",
]
