"""Freeze against a loop by hand that passes parameters over."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal

from mxloop import DataParallelExecutorManager, FeedForward
from mxloop.callback import Freeze
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError
from mxloop.training import train

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.05, "wd": 0.01},
    "nadam": {"learning_rate": 0.05},
}


def start():
    return nets.params(nets.mlp(), data=(8, 10))[0]


def fit(*callbacks, optimizer="sgd", devices=1, kvstore=None, epochs=3):
    model = FeedForward(
        nets.mlp(),
        CPUS[:devices],
        epochs,
        arg_params=start(),
        optimizer=optimizer,
        **OPTIMIZERS[optimizer],
    )
    return model.fit(ArrayIter(*nets.samples(24), 8), callbacks=callbacks, kvstore=kvstore)


def by_hand(frozen, until, optimizer, epochs=3):
    """The same training, with an updater that is not called for frozen parameters."""
    manager = DataParallelExecutorManager(nets.mlp(), CPUS[0], nets.described(8))
    manager.set_params(start(), {})
    names = dict(enumerate(manager.param_names))
    made = mx.optimizer.create(
        optimizer, param_idx2name=names, rescale_grad=1 / 8, **OPTIMIZERS[optimizer]
    )
    updater = mx.optimizer.get_updater(made)
    for epoch in range(epochs):
        for batch in nets.batches(*nets.samples(24), 8):
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            for i, name in names.items():
                if epoch >= until or name not in frozen:
                    updater(i, manager.grad_arrays[i][0], manager.param_arrays[i][0])
    args = {}
    manager.copy_to(args, {})
    return args


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("until", [1, 2, 99])
def test_frozen_parameters_stand_still_and_then_start_as_if_new(optimizer, until):
    frozen = ["fc1_weight", "fc1_bias"]
    model = fit(Freeze("fc1*", until=until), optimizer=optimizer)
    assert_equal(model.arg_params, nets.numpy_of(by_hand(frozen, until, optimizer)))
    assert np.array_equal(
        model.arg_params["fc1_weight"].asnumpy(), start()["fc1_weight"].asnumpy()
    ) == (until == 99)


@pytest.mark.parametrize(
    ("devices", "kvstore"), [(2, None), (2, "local"), (2, "store"), (1, "store")]
)
def test_it_does_so_on_devices_and_stores(devices, kvstore):
    store = mx.kv.create("local") if kvstore == "store" else kvstore
    model = fit(Freeze("fc1*", until=2), devices=devices, kvstore=store)
    assert_close(model.arg_params, by_hand(["fc1_weight", "fc1_bias"], 2, "sgd"))


def test_several_patterns_freeze_what_any_matches():
    model = fit(Freeze("fc1_weight", "*_bias"))
    moved = {
        name
        for name, value in start().items()
        if not np.array_equal(value.asnumpy(), model.arg_params[name].asnumpy())
    }
    assert moved == {"out_weight"}


def test_the_next_fit_trains_all():
    model = fit(Freeze("fc1*"))
    model.fit(ArrayIter(*nets.samples(24), 8), num_epoch=1)
    assert np.abs((model.arg_params["fc1_weight"] - start()["fc1_weight"]).asnumpy()).max() > 0


def test_a_pattern_that_matches_nothing_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        fit(Freeze("conv*"))
    assert "fc1_weight" in nets.one_line(caught)


def test_an_update_of_ones_own_is_one_line():
    manager = DataParallelExecutorManager(nets.mlp(), CPUS[0], nets.described(8))
    with pytest.raises(StateError) as caught:
        train(manager, lambda: None, ArrayIter(*nets.samples(24), 8), 1, callbacks=[Freeze("fc1*")])
    nets.one_line(caught)
