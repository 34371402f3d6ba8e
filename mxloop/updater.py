"""One step of an optimizer on blocks of parameters; its states are known by parameter name."""

from typing import Dict, List, NamedTuple, Sequence, Set

import numpy as np

from mxloop import optimizer as optimizers
from mxloop import sgd
from mxloop.blocks import Block, runs
from mxloop.compat import mx

# These work on each element alone: on a block they give the bits that they give on its parameters.
# LARS, LAMB and LBSGD need norms, Nadam counts its calls, SGLD draws; of one's own nobody knows.
BY_ELEMENT = (
    mx.optimizer.SGD,
    mx.optimizer.NAG,
    mx.optimizer.Adam,
    mx.optimizer.RMSProp,
    mx.optimizer.AdaGrad,
    mx.optimizer.AdaDelta,
    mx.optimizer.Adamax,
    mx.optimizer.Ftrl,
    mx.optimizer.FTML,
    mx.optimizer.Signum,
)


class Unit(NamedTuple):
    """Parameters that one call of the optimizer updates, as if they were one."""

    key: int
    names: List[str]
    shapes: List[tuple]
    starts: List[int]
    weight: mx.nd.NDArray
    grad: mx.nd.NDArray


class BlockUpdater:
    """Updates the first device's parameters from its gradients.

    Parameters
    ----------
    optimizer : Optimizer
        That knows the parameters' names.
    blocks : list of Block
    keys : dict of str to int
        The optimizer's number for each parameter.

    Attributes
    ----------
    frozen : set of str
        Parameters that stay as they are, their states as well.
    """

    def __init__(
        self, optimizer: mx.optimizer.Optimizer, blocks: Sequence[Block], keys: Dict[str, int]
    ):
        self.updater = mx.optimizer.get_updater(optimizer)
        self._optimizer = optimizer
        self._blocks = blocks
        self._keys = {name: keys[name] for block in blocks for name in block.names}
        self._apart = type(optimizer) not in BY_ELEMENT or bool(optimizer.param_dict)
        self.frozen: Set[str] = set()
        self._cut({})

    def __call__(self) -> None:
        """Make one step; asynchronous."""
        if (self._multipliers(), self.frozen) != self._cut_for:
            self._cut(self.states())
        step = self._sgd if sgd.is_plain(self._optimizer) else self._any
        for unit in self._units:
            if unit.names[0] not in self.frozen:
                step(unit)

    def _sgd(self, unit):
        sgd.step(self.updater, unit.key, unit.grad, unit.weight, self._prepared)

    def _any(self, unit):
        self.updater(unit.key, unit.grad, unit.weight)

    def states(self) -> optimizers.States:
        """States and counts of updates by parameter name."""
        states: optimizers.States = {}
        of_units = optimizers.get_states(self.updater, self._unit_keys())
        for unit in self._units:
            if unit.names[0] in of_units:
                state, number = of_units[unit.names[0]]
                for name, shape, start in zip(unit.names, unit.shapes, unit.starts):
                    states[name] = (_part(state, unit, start, shape), number)
        return states

    def load_states(self, states: optimizers.States) -> None:
        """Go on with states by parameter name."""
        weights = {name: weight for block in self._blocks for name, weight in _weights(block)}
        self._cut(optimizers.fitting_states(self.updater, self._keys, states, weights))

    def _multipliers(self):
        return (dict(self._optimizer.lr_mult), dict(self._optimizer.wd_mult))

    def _cut(self, states):
        """Join neighbours that the optimizer treats alike, with their states."""
        self._cut_for = (self._multipliers(), set(self.frozen))
        units = [unit for block in self._blocks for unit in self._units_of(block, states)]
        self._units = sorted(units, key=lambda unit: unit.key)  # Nadam counts the order of calls
        joined = {
            unit.names[0]: (_joined(unit, states), states[unit.names[0]][1])
            for unit in self._units
            if unit.names[0] in states
        }
        self.updater.states.clear()
        self._prepared: Dict[int, sgd.Ready] = {}
        if joined:
            devices = [unit.weight.context for unit in self._units]
            optimizers.set_states(self.updater, self._unit_keys(), joined, devices)

    def _unit_keys(self):
        return {unit.names[0]: unit.key for unit in self._units}

    def _units_of(self, block, states):
        if block.layout is None:
            return [self._single(block.names[0], block.weights[0], block.grads[0])]
        alike = [self._treatment(name, states) for name in block.names]
        return [self._run(block, first, end) for first, end in runs(alike)]

    def _treatment(self, name, states):
        if self._apart:
            return name
        multipliers, frozen = self._cut_for
        by_name = [table.get(self._keys[name], table.get(name, 1.0)) for table in multipliers]
        return (*by_name, name in frozen, states[name][1] if name in states else None)

    def _single(self, name, weight, grad):
        return Unit(self._keys[name], [name], [weight.shape], [0], weight, grad)

    def _run(self, block, first, end):
        layout = block.layout
        if end - first == 1:
            name = layout.names[first]
            weight, grad = (layout.views(array[0])[name] for array in (block.weights, block.grads))
            return self._single(name, weight, grad)
        start = layout.starts[first]
        stop = layout.starts[end] if end < len(layout.starts) else layout.size
        return Unit(
            self._keys[layout.names[first]],
            layout.names[first:end],
            layout.shapes[first:end],
            [each - start for each in layout.starts[first:end]],
            block.weights[0][start:stop],
            block.grads[0][start:stop],
        )


def _weights(block):
    if block.layout is None:
        return [(block.names[0], block.weights[0])]
    return block.layout.views(block.weights[0]).items()


def _part(state, unit, start, shape):
    """One parameter's part of a unit's state."""
    if isinstance(state, (list, tuple)):
        return type(state)(_part(each, unit, start, shape) for each in state)
    if len(unit.names) == 1 or not isinstance(state, mx.nd.NDArray):
        return state
    return state[start : start + int(np.prod(shape))].reshape(shape).copy()


def _joined(unit, states):
    """The state of a unit, made of its parameters' states."""
    return _join(unit, [states[name][0] for name in unit.names])


def _join(unit, parts):
    first = parts[0]
    if isinstance(first, (list, tuple)):
        return type(first)(_join(unit, each) for each in zip(*parts))
    if len(parts) == 1 or not isinstance(first, mx.nd.NDArray):
        return first
    whole = mx.nd.zeros(unit.weight.shape, unit.weight.context, first.dtype)
    for part, start in zip(parts, unit.starts):
        part.reshape((-1,)).copyto(whole[start : start + part.size])
    return whole
