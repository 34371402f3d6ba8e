"""The guard names step, parameter and device of the first gradient that is not finite."""

import nets
import numpy as np
import pytest

from mxloop import FeedForward, mx
from mxloop.callback import Callback
from mxloop.data import ArrayIter
from mxloop.errors import DivergedError
from mxloop.guard import EVERY

CPUS = [mx.cpu(i) for i in range(3)]


class Spoil(Callback):
    """Writes a value into one of the gradients' sources, a weight, before one step."""

    def __init__(self, name, device, epoch, batch, value=np.nan):
        self.name, self.device, self.at, self.value = name, device, (epoch, batch), value

    def on_batch_begin(self, state):
        if (state.epoch, state.nbatch + 1) == self.at:
            manager = state.manager
            weights = manager.param_arrays[manager.param_names.index(self.name)]
            weights[self.device][:] = self.value


def lenet():
    return nets.lenet() if hasattr(nets, "lenet") else nets.mlp()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("batch", [1, 5, EVERY, EVERY + 3])
@pytest.mark.parametrize("devices, device", [(1, 0), (3, 2)])
def test_step_and_device_are_named(devices, device, batch, value):
    x, y = nets.samples(16 * (EVERY + 8))
    model = FeedForward(nets.mlp(), CPUS[:devices], num_epoch=2, numpy_batch_size=16)
    spoil = Spoil("fc1_weight", device, 1, batch, value)
    with pytest.raises(DivergedError) as error:
        model.fit(x, y, callbacks=spoil, kvstore=None)
    assert f"on cpu({device}) is NaN or infinite in epoch 1, batch {batch};" in str(error.value)
    assert "_weight'" in str(error.value)
    assert all(np.isfinite(a.asnumpy()).all() for a in model.arg_params.values())
    assert len(model.history) == 1


def test_each_parameter_is_told_from_its_neighbours():
    """NaN in the data reaches the first layer's weight, and nothing that a ReLU stands before."""
    x, y = nets.samples(64)
    x = x.astype(np.float32)
    batches = ArrayIter(x, y, 16)
    x[20, 0] = np.nan  # after it was looked at
    model = FeedForward(nets.mlp(), num_epoch=1)
    with pytest.raises(DivergedError, match=r"'fc1_weight' on cpu\(0\) .* epoch 0, batch 2;"):
        model.fit(batches)


def test_it_can_be_switched_off():
    x, y = nets.samples(64)
    model = FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=16)
    with pytest.raises(DivergedError, match="after epoch 0"):
        model.fit(x, y, callbacks=Spoil("fc1_weight", 0, 0, 2), guard=False)


def test_no_checkpoint_is_written_of_what_diverged(tmp_path):
    from mxloop.callback import Checkpoint

    x, y = nets.samples(16 * 8)
    model = FeedForward(nets.mlp(), num_epoch=1, numpy_batch_size=16)
    keeper = Checkpoint(tmp_path / "m", every_n_batches=2)
    with pytest.raises(DivergedError, match="batch 4;"):
        model.fit(x, y, callbacks=Spoil("fc1_weight", 0, 0, 4), checkpoint=keeper)
    written = sorted(path.name for path in tmp_path.glob("*.params"))
    assert len(written) == 1 and "2" in written[0]


def test_numbers_are_the_same_with_and_without_it():
    x, y = nets.samples(96)
    fitted = [
        FeedForward(nets.mlp(), num_epoch=3, numpy_batch_size=16, momentum=0.9)
        .fit(x, y, seed=3, guard=guard)
        .arg_params
        for guard in (True, False)
    ]
    for name, array in fitted[0].items():
        np.testing.assert_array_equal(array.asnumpy(), fitted[1][name].asnumpy())


@pytest.mark.parametrize("spoiled", [False, True])
def test_float64_is_watched_too(spoiled):
    x, y = nets.samples(32, (1, 12, 12))
    x, y = x.astype("float64"), y.astype("float64")
    x[20] = np.nan if spoiled else x[20]
    batches = mx.io.NDArrayIter(
        mx.nd.array(x, dtype="float64"), mx.nd.array(y, dtype="float64"), 16
    )
    model = FeedForward(lenet(), CPUS[:2], num_epoch=1)
    if spoiled:
        with pytest.raises(DivergedError, match=r"on cpu\(0\) .* batch 2;"):
            model.fit(batches)
    else:
        model.fit(batches)
    assert model.arg_params["conv1_weight"].dtype == np.float64
