"""Batch normalisation over the batches of all ranks."""

from typing import Any

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.multi_node import functions
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.validation import names

STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_var")


class MultiNodeBatchNorm(mx.gluon.nn.BatchNorm):
    """`mx.gluon.nn.BatchNorm` that normalises by mean and variance over all ranks' samples.

    In training all ranks must call it together; they may have different numbers of samples.
    Gradients flow through mean and variance as on one process. It cannot be hybridized.

    Parameters
    ----------
    communicator : Communicator
    **kwargs
        For `mx.gluon.nn.BatchNorm`.
    """

    def __init__(self, communicator: Communicator, **kwargs: Any):
        super().__init__(**kwargs)
        self._communicator = check_communicator(communicator)

    def forward(self, x: mx.nd.NDArray, *args: Any) -> mx.nd.NDArray:
        """Normalise `x`; in training by all ranks' statistics, otherwise by the running ones."""
        if not mx.autograd.is_training() or self._kwargs["use_global_stats"]:
            return super().forward(x, *args)
        if self.gamma._deferred_init:
            self.infer_shape(x)
            for param in self.collect_params().values():
                param._finish_deferred_init()
        axes = [axis for axis in range(x.ndim) if axis != self._kwargs["axis"] % x.ndim]
        count, mean = self._mean(x, axes)
        centred = mx.nd.broadcast_sub(x, mean)
        _, variance = self._mean(centred * centred, axes)
        self._move(mean, variance)
        scale = self._gamma(x.context) / mx.nd.sqrt(variance.reshape((-1,)) + self._kwargs["eps"])
        shape = mean.shape
        scaled = mx.nd.broadcast_mul(centred, scale.reshape(shape))
        return mx.nd.broadcast_add(scaled, self.beta.data(x.context).reshape(shape))

    def _mean(self, x, axes):
        """Number of values, and their mean over all ranks, which keeps the number of axes."""
        total = mx.nd.sum(x, axis=axes, keepdims=True)
        count = mx.nd.full((1,), x.size // total.size, x.context, x.dtype)
        own = mx.nd.concat(total.reshape((-1,)), count, dim=0)
        found = functions.allgather(self._communicator, own)
        if len({each.shape for each in found}) > 1:
            raise DataError(
                f"ranks normalise {names([each.size - 1 for each in found])} channels; let all run "
                "the same layer"
            )
        both = mx.nd.add_n(*found)
        total_of_all, count = both[:-1], both[-1:]
        return count, mx.nd.broadcast_div(total_of_all, count).reshape(total.shape)

    def _gamma(self, ctx):
        gamma = self.gamma.data(ctx)
        return mx.nd.ones_like(gamma) if self._kwargs["fix_gamma"] else gamma

    def _move(self, mean, variance):
        momentum = self._kwargs["momentum"]
        with mx.autograd.pause():
            for running, new in ((self.running_mean, mean), (self.running_var, variance)):
                old = running.data(mean.context)
                old[:] = momentum * old + (1 - momentum) * new.reshape((-1,))


def average_statistics(communicator: Communicator, params: Any) -> None:
    """Replace running statistics by their means over all ranks, as before an evaluation.

    Parameters
    ----------
    communicator : Communicator
    params : Block, or dict of name to NDArray
        A dict is a network's auxiliary states, all of which are averaged; of a Block those named
        running or moving mean or variance.
    """
    check_communicator(communicator)
    if isinstance(params, mx.gluon.Block):
        params = {
            name: array
            for name, param in params.collect_params().items()
            if name.endswith(STATISTICS)
            for array in param.list_data()
        }
    communicator.average(list(params.values()))
