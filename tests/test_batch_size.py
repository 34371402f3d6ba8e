"""find_batch_size with a memory and a clock that are made up."""

import nets
import pytest

from mxloop import FeedForward
from mxloop.batch_size import find_batch_size
from mxloop.errors import ArgumentError, DataError, EngineError, StateError

OUT_OF_MEMORY = "a step failed inside MXNet: Check failed: CUDNN: out of memory"


@pytest.fixture
def model():
    return FeedForward(nets.mlp(), num_epoch=3, learning_rate=0.1)


def pretend(monkeypatch, speeds, error=None):
    """Let trainings have these speeds by batch size, and fail with others."""
    seen = []

    def fit(self, X, y=None, logger=None):
        seen.append((self.numpy_batch_size, len(X), len(y), self.num_epoch * self.epoch_size))
        if self.numpy_batch_size not in speeds:
            raise error
        self.history = [{}, {"samples_per_second": speeds[self.numpy_batch_size]}]

    monkeypatch.setattr(FeedForward, "fit", fit)
    return seen


def test_the_fastest_that_fits_is_found(monkeypatch, model):
    speeds = {8: 100.0, 16: 300.0, 32: 250.0}
    seen = pretend(monkeypatch, speeds, EngineError(OUT_OF_MEMORY))
    found = find_batch_size(model, *nets.samples(20))
    assert found == (16, 32, [(8, 100.0), (16, 300.0), (32, 250.0)])
    assert seen == [(size, 5 * size, 5 * size, 10) for size in (8, 16, 32, 64)]


def test_a_largest_size_is_not_exceeded(monkeypatch, model):
    pretend(monkeypatch, {8: 1.0, 16: 2.0})
    assert find_batch_size(model, *nets.samples(20), largest=31).trials == [(8, 1.0), (16, 2.0)]


def test_where_not_even_the_smallest_fits_it_is_one_line(monkeypatch, model):
    pretend(monkeypatch, {}, EngineError(OUT_OF_MEMORY))
    with pytest.raises(StateError) as caught:
        find_batch_size(model, *nets.samples(20))
    assert "batch of 8" in nets.one_line(caught)


def test_another_error_is_no_matter_of_memory(monkeypatch, model):
    pretend(monkeypatch, {8: 1.0}, DataError("labels"))
    with pytest.raises(DataError, match="labels"):
        find_batch_size(model, *nets.samples(20))


def test_a_span_that_is_none_is_one_line(model):
    with pytest.raises(ArgumentError) as caught:
        find_batch_size(model, *nets.samples(20), smallest=64, largest=32)
    nets.one_line(caught)


def test_real_trainings_are_timed_and_the_model_is_left_alone(model, capsys):
    found = find_batch_size(model, *nets.samples(20), largest=16, steps=2)
    assert [size for size, _ in found.trials] == [8, 16]
    assert all(speed > 0 for _, speed in found.trials)
    assert model.arg_params is None
    assert model.history == []
    output = capsys.readouterr().out
    assert "Batch size 16:" in output
    assert "Epoch[" not in output
