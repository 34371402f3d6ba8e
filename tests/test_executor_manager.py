"""executor_manager.py: slices, and several devices that compute what one does."""

import itertools
import math
import random

import nets
import numpy as np
import pytest
from nets import CPUS, Described, assert_close, assert_equal, described, one_line

from mxloop import DataParallelExecutorManager, model
from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, StateError
from mxloop.executor_manager import split_input_slice

IMAGE = (1, 8, 8)


def manager_of(symbol, devices=1, rows=16, shape=(10,), **keywords):
    """A manager with the parameters that `nets.params` makes."""
    manager = DataParallelExecutorManager(
        symbol, CPUS[:devices], described(rows, shape), **keywords
    )
    manager.set_params(*nets.params(symbol, data=(rows, *shape)))
    return manager


def learned(manager):
    """Parameters and auxiliary states, copied."""
    args, aux = {}, {}
    manager.copy_to(args, aux)
    return nets.numpy_of({**args, **aux})


def run(manager, batch, is_train=False):
    manager.load_data_batch(batch)
    manager.forward(is_train=is_train)
    return [output.asnumpy() for output in manager.get_outputs()]


def gradients(manager, batch):
    """Each parameter's gradient for a batch, added up over the devices."""
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    manager.backward()
    return {
        name: sum(grad.asnumpy() for grad in grads)
        for name, grads in zip(manager.param_names, manager.grad_arrays)
    }


class Steps:
    """SGD by hand: one momentum state a parameter and device."""

    def __init__(self, manager):
        self.manager = manager
        self.updater = mx.optimizer.get_updater(
            mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, rescale_grad=1 / 16)
        )

    def __call__(self, batch):
        self.manager.load_data_batch(batch)
        self.manager.forward(is_train=True)
        self.manager.backward()
        model.update_params(
            self.manager.param_arrays,
            self.manager.grad_arrays,
            self.updater,
            len(self.manager.ctx),
        )


# --- Slices (point 2) ----------------------------------------------------------------------------


def check_slices(rows, loads):
    slices = split_input_slice(rows, loads)
    assert len(slices) == len(loads)
    assert [row for part in slices for row in range(rows)[part]] == list(range(rows))
    assert all(part.step is None and 0 <= part.start <= part.stop <= rows for part in slices)
    sizes = [part.stop - part.start for part in slices]
    for size, load in zip(sizes, loads):
        share = rows * load / math.fsum(loads)
        assert abs(size - share) < 1 + 1e-9, (rows, loads, sizes)
        assert size == 0 or load > 0
    for (size, load), (other, same) in itertools.combinations(zip(sizes, loads), 2):
        assert load != same or abs(size - other) <= 1


@pytest.mark.parametrize("devices", range(1, 10))
def test_equal_loads_split_every_batch_up_to_64_rows_within_one_row(devices):
    for rows in range(1, 65):
        check_slices(rows, [1] * devices)


@pytest.mark.parametrize("devices", range(1, 10))
def test_random_loads_split_within_one_row_of_their_share(devices):
    draw = random.Random(devices)
    for rows in range(1, 65):
        check_slices(
            rows, [draw.choice([0.1, 1, 1, 2.5, draw.uniform(0, 10)]) for _ in range(devices)]
        )
        check_slices(rows, [10 ** draw.uniform(-30, 30) for _ in range(devices)])
        check_slices(rows, [*(draw.randint(0, 3) for _ in range(devices - 1)), 1])


def test_loads_of_three_to_one_give_12_and_4_rows_of_16():
    assert split_input_slice(16, [3, 1]) == [slice(0, 12), slice(12, 16)]


def test_fewer_rows_than_devices_leave_some_without():
    assert split_input_slice(2, [1, 1, 1]) == [slice(0, 1), slice(1, 2), slice(2, 2)]


@pytest.mark.parametrize("loads", [[1e308, 1e308, 1e308], [5e-324, 5e-324], np.array([1, 2])])
def test_extreme_loads_and_arrays_of_loads_work(loads):
    assert sum(part.stop - part.start for part in split_input_slice(7, loads)) == 7


@pytest.mark.parametrize(
    "loads",
    [[1, -1], [1, float("nan")], [1, float("inf")], [0, 0], [], ["1", "2"], [None], "11", 3],
)
def test_loads_that_make_no_sense_are_one_line(loads):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        split_input_slice(4, loads)
    assert "work_load_list" in one_line(caught)


@pytest.mark.parametrize("rows", [0, -1, 1.5, "4", None, True])
def test_a_batch_without_rows_is_one_line(rows):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        split_input_slice(rows, [1, 1])
    assert "batch_size" in one_line(caught)


def test_one_load_a_device_or_one_line():
    with pytest.raises(ArgumentError) as caught:
        manager_of(nets.mlp(), 2, work_load_list=[1, 1, 1])
    assert "3 entries for 2 devices" in one_line(caught)


def test_loads_apply_to_every_batch():
    manager = manager_of(nets.mlp(), 2, work_load_list=[3, 1])
    x, y = nets.samples(16)
    assert manager.slices == [slice(0, 12), slice(12, 16)]
    run(manager, nets.batch(x[:4], y[:4]))
    assert manager.slices == [slice(0, 3), slice(3, 4)]


# --- Evaluation beside training (point 9) --------------------------------------------------------


