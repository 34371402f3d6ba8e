"""Averages of the parameters over the steps (EMA) or over the epochs (SWA) of a training."""

from typing import Any, Dict

from mxloop import passes
from mxloop.callback.base import Callback, State
from mxloop.compat import mx
from mxloop.errors import ArgumentError
from mxloop.validation import count


class _Averaging(Callback):
    """Trains as ever; evaluations, and the model afterwards, have the averaged parameters."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._count = 0
        self._average: Dict[str, mx.nd.NDArray] = {}
        self._trained: Dict[str, mx.nd.NDArray] = {}

    def _add(self, manager, weight):
        """Move the average towards the parameters of the first device; asynchronous."""
        for name, (param, *_) in zip(manager.param_names, manager.param_arrays):
            if name not in self._average:
                self._average[name] = param.copy()
                continue
            mine = self._average[name]
            if mine.context != param.context:  # it came from a checkpoint
                mine = self._average[name] = mine.as_in_context(param.context)
            mine += weight * (param - mine)
        self._count += 1

    def on_eval_begin(self, state: State) -> None:
        """Put the average into the devices, and keep what was trained."""
        if self._average:
            manager = state.manager
            self._trained = {
                name: param[0].copy()
                for name, param in zip(manager.param_names, manager.param_arrays)
            }
            _put(manager, self._average)

    def on_eval_end(self, state: State) -> None:
        """Put back what was trained."""
        _put(state.manager, self._trained)
        self._trained = {}

    def on_exception(self, state: State, error: BaseException) -> None:
        """Put back what was trained, so that a checkpoint finds it."""
        self.on_eval_end(state)

    def on_epoch_end(self, state: State) -> None:
        """Give the model the average."""
        for name, array in self._average.items():
            array.copyto(state.arg_params[name])

    on_train_end = on_epoch_end

    def state_dict(self) -> Dict[str, Any]:
        """The average, and of how many it is."""
        return {"count": self._count, "average": self._average}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on averaging."""
        self._count, self._average = state["count"], state["average"]


def _put(manager, params):
    for name, arrays in zip(manager.param_names, manager.param_arrays):
        for array in arrays if name in params else []:
            params[name].copyto(array)


class EMA(_Averaging):
    """Give evaluations and the model the exponential moving average of the parameters.

    After n steps the average moves by ``1 - min(decay, (1 + n) / (10 + n))`` of its distance to the
    parameters, so that it is of use in short trainings, too. Running statistics (BatchNorm) are
    those of the training. A later fit goes on from the average; a resumed run from what was
    trained. Callbacks that keep parameters, as `KeepBest`, come after this one.

    Parameters
    ----------
    decay : float
        Between 0 and 1; 0.999 is an average over some 1,000 steps.
    """

    def __init__(self, decay: float = 0.999):
        if not 0 < decay < 1:
            raise ArgumentError(f"decay is {decay}; it must be between 0 and 1")
        super().__init__()
        self.decay = decay

    def on_train_begin(self, state: State) -> None:
        """Note whether the run is taken up with an update to come."""
        self._behind = not state.updated

    def on_batch_end(self, state: State) -> None:
        """Move the average, once for each update."""
        self._behind = True
        self._catch_up(state)

    def on_eval_begin(self, state: State) -> None:
        """See to the update of an epoch's last batches, then evaluate the average."""
        self._catch_up(state)
        super().on_eval_begin(state)

    def on_epoch_end(self, state: State) -> None:
        """See to the update of an epoch's last batches, then give the model the average."""
        self._catch_up(state)
        super().on_epoch_end(state)

    def _catch_up(self, state):
        if not self._behind or not state.updated:
            return
        self._behind = False
        decay = min(self.decay, (1 + self._count) / (10 + self._count))
        self._add(state.manager, 1 - decay)


class SWA(_Averaging):
    """Give evaluations and the model the mean of the parameters at the ends of epochs.

    Stochastic weight averaging (arXiv:1803.05407). At the end the running statistics (BatchNorm)
    are computed anew, in one more pass over the training data. Callbacks that keep parameters, as
    `KeepBest`, come after this one.

    Parameters
    ----------
    begin : int
        The first epoch, counted from 0, whose parameters count.
    """

    def __init__(self, begin: int):
        super().__init__()
        self.begin = count("begin", begin, least=0)

    def on_eval_begin(self, state: State) -> None:
        """Count the epoch that was trained, then evaluate the mean."""
        if state.history and state.history[-1]["epoch"] == state.epoch:
            self._take(state)
        super().on_eval_begin(state)

    def on_epoch_end(self, state: State) -> None:
        """Count the epoch, if no evaluation did, and give the model the mean."""
        self._take(state)
        super().on_epoch_end(state)

    def on_train_end(self, state: State) -> None:
        """Give the model the mean, and statistics that belong to it."""
        super().on_epoch_end(state)
        if self._average and state.aux_params:
            self._renew_statistics(state)

    def _take(self, state):
        if state.epoch >= self.begin + self._count:
            self._add(state.manager, 1 / (1 + self._count))

    def _renew_statistics(self, state):
        manager = state.manager
        _put(manager, self._average)
        for batch in passes.one_pass(state.train_data):
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()  # it is here that MXNet moves the statistics
        manager.copy_to({}, state.aux_params)
