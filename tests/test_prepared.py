"""prepared.py: an operator made ready once gives what `mx.nd` gives."""

import numpy as np
import pytest

from mxloop.compat import mx
from mxloop.prepared import Prepared


def some(size=1000, seed=0):
    return mx.nd.array(np.random.RandomState(seed).randn(size))


def test_many_runs_give_the_bits_of_the_operator():
    weight, grad, momentum = some(), some(seed=1), mx.nd.zeros((1000,))
    other, other_momentum = weight.copy(), momentum.copy()
    settings = {"lr": 0.1, "momentum": 0.9, "wd": 1e-4, "rescale_grad": 1 / 7}
    operator = Prepared("sgd_mom_update", [weight, grad, momentum], [weight], **settings)
    for step in range(20):
        settings["lr"] = 0.1 / (step // 5 + 1)
        operator.set(settings)
        operator()
        mx.nd.sgd_mom_update(other, grad, other_momentum, out=other, **settings)
    assert (weight.asnumpy() == other.asnumpy()).all()
    assert (momentum.asnumpy() == other_momentum.asnumpy()).all()


@pytest.mark.parametrize("place", [0, 1])
def test_an_input_may_be_another_one(place):
    arrays, out = [some(), some(seed=1)], mx.nd.zeros((1000,))
    operator = Prepared("elemwise_sub", arrays, [out])
    for seed in (5, 6):
        arrays[place] = some(seed=seed)
        operator.on(arrays[place], place)
        assert (out.asnumpy() == arrays[0].asnumpy() - arrays[1].asnumpy()).all()


def test_it_copies_to_another_device():
    array, out = some(), mx.nd.zeros((1000,), mx.cpu(1))
    Prepared("_copyto", [array], [out])()
    assert (out.asnumpy() == array.asnumpy()).all()


def test_it_keeps_its_arrays_alive():
    out = mx.nd.zeros((1000,))
    operator = Prepared("_copyto", [some()], [out])
    for _ in range(50):
        some(seed=3)  # which would take the place of a freed array
    operator()
    assert (out.asnumpy() == some().asnumpy()).all()


def test_arrays_that_do_not_fit_are_an_error():
    operator = Prepared("elemwise_add", [some(), some(10)], [some()])
    with pytest.raises(mx.base.MXNetError):
        operator()