def train_and_evaluate(devices, held_out, steps=12, **keywords):
    """Train; after each step evaluate the held-out batches without waiting for anything."""
    manager = manager_of(nets.conv_bn(), devices, shape=IMAGE, **keywords)
    step, seen = Steps(manager), []
    x, y = nets.samples(16 * steps, IMAGE)
    for batch in nets.batches(x, y, 16):
        step(batch)
        for held in held_out:
            manager.load_data_batch(held)
            manager.forward()
            outputs, args, aux = manager.get_outputs()[0], {}, {}
            manager.copy_to(args, aux)
            seen.append((outputs, held, args, aux))
    return manager, seen


def own_states(manager):
    """Auxiliary states of each device as training goes on with them."""
    manager.load_data_batch(nets.batch(*nets.samples(16, IMAGE)))
    manager.forward(is_train=True)
    return {
        f"{name} {i}": array.asnumpy()
        for name, arrays in zip(manager.aux_names, manager.aux_arrays)
        for i, array in enumerate(arrays)
    }


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("rows", [(16,), (7,), (16, 5, 33)])
def test_evaluating_after_every_step_changes_no_bit_of_training(devices, rows):
    held = [nets.batch(*nets.samples(n, IMAGE, seed=n)) for n in rows]
    plain, _ = train_and_evaluate(devices, [])
    watched, seen = train_and_evaluate(devices, held)
    assert_equal(learned(watched), learned(plain))
    assert_equal(own_states(watched), own_states(plain))
    for outputs, batch, args, aux in seen:
        inputs = {"data": batch.data[0].asnumpy(), "softmax_label": batch.label[0].asnumpy()}
        (wanted,) = nets.fresh_outputs(nets.conv_bn(), args, aux, inputs)
        np.testing.assert_allclose(outputs.asnumpy(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_manager_without_gradients_sees_new_weights(devices):
    x, y = nets.samples(16, IMAGE)
    manager = manager_of(nets.conv_bn(), devices, shape=IMAGE, grad_req="null")
    assert {grad for grads in manager.grad_arrays for grad in grads} == {None}
    for seed in range(3):
        args, aux = nets.params(nets.conv_bn(), seed, data=(16, *IMAGE))
        manager.set_params(args, aux)
        for rows in (16, 5):
            inputs = {"data": x[:rows], "softmax_label": y[:rows]}
            (wanted,) = nets.fresh_outputs(nets.conv_bn(), args, aux, inputs)
            (found,) = run(manager, nets.batch(x[:rows], y[:rows]))
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_backward_after_an_evaluation_is_one_line():
    manager = manager_of(nets.mlp())
    run(manager, nets.batch(*nets.samples(16)))
    with pytest.raises(StateError) as caught:
        manager.backward()
    assert "is_train=True" in one_line(caught)


def test_outputs_taken_before_the_next_batch_stay():
    manager = manager_of(nets.mlp(), 2)
    x, y = nets.samples(32)
    manager.load_data_batch(nets.batch(x[:16], y[:16]))
    manager.forward()
    first = manager.get_outputs()[0]
    run(manager, nets.batch(x[16:], y[16:]))
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    np.testing.assert_allclose(first.asnumpy(), nets.mlp_outputs(args, x[:16]), rtol=0, atol=1e-6)


# --- Batches of any size -------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("loads", [None, [1, 4, 2, 3]])
def test_batches_of_any_size_in_any_order_equal_numpy(devices, loads):
    loads = loads and loads[:devices]
    manager = manager_of(nets.mlp(), devices, work_load_list=loads)
    one = manager_of(nets.mlp())
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    for rows in [16, 3, 16, 1, 2, 33, 7, 16, 33, 1]:
        x, y = nets.samples(rows, seed=rows)
        batch = nets.batch(x, y)
        found = gradients(manager, batch)
        outputs = manager.get_outputs()[0].asnumpy()
        np.testing.assert_allclose(outputs, nets.mlp_outputs(args, x), rtol=0, atol=1e-6)
        assert manager.num_samples == rows
        wanted = gradients(one, batch)
        assert_close(found, wanted, atol=2e-5)
        wrong = nets.mlp_outputs(args, x) - np.eye(4)[y.astype(int)]
        np.testing.assert_allclose(found["out_bias"], wrong.sum(axis=0), rtol=0, atol=2e-5)


def test_a_device_without_rows_has_no_gradient_left_over():
    manager = manager_of(nets.mlp(), 3)
    x, y = nets.samples(16)
    gradients(manager, nets.batch(x, y))
    gradients(manager, nets.batch(x[:2], y[:2]))
    assert all((grads[2].asnumpy() == 0).all() for grads in manager.grad_arrays)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("pad", [0, 1, 6, 11, 15])
def test_padding_is_never_computed(devices, pad):
    manager = manager_of(nets.mlp(), devices)
    x, y = nets.samples(16)
    x[16 - pad :] = np.nan
    found = gradients(manager, nets.batch(x, y, pad=pad))
    assert manager.get_outputs()[0].shape == (16 - pad, 4)
    real = nets.batch(x[: 16 - pad], y[: 16 - pad])
    assert_close(found, gradients(manager_of(nets.mlp()), real), atol=1e-5)


def test_executors_of_one_size_are_bound_once_and_share_their_arrays():
    manager = manager_of(nets.mlp(), 2)
    x, y = nets.samples(16)
    for rows in (16, 5, 16, 5):
        run(manager, nets.batch(x[:rows], y[:rows]), is_train=True)
    groups = [bound.group for bound in manager._bound.values()]
    assert len(groups) == 2
    for name in manager.param_names:
        for device in range(2):
            first, second = (group.execs[device].arg_dict[name] for group in groups)
            first[:] = 7
            assert (second.asnumpy() == 7).all()


def test_forward_predicts_unless_told_to_train():
    net = mx.sym.Dropout(mx.sym.var("data"), p=0.5)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=4, name="out"), name="softmax")
    manager = manager_of(net, 2)
    x, y = nets.samples(16)
    manager.load_data_batch(nets.batch(x, y))
    manager.forward()
    args, _ = nets.params(net, data=(16, 10))
    found = manager.get_outputs()[0].asnumpy()
    np.testing.assert_allclose(found, nets.mlp_outputs(args, x, layers=()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pad", [16, 17, -1, 400])
def test_a_pad_that_leaves_no_row_is_one_line(pad):
    with pytest.raises(DataError) as caught:
        manager_of(nets.mlp()).load_data_batch(nets.batch(*nets.samples(16), pad=pad))
    assert f"pad={pad}" in one_line(caught)


def test_a_batch_without_labels_is_one_line():
    with pytest.raises(DataError) as caught:
        manager_of(nets.mlp()).load_data_batch(nets.batch(nets.samples(16)[0]))
    assert "softmax_label" in one_line(caught)


@pytest.mark.parametrize("data", [[], None])
def test_a_batch_without_inputs_is_one_line(data):
    batch = mx.io.DataBatch([], [mx.nd.zeros((16,))])
    batch.data = data
    with pytest.raises(DataError) as caught:
        manager_of(nets.mlp()).load_data_batch(batch)
    assert "promised data" in one_line(caught)


def test_a_batch_of_another_shape_is_one_line():
    manager = manager_of(nets.mlp())
    with pytest.raises(DataError) as caught:
        manager.load_data_batch(nets.batch(np.zeros((16, 9), "float32"), np.zeros(16, "float32")))
    one_line(caught)


def test_labels_of_another_length_are_one_line():
    manager = manager_of(nets.mlp(), 2)
    with pytest.raises(DataError) as caught:
        manager.load_data_batch(nets.batch(np.zeros((16, 10), "float32"), np.zeros(15, "float32")))
    one_line(caught)


def test_training_without_the_labels_that_the_network_wants_is_one_line():
    data = Described([("data", (16, 10))])
    manager = DataParallelExecutorManager(nets.mlp(), CPUS[:2], data)
    with pytest.raises(DataError) as caught:
        manager.load_data_batch(nets.batch(nets.samples(16)[0]))
        manager.forward(is_train=True)
    assert "softmax_label" in one_line(caught)


def test_data_that_no_input_takes_is_one_line():
    with pytest.raises(DataError) as caught:
        DataParallelExecutorManager(nets.mlp(), CPUS[:1], Described([("image", (16, 10))]))
    assert "'image'" in one_line(caught)


@pytest.mark.parametrize("rows", [15, 3, 17])
def test_inputs_of_unequal_length_are_one_line(rows):
    net = mx.sym.Group([mx.sym.var("a") * 2, mx.sym.var("b") * 2])
    manager = DataParallelExecutorManager(net, CPUS[:2], Described([("a", (16,)), ("b", (16,))]))
    with pytest.raises(DataError) as caught:
        manager.load_data_batch(mx.io.DataBatch([mx.nd.ones((16,)), mx.nd.ones((rows,))]))
    assert f"{rows}" in one_line(caught)


def test_a_batch_that_names_its_inputs_otherwise_is_one_line():
    x, y = nets.samples(16)
    for names in ({"provide_data": [("image", (16, 10))]}, {"provide_label": [("y", (16,))]}):
        with pytest.raises(DataError) as caught:
            manager_of(nets.mlp()).load_data_batch(nets.batch(x, y, **names))
        assert "promised" in one_line(caught)


@pytest.mark.parametrize("pad", ["3", 1.5])
def test_a_pad_that_is_no_whole_number_is_one_line(pad):
    with pytest.raises(DataError) as caught:
        manager_of(nets.mlp()).load_data_batch(nets.batch(*nets.samples(16), pad=pad))
    assert "pad=" in one_line(caught)


def test_what_is_no_batch_is_one_line():
    x, y = nets.samples(16)
    for value in (x, mx.nd.array(x), None, mx.io.DataBatch([x], [y])):
        with pytest.raises(DataError) as caught:
            manager_of(nets.mlp()).load_data_batch(value)
        one_line(caught)


def test_sparse_inputs_are_made_dense():
    manager = manager_of(nets.mlp(), 2)
    x, y = nets.samples(16)
    sparse = mx.io.DataBatch([mx.nd.array(x).tostype("csr")], [mx.nd.array(y)], pad=3)
    (found,) = run(manager, sparse)
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    np.testing.assert_allclose(found, nets.mlp_outputs(args, x[:13]), rtol=0, atol=1e-6)


# --- Parameters ----------------------------------------------------------------------------------


def test_copy_to_gives_back_what_set_params_took():
    manager = manager_of(nets.conv_bn(), 3, shape=IMAGE)
    args, aux = nets.params(nets.conv_bn(), data=(16, *IMAGE))
    assert_equal(learned(manager), nets.numpy_of({**args, **aux}))


def test_copy_to_writes_into_the_arrays_that_are_there():
    manager = manager_of(nets.mlp(), 2)
    args, aux = nets.params(nets.mlp(), seed=7, data=(16, 10))
    kept = dict(args)
    manager.copy_to(args, aux)
    assert all(args[name] is kept[name] for name in kept)
    assert_equal(args, nets.params(nets.mlp(), data=(16, 10))[0])


def test_a_missing_parameter_is_named():
    manager = manager_of(nets.mlp())
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    weight = args.pop("fc1_weight")
    with pytest.raises(DataError) as caught:
        manager.set_params(args, {})
    assert "fc1_weight" in one_line(caught)
    args["out_bias"][:] = 5
    manager.set_params(args, {}, allow_missing=True)
    assert_equal(learned(manager), nets.numpy_of({**args, "fc1_weight": weight}))


def test_a_missing_auxiliary_state_is_named():
    manager = manager_of(nets.conv_bn(), shape=IMAGE)
    args, aux = nets.params(nets.conv_bn(), data=(16, *IMAGE))
    aux.pop("bn2_moving_var")
    with pytest.raises(DataError) as caught:
        manager.set_params(args, aux)
    assert "bn2_moving_var" in one_line(caught)


def test_an_unknown_parameter_is_named():
    manager = manager_of(nets.mlp())
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    args["fc9_weight"] = mx.nd.zeros((2, 2))
    with pytest.raises(DataError) as caught:
        manager.set_params(args, {})
    assert "fc9_weight" in one_line(caught)
    manager.set_params(args, {}, allow_extra_params=True)


def test_a_parameter_that_would_be_broadcast_is_refused():
    manager = manager_of(nets.mlp())
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    args["fc1_weight"] = mx.nd.zeros((1, 10))
    with pytest.raises(DataError) as caught:
        manager.set_params(args, {})
    assert "(1, 10)" in one_line(caught) and "(16, 10)" in one_line(caught)


def test_parameters_may_be_numpy_arrays():
    manager = manager_of(nets.mlp(), 2)
    args = nets.numpy_of(nets.params(nets.mlp(), seed=8, data=(16, 10))[0])
    manager.set_params(args, {})
    assert_equal(learned(manager), args)


def test_only_the_named_parameters_are_the_managers():
    manager = DataParallelExecutorManager(
        nets.mlp(), CPUS[:2], described(16), param_names=["out_weight"]
    )
    assert list(gradients(manager, nets.batch(*nets.samples(16)))) == ["out_weight"]
    assert list(learned(manager)) == ["out_weight"]


def test_an_unknown_parameter_name_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        manager_of(nets.mlp(), param_names=["out_wieght"])
    assert "out_weight" in one_line(caught)


def batch_norm_statistics(x, rows, momentum=0.9):
    """Running mean and variance of `bn_net` after one step over `x`, for one device's rows."""
    own = x[rows].astype("float64")
    return (1 - momentum) * own.mean(axis=0), momentum + (1 - momentum) * own.var(axis=0)


def bn_net():
    net = mx.sym.BatchNorm(mx.sym.var("data"), fix_gamma=False, name="bn")
    return mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(net, num_hidden=4, name="out"), name="softmax"
    )


@pytest.mark.parametrize("loads, trained", [([1, 1, 1], 3), ([1, 1, 0], 2), ([1, 0, 0], 1)])
def test_copy_to_averages_statistics_over_the_devices_that_trained(loads, trained):
    manager = manager_of(bn_net(), 3, rows=12, work_load_list=loads)
    x, y = nets.samples(12)
    gradients(manager, nets.batch(x, y))
    own = [batch_norm_statistics(x, part) for part in manager.slices[:trained]]
    wanted = {
        "bn_moving_mean": np.mean([mean for mean, _ in own], axis=0),
        "bn_moving_var": np.mean([var for _, var in own], axis=0),
    }
    found = learned(manager)
    assert_close({name: found[name] for name in wanted}, wanted)


def test_evaluation_reads_the_averaged_statistics():
    manager = manager_of(bn_net(), 2)
    x, y = nets.samples(16)
    gradients(manager, nets.batch(x, y))
    state = learned(manager)
    (found,) = run(manager, nets.batch(x, y))
    normal = (x - state["bn_moving_mean"]) / np.sqrt(state["bn_moving_var"] + 1e-3)
    normal = normal * state["bn_gamma"] + state["bn_beta"]
    args = {name: mx.nd.array(value) for name, value in state.items()}
    wanted = nets.mlp_outputs(args, normal, layers=())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


# --- Gradients on request ------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_added_gradients_of_four_small_batches_equal_those_of_a_large_one(devices):
    x, y = nets.samples(16)
    manager = manager_of(nets.mlp(), devices, rows=4, grad_req="add")
    for batch in nets.batches(x, y, 4):
        found = gradients(manager, batch)
    wanted = gradients(manager_of(nets.mlp()), nets.batch(x, y))
    assert_close(found, wanted, atol=1e-5)


def test_added_gradients_hold_over_short_batches():
    x, y = nets.samples(16)
    manager = manager_of(nets.mlp(), 2, rows=6, grad_req="add")
    for batch in nets.batches(x, y, 6):
        found = gradients(manager, batch)
    wanted = gradients(manager_of(nets.mlp()), nets.batch(x, y))
    assert_close(found, wanted, atol=1e-5)


NAMES = ["fc1_weight", "fc1_bias", "out_weight", "out_bias"]


@pytest.mark.parametrize(
    "grad_req",
    [
        ["add", "null", "write", "null"],
        {"fc1_weight": "add", "fc1_bias": "null", "out_bias": "null"},
    ],
)
def test_each_parameter_may_have_its_own_grad_req(grad_req):
    manager = manager_of(nets.mlp(), 2, grad_req=grad_req)
    assert manager.param_names == NAMES
    batch = nets.batch(*nets.samples(16))
    manager.load_data_batch(batch)
    for _ in range(2):
        manager.forward(is_train=True)
        manager.backward()
    wanted = gradients(manager_of(nets.mlp()), batch)
    added, none, written, frozen = manager.grad_arrays
    assert none == frozen == [None, None]
    found = {
        "fc1_weight": sum(grad.asnumpy() for grad in added) / 2,
        "out_weight": sum(grad.asnumpy() for grad in written),
    }
    assert_close(found, {name: wanted[name] for name in found}, atol=1e-5)


@pytest.mark.parametrize(
    "grad_req", ["wirte", ["write"], {"fc9_weight": "write"}, {"fc1_weight": "no"}, 5, None]
)
def test_a_grad_req_that_cannot_be_is_one_line(grad_req):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        manager_of(nets.mlp(), grad_req=grad_req)
    one_line(caught)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_fixed_parameters_stay_to_the_bit_and_the_others_learn(devices, grad_req):
    fixed = ["conv1_weight", "bn1_gamma", "fc_bias"]
    manager = manager_of(
        nets.conv_bn(), devices, shape=IMAGE, fixed_param_names=fixed, grad_req=grad_req
    )
    step = Steps(manager)
    for batch in nets.batches(*nets.samples(64, IMAGE), 16):
        step(batch)
    found, start = learned(manager), nets.params(nets.conv_bn(), data=(16, *IMAGE))[0]
    for name in [*fixed, "conv2_weight", "bn1_beta", "fc_weight"]:
        same = np.array_equal(found[name], start[name].asnumpy())
        assert same == (name in fixed), name


def test_an_unknown_fixed_parameter_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        manager_of(nets.mlp(), fixed_param_names=["fc1_wieght"])
    assert "fc1_weight" in one_line(caught)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("rows", [16, 5, 2])
def test_input_gradients_equal_numpy_in_sample_order(devices, rows):
    net = nets.mlp(widths=())
    manager = manager_of(net, devices, inputs_need_grad=True)
    x, y = nets.samples(rows)
    gradients(manager, nets.batch(x, y))
    args, _ = nets.params(net, data=(16, 10))
    wrong = nets.mlp_outputs(args, x, layers=()) - np.eye(4)[y.astype(int)]
    (found,) = manager.get_input_grads()
    wanted = wrong @ args["out_weight"].asnumpy()
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=0, atol=1e-6)


