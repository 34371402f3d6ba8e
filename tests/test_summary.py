"""summary.py: parameters, shapes and operations against sums made by hand and MXNet's own table."""

import contextlib
import io
import re

import nets
import pytest

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.summary import summarize

IMAGES = {"data": (2, 1, 12, 12)}


def by_name(summary):
    return {layer.name: layer for layer in summary.layers}


def test_operations_are_those_counted_by_hand():
    layers = by_name(summarize(nets.lenet(), IMAGES))
    # Two samples; a value is the sum of so many products, and a bias.
    assert layers["conv1"].operations == 2 * (4 * 10 * 10) * (2 * 1 * 3 * 3 + 1)
    assert layers["conv2"].operations == 2 * (8 * 3 * 3) * (2 * 4 * 3 * 3 + 1)
    assert layers["fc1"].operations == 2 * 16 * (2 * 8 + 1)
    assert layers["fc2"].operations == 2 * 4 * (2 * 16 + 1)
    assert summarize(nets.lenet(), IMAGES).operations == 7600 + 5256 + 272 + 132


def test_operations_of_groups_strides_and_deconvolutions():
    net = mx.sym.Convolution(
        mx.sym.var("data"), kernel=(3, 5), stride=(2, 1), num_filter=6, num_group=3, name="conv"
    )
    net = mx.sym.Deconvolution(net, kernel=(2, 2), num_filter=4, no_bias=True, name="up")
    layers = by_name(summarize(net, {"data": (1, 3, 9, 9)}))
    assert layers["conv"].shape == (1, 6, 4, 5)
    assert layers["conv"].operations == (6 * 4 * 5) * (2 * 1 * 3 * 5 + 1)
    # Each value that comes in is multiplied with each of the kernels that read it.
    assert layers["up"].shape == (1, 4, 5, 6)
    assert layers["up"].operations == (6 * 4 * 5) * (2 * 4 * 2 * 2)


@pytest.mark.parametrize("net", [nets.lenet(), nets.conv_bn()], ids=["lenet", "conv_bn"])
def test_parameters_are_those_of_the_arrays(net):
    summary = summarize(net, IMAGES)
    args, aux = nets.params(net, **IMAGES)
    assert summary.parameters == sum(array.size for array in args.values())
    assert summary.auxiliary == sum(array.size for array in aux.values())
    counted = sum(layer.parameters for layer in summary.layers)
    assert counted == summary.parameters + summary.auxiliary


def test_parameters_are_those_of_mxnets_own_table():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        mx.viz.print_summary(nets.lenet(), shape=IMAGES)
    total = int(re.search(r"Total params: (\d+)", printed.getvalue())[1])
    assert summarize(nets.lenet(), IMAGES).parameters == total


def test_a_shared_parameter_counts_once():
    weight, data = mx.sym.var("w_weight"), mx.sym.var("data")
    net = mx.sym.FullyConnected(data, weight, num_hidden=5, no_bias=True, name="a")
    net = mx.sym.FullyConnected(net, weight, num_hidden=5, no_bias=True, name="b")
    summary = summarize(net, {"data": (3, 5)})
    assert summary.parameters == 25
    assert [layer.operations for layer in summary.layers] == [2 * 3 * 5 * 5] * 2


def test_without_shapes_the_parameters_that_are_given_count():
    args, aux = nets.params(nets.conv_bn(), **IMAGES)
    summary = summarize(nets.conv_bn(), params={**args, **aux})
    assert summary.parameters == sum(array.size for array in args.values())
    assert summary.operations is None
    assert summary.layers[0].shape is None


def test_the_text_lines_up_and_ends_in_the_sums():
    lines = str(summarize(nets.lenet(), IMAGES)).splitlines()
    assert lines[0].split()[:3] == ["layer", "operator", "output"]
    assert set(lines[1]) == {"-"}
    assert lines[2].split() == [
        "conv1",
        "Convolution",
        "2",
        "x",
        "4",
        "x",
        "10",
        "x",
        "10",
        "40",
        "7,600",
    ]
    assert lines[-1].startswith("548 parameters, 13,260 operations a sample")


def test_a_name_that_the_network_lacks_is_one_line():
    with pytest.raises(DataError) as caught:
        summarize(nets.mlp(), {"images": (2, 10)})
    assert "no images" in nets.one_line(caught)


def test_a_shape_that_does_not_fit_is_one_line():
    with pytest.raises(DataError) as caught:
        summarize(nets.lenet(), {"data": (2, 10)})
    nets.one_line(caught)
