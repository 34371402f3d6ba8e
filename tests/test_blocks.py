"""blocks.py: where parameters lie."""

import nets
import numpy as np
import pytest
from nets import CPUS

from mxloop import DataParallelExecutorManager
from mxloop.blocks import ROW, is_dense, layouts, runs
from mxloop.compat import mx


def laid_out(net, dtypes=None, **shapes):
    found = dict(zip(net.list_arguments(), net.infer_shape(**shapes)[0]))
    params = {n: s for n, s in found.items() if n not in shapes and not n.endswith("label")}
    return layouts(net, params, {n: (dtypes or {}).get(n, np.float32) for n in params}), params


def test_no_row_belongs_to_two_parameters():
    (layout,), shapes = laid_out(nets.mlp((16, 8)), data=(4, 10))
    assert sorted(layout.names) == sorted(shapes)
    array = mx.nd.zeros((layout.size,))
    views = layout.views(array)
    for number, name in enumerate(layout.names, start=1):
        assert views[name].shape == shapes[name]
        views[name][:] = number
    values = array.asnumpy()
    for row in values.reshape(-1, ROW):
        assert len({*row} - {0}) == 1
    sizes = [int(np.prod(shapes[name])) for name in layout.names]
    assert [(values == i).sum() for i in range(1, len(sizes) + 1)] == sizes


def test_names_that_end_alike_lie_together():
    (layout,), _ = laid_out(nets.mlp((16, 8)), data=(4, 10))
    assert runs([name[-4:] for name in layout.names]) == [(0, 3), (3, 6)]


def test_there_is_a_layout_a_dtype():
    found, _ = laid_out(nets.mlp(), {"out_bias": np.float64}, data=(4, 10))
    assert [layout.dtype for layout in found] == [np.float32, np.float64]
    assert found[1].names == ["out_bias"]


def test_what_a_convolution_reads_lies_alone():
    (layout,), _ = laid_out(nets.conv_bn(), data=(4, 3, 12, 12))
    assert not [name for name in layout.names if name.startswith("conv")]


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_gradients_are_not_dense(sparse):
    net = mx.sym.Embedding(mx.sym.var("data"), input_dim=6, output_dim=3, sparse_grad=sparse)
    assert is_dense(net) is not sparse


@pytest.mark.parametrize("net", [nets.mlp((16, 8)), nets.lenet()], ids=["mlp", "lenet"])
def test_blocks_and_the_parameters_of_a_manager_are_the_same_memory(net):
    shape = (1, 12, 12)
    manager = DataParallelExecutorManager(net, CPUS[:2], nets.described(4, shape))
    blocks = manager.blocks
    assert sorted(n for b in blocks for n in b.names) == sorted(manager.param_names)
    assert len({block.key for block in blocks}) == len(blocks)
    for number, block in enumerate(blocks):
        for device in range(2):
            block.weights[device][:] = 10 * number + device
            block.grads[device][:] = -10 * number - device
    at = {name: number for number, block in enumerate(blocks) for name in block.names}
    for name, *arrays in zip(manager.param_names, manager.param_arrays, manager.grad_arrays):
        for sign, on_devices in zip((1, -1), arrays):
            for device, array in enumerate(on_devices):
                assert (array.asnumpy() == sign * (10 * at[name] + device)).all()


def test_runs_end_where_neighbours_differ():
    assert runs("aabccc") == [(0, 2), (2, 3), (3, 6)]
    assert runs("a") == [(0, 1)]
