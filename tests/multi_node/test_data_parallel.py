"""Data sets, iterators, optimizer, evaluator and BatchNorm of several ranks."""

import numpy as np
import pytest
from ranks import Checks, check_names, needs_mpi

from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentTypeError
from mxloop.multi_node import create_communicator, create_empty_dataset, scatter_dataset

ON = {2: Checks("data_parallel", 2), 3: Checks("data_parallel", 3)}


@needs_mpi
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", check_names("data_parallel"))
def test_ranks_together_do_what_one_process_does(name, size):
    ON[size].outcome(name)


@pytest.mark.parametrize(
    "dataset",
    [
        list("abcde"),
        np.zeros((5, 3)),
        mx.nd.zeros((5, 3)),
        (np.zeros((5, 3)), np.zeros(5)),
        {"x": np.zeros((5, 3))},
        mx.gluon.data.ArrayDataset(np.zeros((5, 3)), np.zeros(5)),
        mx.gluon.data.SimpleDataset(list("abcde")),
        mx.io.NDArrayIter(np.zeros((5, 3)), batch_size=2),
        ArrayIter(np.zeros((5, 3)), batch_size=2),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_an_empty_data_set_has_as_many_empty_tuples(dataset):
    empty = create_empty_dataset(dataset)
    assert len(empty) == 5
    assert list(empty) == [()] * 5 and empty[1:3] == [(), ()] and empty[-1] == ()
    assert len(list(mx.gluon.data.DataLoader(empty, batch_size=2))) == 3


def test_an_empty_data_set_of_nothing_is_empty():
    assert list(create_empty_dataset([])) == []


def test_what_is_no_data_set_is_one_line():
    for wrong in (None, 3, iter([])):
        with pytest.raises(ArgumentTypeError, match="pass an array"):
            create_empty_dataset(wrong)


def test_one_process_gets_all_of_a_data_set():
    comm = create_communicator()
    np.testing.assert_array_equal(scatter_dataset(np.arange(5), comm), np.arange(5))