def test_input_gradients_that_nobody_asked_for_are_one_line():
    with pytest.raises(StateError) as caught:
        manager_of(nets.mlp()).get_input_grads()
    assert "inputs_need_grad=True" in one_line(caught)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_gradients_of_the_outputs_may_come_from_outside(devices):
    net = nets.mlp(widths=(), head=False)
    manager = DataParallelExecutorManager(net, CPUS[:devices], Described([("data", (7, 10))]))
    manager.set_params(*nets.params(net, data=(7, 10)))
    x, heads = nets.samples(7)[0], np.random.RandomState(0).normal(size=(7, 4)).astype("float32")
    manager.load_data_batch(nets.batch(x))
    manager.forward(is_train=True)
    manager.backward([mx.nd.array(heads)])
    found = sum(grad.asnumpy() for grad in manager.grad_arrays[0])
    np.testing.assert_allclose(found, heads.T @ x, rtol=0, atol=1e-5)


# --- Inputs of all kinds -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, rtol", [("float16", 4e-3), ("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("devices", [1, 2])
def test_the_network_computes_in_the_dtype_that_the_data_announce(dtype, rtol, devices):
    weight = mx.sym.var("weight", shape=(1, 10))
    net = mx.sym.MakeLoss(mx.sym.broadcast_mul(mx.sym.var("data"), weight) ** 2)
    data = Described([mx.io.DataDesc("data", (12, 10), dtype)])
    manager = DataParallelExecutorManager(net, CPUS[:devices], data)
    w = np.linspace(0.5, 1, 10).reshape((1, 10)).astype(dtype)
    manager.set_params({"weight": mx.nd.array(w, dtype=dtype)}, {})
    for rows in (12, 5):
        x = np.abs(nets.samples(rows)[0]).astype(dtype)
        found = gradients(manager, nets.batch(x))["weight"]
        (output,) = manager.get_outputs()
        assert output.dtype == found.dtype == np.dtype(dtype)
        np.testing.assert_allclose(output.asnumpy(), (x * w) ** 2, rtol=rtol)
        exact = x.astype("float64")
        np.testing.assert_allclose(found, 2 * (exact**2 * w).sum(0, keepdims=True), rtol=rtol)


