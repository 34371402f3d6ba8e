"""Files of a model that are not what they should be: one line each, whoever damaged them."""

import os
import pickle
import struct

import nets
import numpy as np
import pytest
from nets import one_line

from mxloop import FeedForward, checkpoint, resume
from mxloop.compat import mx
from mxloop.errors import DataError, MXLoopError

X, Y = nets.samples(24, (4,), classes=3)
SYMBOL = nets.conv_bn(3)
IMAGES = nets.samples(24, (1, 12, 12), classes=3)
MOMENTUM = {"momentum": 0.9}


def fitted(width=(5,), **settings):
    return FeedForward(nets.mlp(width, 3), num_epoch=1, **settings).fit(X, Y, seed=1)


@pytest.fixture
def prefix(tmp_path):
    """A model's files without a manifest, which would tell of any damage."""
    fitted(**MOMENTUM).save(tmp_path / "m", 1, save_optimizer_states=True)
    os.remove(str(tmp_path / "m-0001.json"))
    return tmp_path / "m"


def named():
    return {f"arg:{n}": v for n, v in nets.params(nets.mlp((5,), 3), data=(8, 4))[0].items()}


def without(name):
    return {key: value for key, value in named().items() if key != name}


def file_of(prefix, ending):
    return prefix.parent / f"{prefix.name}-{ending}"


PARAMS = {
    "unknown kind": (lambda: {**named(), "xyz:fc1_weight": mx.nd.ones(3)}, "'xyz:fc1_weight'"),
    "no kind": (lambda: {"fc1_weight": mx.nd.ones((5, 4))}, "'fc1_weight'"),
    "no name": (lambda: {**named(), "arg:": mx.nd.ones(3)}, "'arg:'"),
    "no names at all": (lambda: [mx.nd.ones(3)], "0 names"),
    "parameter missing": (lambda: without("arg:fc1_weight"), "fc1_weight"),
    "unknown parameter": (lambda: {**named(), "arg:other_bias": mx.nd.ones(3)}, "other_bias"),
    "other shape": (lambda: {**named(), "arg:fc1_weight": mx.nd.ones((7, 4))}, "(7, 4)"),
    "other rank": (lambda: {**named(), "arg:fc1_weight": mx.nd.ones(20)}, "(20,)"),
    "NaN": (lambda: {**named(), "arg:fc1_weight": mx.nd.ones((5, 4)) * np.nan}, "NaN"),
    "sparse": (lambda: {**named(), "arg:fc1_weight": mx.nd.ones((5, 4)).tostype("csr")}, "csr"),
}


@pytest.mark.parametrize("use", ["predict", "fit"])
@pytest.mark.parametrize("case", PARAMS)
def test_parameters_that_do_not_fit_are_one_line(prefix, case, use):
    make, said = PARAMS[case]
    mx.nd.save(str(file_of(prefix, "0001.params")), make())
    with pytest.raises(MXLoopError) as told:
        model = FeedForward.load(prefix, 1, num_epoch=2)
        model.predict(X) if use == "predict" else model.fit(X, Y)
    assert said in one_line(told)


def test_a_missing_auxiliary_state_is_one_line(tmp_path):
    model = FeedForward(SYMBOL, num_epoch=1).fit(*IMAGES)
    del model.aux_params["bn1_moving_mean"]
    model.save(tmp_path / "m", 1)
    with pytest.raises(DataError, match="bn1_moving_mean") as told:
        FeedForward.load(tmp_path / "m", 1)
    one_line(told)
    FeedForward.load(tmp_path / "m", 1, allow_missing=True, num_epoch=2).fit(*IMAGES)


def test_a_type_flag_that_mxnet_does_not_know_is_one_line(prefix):
    path = file_of(prefix, "0001.params")
    data = bytearray(path.read_bytes())
    (dimensions,) = struct.unpack_from("<i", data, 32)  # of the first array, behind its magic
    struct.pack_into("<i", data, 36 + 8 * dimensions + 8, 127)
    path.write_bytes(data)
    with pytest.raises(DataError, match="dtype flag 127") as told:
        FeedForward.load(prefix, 1)
    one_line(told)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("run",)


STATES = {
    "zero bytes": (b"", "holds nothing"),
    "made to run code": (pickle.dumps(Malicious()), "convert-states"),
    "a pickle": (pickle.dumps({0: None}), "convert-states"),
    "text": (b"states", "no whole .params"),
}


@pytest.mark.parametrize("case", STATES)
def test_states_that_are_none_are_one_line(prefix, monkeypatch, case):
    content, said = STATES[case]
    monkeypatch.chdir(prefix.parent)
    file_of(prefix, "0001.states").write_bytes(content)
    with pytest.raises(DataError) as told:
        FeedForward.load(prefix, 1, load_optimizer_states=True)
    assert said in one_line(told) and "0001.states" in str(told.value)
    assert not os.path.exists("run")


def test_missing_states_are_one_line(prefix):
    os.remove(str(file_of(prefix, "0001.states")))
    with pytest.raises(DataError, match="no optimizer states") as told:
        FeedForward.load(prefix, 1, load_optimizer_states=True)
    one_line(told)


def load_and_fit(prefix, **settings):
    model = FeedForward.load(prefix, 1, load_optimizer_states=True, num_epoch=2, **settings)
    return model.fit(X, Y, seed=1)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"optimizer": "rmsprop"}])
def test_states_of_another_optimizer_are_one_line(prefix, settings):
    with pytest.raises(DataError, match="state of 'fc1_weight'") as told:
        load_and_fit(prefix, **settings)
    one_line(told)


def test_states_of_another_network_are_one_line(prefix):
    fitted((7,), **MOMENTUM).save(prefix.parent / "o", 1, save_optimizer_states=True)
    (prefix.parent / "o-0001.states").replace(file_of(prefix, "0001.states"))
    with pytest.raises(DataError, match="7, 4") as told:
        load_and_fit(prefix, **MOMENTUM)
    one_line(told)


def test_states_of_parameters_that_are_not_there_are_left_out_and_told_of(prefix, caplog):
    fitted((5, 3), **MOMENTUM).save(prefix.parent / "o", 1, save_optimizer_states=True)
    (prefix.parent / "o-0001.states").replace(file_of(prefix, "0001.states"))
    with pytest.raises(DataError, match="out_weight"):  # of another shape
        load_and_fit(prefix, **MOMENTUM)
    assert "fc2_weight" in caplog.text


def test_momentum_that_is_switched_on_begins_at_zero(tmp_path):
    fitted().save(tmp_path / "m", 1, save_optimizer_states=True)
    with_states = load_and_fit(tmp_path / "m", **MOMENTUM)
    without = FeedForward.load(tmp_path / "m", 1, num_epoch=2, **MOMENTUM).fit(X, Y, seed=1)
    nets.assert_equal(with_states.arg_params, without.arg_params)


def test_adams_count_of_updates_comes_from_the_file(tmp_path):
    whole = FeedForward(nets.mlp((5,), 3), num_epoch=2, optimizer="adam").fit(X, Y, seed=1)
    fitted(optimizer="adam").save(tmp_path / "m", 1, save_optimizer_states=True)
    found = resume.optimizer_states(checkpoint.load(tmp_path / "m", 1))
    assert {number for _, number in found.values()} == {1}
    nets.assert_equal(load_and_fit(tmp_path / "m", optimizer="adam").arg_params, whole.arg_params)
