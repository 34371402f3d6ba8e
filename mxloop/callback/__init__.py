"""What happens beside the training: one idea a file. MXNet's own callables work unchanged."""

from mxloop.callback.averaging import EMA, SWA
from mxloop.callback.base import Callback, CallbackList, State, as_callbacks
from mxloop.callback.checkpointing import Checkpoint, do_checkpoint
from mxloop.callback.early_stopping import EarlyStopping
from mxloop.callback.epoch_log import EpochLog
from mxloop.callback.fast_dev_run import FastDevRun
from mxloop.callback.freeze import Freeze
from mxloop.callback.gradient_clip import GradientClip
from mxloop.callback.history_file import HistoryFile
from mxloop.callback.keep_best import KeepBest
from mxloop.callback.layer_rates import LayerRates
from mxloop.callback.limit_batches import LimitBatches
from mxloop.callback.lr_finder import LRFinder
from mxloop.callback.model_summary import ModelSummary
from mxloop.callback.overfit_batch import OverfitBatch
from mxloop.callback.progress import Progress
from mxloop.callback.reduce_on_plateau import ReduceOnPlateau
from mxloop.callback.schedule import Schedule, cosine, steps, warm_up
from mxloop.callback.speedometer import Speedometer
from mxloop.callback.tensor_monitor import TensorMonitor
from mxloop.callback.tensorboard import TensorBoard
from mxloop.callback.throughput import Throughput
from mxloop.callback.time_limit import TimeLimit
from mxloop.callback.validate_every import ValidateEvery
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
    "EMA",
    "EarlyStopping",
    "EpochLog",
    "FastDevRun",
    "Freeze",
    "GradientClip",
    "HistoryFile",
    "KeepBest",
    "LRFinder",
    "LayerRates",
    "LimitBatches",
    "LogValidationMetricsCallback",
    "ModelSummary",
    "OverfitBatch",
    "Progress",
    "ProgressBar",
    "ReduceOnPlateau",
    "SWA",
    "Schedule",
    "Speedometer",
    "State",
    "TensorBoard",
    "TensorMonitor",
    "Throughput",
    "TimeLimit",
    "ValidateEvery",
    "as_callbacks",
    "cosine",
    "do_checkpoint",
    "log_train_metric",
    "module_checkpoint",
    "steps",
    "warm_up",
]