def test_whole_numbers_index_an_embedding():
    net = mx.sym.Embedding(mx.sym.var("data"), input_dim=1 << 25, output_dim=1, name="embed")
    net = mx.sym.LinearRegressionOutput(net, name="lro", label=mx.sym.var("lro_label"))
    data = Described(
        [mx.io.DataDesc("data", (4,), "int32")], [mx.io.DataDesc("lro_label", (4, 1), "float32")]
    )
    manager = DataParallelExecutorManager(net, CPUS[:2], data, grad_req="null")
    table = mx.nd.arange(1 << 25).reshape((-1, 1))
    manager.set_params({"embed_weight": table}, {})
    x = np.array([3, 1 << 24, (1 << 24) + 1, (1 << 25) - 1], "int32")  # float32 holds not all
    (found,) = run(manager, nets.batch(x, np.zeros((4, 1), "float32")))
    np.testing.assert_array_equal(found, table.asnumpy()[x])


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_time_major_input_is_cut_along_its_second_axis(devices):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="out")
    net = mx.sym.identity(net, name="sequence", attr={"__layout__": "TNC"})
    data = Described([mx.io.DataDesc("data", (5, 8, 10), "float32", "TNC")])
    manager = DataParallelExecutorManager(net, CPUS[:devices], data, inputs_need_grad=True)
    manager.set_params(*nets.params(net, data=(5, 8, 10)))
    args, _ = nets.params(net, data=(5, 8, 10))
    weight, bias = args["out_weight"].asnumpy(), args["out_bias"].asnumpy()
    for rows, pad in ((8, 0), (8, 3), (3, 0)):
        x = np.random.RandomState(rows).normal(size=(5, rows, 10)).astype("float32")
        batch = nets.batch(x, pad=pad)
        batch.provide_data = None
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        real = x[:, : rows - pad]
        heads = np.random.RandomState(1).normal(size=(5, rows - pad, 4)).astype("float32")
        manager.backward([mx.nd.array(heads)])
        np.testing.assert_allclose(
            manager.get_outputs()[0].asnumpy(), real @ weight.T + bias, rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(
            manager.get_input_grads()[0].asnumpy(), heads @ weight, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_several_inputs_go_where_their_names_say(devices, order):
    left, right = mx.sym.var("a"), mx.sym.var("b")
    net = mx.sym.Group([left * 2, mx.sym.broadcast_mul(left, mx.sym.sum(right, axis=1))])
    values = {"a": np.arange(7, dtype="float32"), "b": np.random.rand(7, 3).astype("float32")}
    data = Described([(name, values[name].shape) for name in order])
    manager = DataParallelExecutorManager(net, CPUS[:devices], data)
    batch = mx.io.DataBatch([mx.nd.array(values[name]) for name in order])
    for _ in range(2):
        double, product = run(manager, batch)
        np.testing.assert_array_equal(double, values["a"] * 2)
        np.testing.assert_allclose(product, values["a"] * values["b"].sum(axis=1), rtol=1e-6)


def test_a_network_without_labels_trains():
    weight = mx.sym.var("weight", shape=(10,))
    loss = mx.sym.sum((mx.sym.broadcast_sub(mx.sym.var("data"), weight.reshape((1, 10)))) ** 2, 1)
    net = mx.sym.MakeLoss(loss, name="loss")
    x, _ = nets.samples(16)
    for devices in (1, 2, 3):
        manager = DataParallelExecutorManager(net, CPUS[:devices], Described([("data", (16, 10))]))
        manager.set_params({"weight": mx.nd.ones((10,))}, {})
        found = gradients(manager, nets.batch(x))
        np.testing.assert_allclose(found["weight"], 2 * (1 - x).sum(axis=0), rtol=0, atol=2e-5)


# --- Buckets -------------------------------------------------------------------------------------


def bucket_net(length):
    """Words of a sentence, added up; every second length names its arguments in another order."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=9, output_dim=6, name="embed")
    words = mx.sym.FullyConnected(mx.sym.sum(words, axis=1), num_hidden=4, name="out")
    extra = mx.sym.var("scale", shape=(1, 4))
    net = mx.sym.broadcast_mul(*((words, extra) if length % 2 else (extra, words)))
    return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)


def bucket_batches(lengths, rows=8):
    draw = np.random.RandomState(0)
    for length in lengths:
        n = rows if length != 4 else 3
        x, y = draw.randint(0, 9, (n, length)), draw.randint(0, 4, n)
        yield nets.batch(
            x.astype("float32"),
            y.astype("float32"),
            bucket_key=length,
            provide_data=[("data", (n, length))],
            provide_label=[("softmax_label", (n,))],
        )


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("lengths", [[7, 5, 4, 2, 7, 1], [1, 2, 4, 5, 7, 1]])
def test_buckets_in_either_size_order_train_as_a_fresh_executor_does(devices, lengths):
    data = Described(
        [("data", (8, lengths[0]))], [("softmax_label", (8,))], default_bucket_key=lengths[0]
    )
    manager = DataParallelExecutorManager(None, CPUS[:devices], data, sym_gen=bucket_net)
    args, _ = nets.params(bucket_net(1)[0], data=(8, 1))
    manager.set_params(args, {})
    assert bucket_net(1)[0].list_arguments() != bucket_net(2)[0].list_arguments()
    step, updater = Steps(manager), Steps(None).updater
    for batch in bucket_batches(lengths):
        net = bucket_net(batch.bucket_key)[0]
        wanted = dict.fromkeys(args, "write")
        one = net.simple_bind(mx.cpu(0), wanted, data=batch.data[0].shape)
        one.copy_params_from(args)
        one.forward(is_train=True, data=batch.data[0], softmax_label=batch.label[0])
        one.backward()
        (found,) = run(manager, batch)
        np.testing.assert_allclose(found, one.outputs[0].asnumpy(), rtol=0, atol=1e-6)
        step(batch)
        for i, name in enumerate(manager.param_names):
            updater(i, one.grad_dict[name], args[name])
        assert_close(learned(manager), nets.numpy_of(args))


def test_a_bucket_with_parameters_of_its_own_is_one_line():
    def sym_gen(length):
        net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name=f"fc{length}")
        return mx.sym.SoftmaxOutput(net, name="softmax")

    data = Described([("data", (8, 3))], [("softmax_label", (8,))], default_bucket_key=3)
    manager = DataParallelExecutorManager(None, CPUS[:2], data, sym_gen=sym_gen)
    with pytest.raises(ArgumentError) as caught:
        manager.load_data_batch(next(bucket_batches([5])))
    assert "fc5_weight" in one_line(caught)


# --- A network over several contexts -------------------------------------------------------------


def split_net(split):
    def group(name):
        return mx.AttrScope(ctx_group=name) if split else mx.AttrScope()

    with group("front"):
        net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc1")
        net = mx.sym.Activation(net, act_type="tanh")
    with group("back"):
        net = mx.sym.FullyConnected(net, num_hidden=4, name="out")
        return mx.sym.SoftmaxOutput(net, name="softmax")


@pytest.mark.parametrize(
    "devices, places",
    [
        (1, {"front": mx.cpu(0), "back": mx.cpu(1)}),
        (2, {"front": [mx.cpu(0), mx.cpu(1)], "back": [mx.cpu(2), mx.cpu(3)]}),
        (2, [{"front": mx.cpu(i), "back": mx.cpu(i + 2)} for i in range(2)]),
    ],
)
def test_a_network_over_two_contexts_learns_what_one_context_does(devices, places):
    plain = manager_of(split_net(False), devices)
    split = manager_of(split_net(True), devices, group2ctxs=places)
    arrays = dict(zip(split.param_names, split.param_arrays))
    assert [array.context for array in arrays["fc1_weight"]] == CPUS[:devices]
    assert [array.context for array in arrays["out_weight"]] == CPUS[devices : 2 * devices]
    x, y = nets.samples(70)
    for step in (Steps(plain), Steps(split)):
        for batch in nets.batches(x, y, 16):
            step(batch)
    assert_equal(learned(split), learned(plain))
    batch = nets.batch(x[:5], y[:5])
    np.testing.assert_array_equal(run(split, batch)[0], run(plain, batch)[0])


def test_group2ctxs_needs_one_entry_a_device():
    with pytest.raises(ArgumentError) as caught:
        manager_of(split_net(True), 2, group2ctxs=[{"front": mx.cpu(0)}])
    assert "1 entries for 2 devices" in one_line(caught)


# --- Monitors ------------------------------------------------------------------------------------


def watched_rows(manager, monitor, batch):
    monitor.tic()
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    manager.backward()
    return {name: stat for _, name, stat in monitor.toc()}


def value_of(array):
    return array.copy()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_monitor_names_the_device_of_every_row(devices):
    manager = manager_of(nets.mlp(), devices)
    monitor = mx.monitor.Monitor(1, value_of, pattern="out_(weight|output)|softmax_output")
    manager.install_monitor(monitor)
    x, y = nets.samples(16)
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    for rows in (16, 5, 16, 3):
        found = watched_rows(manager, monitor, nets.batch(x[:rows], y[:rows]))
        assert set(found) == {
            f"{name} [{ctx}]"
            for name in ("out_weight", "out_output", "softmax_output")
            for ctx in CPUS[:devices]
        }
        wanted = nets.mlp_outputs(args, x[:rows])
        for ctx, part in zip(CPUS[:devices], manager.slices):
            text = found[f"softmax_output [{ctx}]"]
            assert_printed(text, wanted[part])


def assert_printed(text, wanted):
    """A Monitor shows its statistics as text."""
    numbers = [float(v) for v in text.replace("[", " ").replace("]", " ").split() if is_number(v)]
    np.testing.assert_allclose(numbers, wanted.ravel(), rtol=0, atol=1e-5)


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_monitor_of_everything_tells_parameters_and_states_of_each_device():
    manager = manager_of(nets.conv_bn(), 2, shape=IMAGE)
    monitor = mx.monitor.Monitor(1, monitor_all=True)
    manager.install_monitor(monitor)
    found = watched_rows(manager, monitor, nets.batch(*nets.samples(16, IMAGE)))
    for name in [*manager.param_names, *manager.aux_names, "conv1_output", "conv2_data"]:
        for ctx in CPUS[:2]:
            assert f"{name} [{ctx}]" in found, sorted(found)
    assert all(name.endswith((" [cpu(0)]", " [cpu(1)]")) for name in found)


def test_a_device_without_rows_shows_no_outputs():
    manager = manager_of(nets.mlp(), 2)
    monitor = mx.monitor.Monitor(1, value_of, pattern=".*_output")
    manager.install_monitor(monitor)
    x, y = nets.samples(16)
    watched_rows(manager, monitor, nets.batch(x, y))
    found = watched_rows(manager, monitor, nets.batch(x[:1], y[:1]))
    assert found and all(name.endswith("[cpu(0)]") for name in found)


def test_a_monitor_looks_at_every_nth_batch_only():
    manager = manager_of(nets.mlp(), 2)
    monitor = mx.monitor.Monitor(3, pattern="out_weight")
    manager.install_monitor(monitor)
    batch = nets.batch(*nets.samples(16))
    seen = [len(watched_rows(manager, monitor, batch)) for _ in range(6)]
    assert seen == [2, 0, 0, 2, 0, 0]


def test_a_monitor_that_moves_to_another_manager_leaves_the_first():
    monitor = mx.monitor.Monitor(1, value_of, pattern="out_bias")
    batch = nets.batch(*nets.samples(16))
    for value in (3, 5):
        manager = manager_of(nets.mlp(), 2)
        manager.param_arrays[3][0][:] = value
        manager.install_monitor(monitor)
        monitor.tic()
        manager.load_data_batch(batch)
        manager.forward()
        rows = [(name, stat) for _, name, stat in monitor.toc()]
        assert [name for name, _ in rows] == ["out_bias [cpu(0)]", "out_bias [cpu(1)]"]
        assert_printed(rows[0][1], np.full(4, value))


# --- What an earlier batch left behind -----------------------------------------------------------


def deep_or_shallow(key):
    """A chain of three layers, or without the middle one."""
    net = mx.sym.var("data")
    for name in "abc" if key == 2 else "ac":
        net = mx.sym.FullyConnected(net, num_hidden=10, name=name)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def two_depths(devices, **keywords):
    data = Described([("data", (8, 10))], [("softmax_label", (8,))], default_bucket_key=2)
    manager = DataParallelExecutorManager(
        None, CPUS[:devices], data, sym_gen=deep_or_shallow, **keywords
    )
    manager.set_params(*nets.params(deep_or_shallow(2), data=(8, 10)))
    batches = [
        nets.batch(
            *nets.samples(8, seed=key),
            bucket_key=key,
            provide_data=data.provide_data,
            provide_label=data.provide_label,
        )
        for key in (2, 1)
    ]
    return manager, batches


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_parameter_that_the_bucket_lacks_gets_no_earlier_gradient_again(devices):
    manager, (deep, shallow) = two_depths(devices)
    assert np.abs(gradients(manager, deep)["b_weight"]).max() > 0
    found = gradients(manager, shallow)
    net = deep_or_shallow(1)
    args, _ = nets.params(deep_or_shallow(2), data=(8, 10))
    one = net.simple_bind(mx.cpu(0), "write", data=(8, 10))
    one.copy_params_from({n: v for n, v in args.items() if n[0] != "b"})
    one.forward(is_train=True, data=shallow.data[0], softmax_label=shallow.label[0])
    one.backward()
    wanted = {
        name: one.grad_dict[name].asnumpy() if name in one.grad_dict else np.zeros(value.shape)
        for name, value in args.items()
    }
    assert_close(found, wanted)


def test_added_gradients_keep_what_another_bucket_gave():
    manager, (deep, shallow) = two_depths(2, grad_req="add")
    before = gradients(manager, deep)["b_weight"]
    assert np.abs(before).max() > 0
    np.testing.assert_array_equal(gradients(manager, shallow)["b_weight"], before)


@pytest.mark.parametrize("loaded", [False, True])
def test_outputs_before_a_forward_are_one_line(loaded):
    manager = manager_of(nets.mlp())
    x, y = nets.samples(16)
    if loaded:
        run(manager, nets.batch(x, y))
        manager.load_data_batch(nets.batch(x, y))
    with pytest.raises(StateError) as caught:
        manager.get_outputs()
    assert "forward()" in one_line(caught)


def test_backward_of_a_batch_that_was_not_run_is_one_line():
    manager = manager_of(nets.mlp())
    x, y = nets.samples(16)
    gradients(manager, nets.batch(x, y))
    manager.load_data_batch(nets.batch(x, y))
    with pytest.raises(StateError) as caught:
        manager.backward()
    assert "present batch" in one_line(caught)


@pytest.mark.parametrize("labels", [None, []])
def test_a_metric_without_the_labels_is_one_line(labels):
    manager = manager_of(nets.mlp())
    run(manager, nets.batch(*nets.samples(16)))
    with pytest.raises(DataError) as caught:
        manager.update_metric(mx.metric.create("acc"), labels)
    assert "batch.label" in one_line(caught)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_time_major_output_needs_no_layout_of_its_own(devices):
    net = mx.sym.broadcast_mul(mx.sym.var("data"), mx.sym.var("scale", shape=(1, 1, 3)))
    data = Described([mx.io.DataDesc("data", (5, 7, 3), layout="TNC")])
    manager = DataParallelExecutorManager(net, CPUS[:devices], data)
    scale = mx.nd.array([[[1.0, 2.0, 3.0]]])
    manager.set_params({"scale": scale}, {})
    x = np.random.RandomState(0).normal(size=(5, 7, 3)).astype("float32")
    batch = mx.io.DataBatch([mx.nd.array(x)], [], provide_data=data.provide_data)
    (found,) = run(manager, batch, is_train=True)
    np.testing.assert_array_equal(found, x * scale.asnumpy())
    heads = np.random.RandomState(1).normal(size=x.shape).astype("float32")
    manager.backward([mx.nd.array(heads)])
    total = sum(grads.asnumpy() for grads in manager.grad_arrays[0])
    np.testing.assert_allclose(total[0, 0], (heads * x).sum(axis=(0, 1)), rtol=1e-4, atol=1e-5)
