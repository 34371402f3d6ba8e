"""One step of the parameters, from the gradients of a manager's batch."""

from typing import Any, Dict, Iterable, Optional, Set, Tuple

from mxloop import distributed
from mxloop import optimizer as optimizers
from mxloop.compat import mx
from mxloop.errors import ArgumentError, DataError
from mxloop.executor_manager import DataParallelExecutorManager
from mxloop.gathered import Gathered
from mxloop.stores import Params, fill_kvstore, spread, sum_grads, update_params_on_kvstore
from mxloop.updater import BlockUpdater
from mxloop.validation import count


class Update:
    """One step of the parameters, from the gradients of the manager's present batch.

    Unless the caller gave `rescale_grad`, a step is the mean over the batch's real samples. With
    `accumulate` it is that of several batches, as of one that is as large as all of them: the calls
    before the last of them only add up gradients. What waits at the end is for `finish`.

    Parameters
    ----------
    manager : DataParallelExecutorManager
    optimizer : Optimizer
    kvstore : KVStore or None
    update_on_kvstore : bool
        Not obeyed for a 'dist_sync' store: workers in step add up gradients on the servers and
        update by themselves, so that the scale of a step can follow the samples in it, and states
        can be saved.
    mean : bool
        Whether each step sets `rescale_grad` to 1 / samples.
    accumulate : int
        Batches to a step.

    Attributes
    ----------
    total : int or None
        Samples of the present batch, where they are not the manager's alone.
    clip_norm : float or None
        The greatest norm that the gradient of a step, over all parameters, may have.
    """

    def __init__(
        self,
        manager: DataParallelExecutorManager,
        optimizer: mx.optimizer.Optimizer,
        kvstore: Optional[Any] = None,
        update_on_kvstore: bool = False,
        mean: bool = True,
        accumulate: int = 1,
    ):
        self.accumulate = count("accumulate", accumulate)
        if self.accumulate > 1 and manager.adds_gradients:
            raise ArgumentError(
                f"accumulate is {accumulate}, and the manager's grad_req='add' adds up gradients "
                "as well; bind it with grad_req='write', the default"
            )
        self._gathered = Gathered(manager.blocks)
        self._manager = manager
        self._optimizer = optimizer
        update_on_kvstore = update_on_kvstore and not distributed.is_synchronous(kvstore)
        self._kvstore = kvstore
        self._on_kvstore = update_on_kvstore
        self._mean = mean
        self.total: Optional[int] = None
        self.clip_norm: Optional[float] = None
        self._guarded: Optional[optimizers.GuardedUpdater] = None
        self._updater: Optional[mx.optimizer.Updater] = None
        num_replica = 1 if update_on_kvstore else len(manager.ctx)
        optimizers.name_parameters(optimizer, manager.symbol, manager.param_names, num_replica)
        self._keys = optimizers.keys_of(manager.param_names, num_replica, update_on_kvstore)
        self._served = update_on_kvstore and str(kvstore.type).startswith("dist")
        self._planned = manager.num_samples * self.accumulate
        if self._served and mean:
            optimizer.rescale_grad = 1.0 / self._planned
        if update_on_kvstore:
            kvstore.set_optimizer(optimizer)
            self._updater = None if self._served else self._guard(kvstore)
        else:
            self._step = BlockUpdater(optimizer, manager.blocks, self._keys)
        by_name = zip(manager.param_names, manager.grad_arrays)
        if kvstore is None:
            by_name = [(block.key, block.grads) for block in manager.blocks]
        # A store that the caller has filled knows parameters, and one that `fill` fills blocks.
        self._messages = [(name, grads) for name, grads in by_name if grads[0] is not None]
        self._frozen: Set[str] = set()

    def _guard(self, kvstore):
        updater = kvstore._updater
        self._guarded = optimizers.GuardedUpdater(updater)
        kvstore._set_updater(self._guarded)
        return updater

    def __call__(self) -> None:
        """Make the step, or add up gradients for it; asynchronous."""
        samples = self._manager.num_samples if self.total is None else self.total
        if self.accumulate == 1:
            self._make(samples)
        elif self.waiting + 1 < self.accumulate:
            self._gathered.add(samples)
        else:
            self._make(samples + self._gathered.take())

    @property
    def waiting(self) -> int:
        """Batches whose gradients wait for their step."""
        return self._gathered.batches

    def finish(self) -> None:
        """Make the step of the batches that wait, if any do; asynchronous.

        So an epoch's last step is that of fewer batches. Of several workers, all do it together.
        """
        if self.waiting:
            self._zero_grads()
            self._make(self._gathered.take())

    def _make(self, samples):
        if self._mean:
            self._rescale(samples)
        manager = self._manager
        if self._on_kvstore:
            update_params_on_kvstore(
                manager.param_arrays, self._trained_grads(), self._kvstore, manager.param_names
            )
            if self._guarded is not None:
                self._guarded.raise_error()
        else:
            for index, (key, grads) in enumerate(self._messages):
                sum_grads(grads, self._kvstore, key, index)
            self._clip()
            self._step()
            for block in manager.blocks:
                spread(block.weights)

    @property
    def can_clip(self) -> bool:
        """Whether `clip_norm` has an effect: a store that updates sums gradients out of reach."""
        return not self._on_kvstore

    def _clip(self):
        """Scale all gradients alike, if they are too long together; asynchronous."""
        if self.clip_norm is None:
            return
        grads = [grads[0] for grads in self._trained_grads() if grads[0] is not None]
        if not grads:
            return
        squares = [mx.nd.multi_sum_sq(grad, num_arrays=1) for grad in grads]  # float32, all of them
        norm = mx.nd.sqrt(mx.nd.add_n(*squares)) * self._optimizer.rescale_grad
        factor = self.clip_norm / mx.nd.maximum(norm, self.clip_norm)
        for grad in grads:
            alike = factor.astype(grad.dtype).reshape((1,) * grad.ndim)
            mx.nd.broadcast_mul(grad, alike, out=grad)

    def freeze(self, param_names: Iterable[str]) -> None:
        """Leave these parameters, and their states, as they are; all others are trained."""
        self._frozen = set(param_names)
        if not self._on_kvstore:
            self._step.frozen = self._frozen

    def _trained_grads(self):
        """The gradients; None for parameters that are frozen."""
        if not self._frozen:
            return self._manager.grad_arrays
        return [
            [None] * len(grads) if name in self._frozen else grads
            for name, grads in zip(self._manager.param_names, self._manager.grad_arrays)
        ]

    def fill(self, arg_params: Params) -> None:
        """Put the parameters into the store; of several workers, all get the first one's."""
        manager = self._manager
        if self._kvstore is None:
            return
        if self._on_kvstore:
            entries = zip(manager.param_names, manager.param_arrays)
            values = arg_params
        else:
            entries = [(block.key, block.weights) for block in manager.blocks]
            values = {block.key: block.weights[0] for block in manager.blocks}
            self._messages = [(block.key, block.grads) for block in manager.blocks]
        fill_kvstore(self._kvstore, dict(entries), values, self._on_kvstore)

    def _rescale(self, samples):
        if not self._served:
            self._optimizer.rescale_grad = 1.0 / samples
        elif samples != self._planned:
            # The server has its own copy of the optimizer: a shorter batch is scaled up here.
            self._scale_grads(self._planned / samples)

    def _scale_grads(self, factor):
        for grads in self._manager.grad_arrays:
            for grad in grads:
                if grad is not None:
                    grad *= factor

    def with_zeros(self) -> None:
        """Go along with the others' batch, as a worker that has no more samples of its own."""
        self._zero_grads()
        self()

    def _zero_grads(self):
        for grads in self._manager.grad_arrays:
            for grad in grads:
                if grad is not None:
                    grad[:] = 0  # a product with zero would keep a NaN

    @property
    def is_served(self) -> bool:
        """Whether servers update with an optimizer of their own ('dist_async')."""
        return self._served

    @property
    def is_alone(self) -> bool:
        """Whether a step is made without other processes."""
        return not distributed.is_distributed(self._kvstore)

    def states(self) -> optimizers.States:
        """The optimizer's states by parameter name; none where a server keeps them."""
        if not self._on_kvstore:
            return self._manager.all_states(self._step.states())
        return optimizers.get_states(self._updater, self._keys) if self._updater else {}

    def load_states(self, states: optimizers.States) -> None:
        """Go on with states that `states` gave, on whatever devices."""
        if not self._on_kvstore:
            self._step.load_states(self._manager.own_states(states))
        elif self._updater:
            manager = self._manager
            weights = {n: own[0] for n, own in zip(manager.param_names, manager.param_arrays)}
            states = optimizers.fitting_states(self._updater, self._keys, states, weights)
            optimizers.set_states(self._updater, self._keys, states, manager.ctx)

    def gathered(self) -> Tuple[optimizers.States, Dict[str, int]]:
        """What waits for its step, by parameter name, and what it is of; fit for a checkpoint."""
        found = self._gathered
        arrays = {name: (tuple(each), 0) for name, each in found.arrays().items()}
        numbers = {
            "accumulate": self.accumulate,
            "batches": found.batches,
            "samples": found.samples,
        }
        return self._manager.all_states(arrays), numbers

    def load_gathered(self, states: optimizers.States, numbers: Dict[str, int]) -> None:
        """Go on with what `gathered` gave, on whatever devices.

        Raises
        ------
        DataError
            If batches wait for a step of another size, or their gradients are of another network.
        """
        if numbers["batches"] and numbers["accumulate"] != self.accumulate:
            raise DataError(
                f"the checkpoint is {numbers['batches']} batches into an update of "
                f"{numbers['accumulate']}, and accumulate is {self.accumulate}; resume with the "
                "accumulate of the run before"
            )
        arrays = {name: each for name, (each, _) in self._manager.own_states(states).items()}
        self._gathered.load(arrays, numbers["batches"], numbers["samples"])
