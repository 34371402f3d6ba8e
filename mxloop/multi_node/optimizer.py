"""A Gluon Trainer that steps by the mean gradient of all ranks."""

from typing import Any

from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError, StateError
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.multi_node.sums import QueuedSums
from mxloop.validation import shown


def create_multi_node_optimizer(
    actual_optimizer: mx.gluon.Trainer, communicator: Communicator, overlap: bool = False
) -> "MultiNodeTrainer":
    """Let a Trainer step by the mean of all ranks' gradients, on the parameters of rank 0.

    Parameters
    ----------
    actual_optimizer : mx.gluon.Trainer
        Its parameters must have values; with deferred initialisation run ``net(x)`` once before.
    communicator : Communicator
    overlap : bool
        Whether means are made while the rest of the backward pass still runs. All ranks must then
        have gradients for the same parameters.

    Returns
    -------
    MultiNodeTrainer
        Used like the Trainer. The first `step` is a step like any other.

    Raises
    ------
    ArgumentTypeError, StateError
        If it is no Trainer, or parameters have no values yet.
    """
    check_communicator(communicator)
    if not isinstance(actual_optimizer, mx.gluon.Trainer):
        raise ArgumentTypeError(
            f"actual_optimizer is {shown(repr(actual_optimizer))}; pass an mx.gluon.Trainer, or "
            "train a symbol with FeedForward.fit(kvstore='mpi')"
        )
    return MultiNodeTrainer(actual_optimizer, communicator, overlap)


class MultiNodeTrainer:
    """See `create_multi_node_optimizer`; what is not here is the Trainer's own."""

    def __init__(self, trainer: mx.gluon.Trainer, communicator: Communicator, overlap: bool):
        self._trainer, self._communicator = trainer, communicator
        self._params = [param for param in trainer._params if param.grad_req != "null"]
        for param in trainer._params:
            if param._deferred_init:
                raise StateError(
                    f"{shown(param.name)} has no shape yet; run the network once, as net(x), or "
                    "give the layer in_units or in_channels"
                )
        communicator.bcast_data(trainer._params)
        # A communicator of its own, as sums are made in another thread.
        own = communicator.split(0, communicator.rank) if overlap else None
        self._sums = None if own is None else QueuedSums(own)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Make one step by the mean over all ranks of ``gradient / batch_size``."""
        if self._sums is None:
            self._communicator.mean_grad(self._params)
        else:
            for param in reversed(self._params):  # the last layers' are ready first
                self._mean(param.list_grad())
        self._trainer.step(batch_size, ignore_stale_grad)

    def _mean(self, grads):
        first, *others = grads
        for other in others:
            first += other.as_in_context(first.context)
        self._sums.add(first, mean=True)
        for other in others:
            first.copyto(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)
