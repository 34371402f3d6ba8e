"""Pipelines: schedules, cuts, and training in stages that equals training as a whole."""

import functools

import nets
import numpy as np
import pipelines
import pytest
from nets import one_line
from ranks import Checks, check_names, needs_mpi

from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, StateError
from mxloop.multi_node import Pipeline, PipelineFeedForward
from mxloop.multi_node.cutting import cut
from mxloop.multi_node.schedules import Task, in_flight, schedule

KINDS = ["gpipe", "1f1b"]
ON = {2: Checks("pipeline_ranks", 2, 90), 3: Checks("pipeline_ranks", 3, 90)}

whole = functools.lru_cache(maxsize=None)(pipelines.whole)


@needs_mpi
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", check_names("pipeline_ranks"))
def test_stages_on_several_ranks(name, size):
    ON[size].outcome(name)


# --- Schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
def test_every_task_comes_once_and_after_what_it_needs(kind, stages, micro_batches):
    tasks = schedule(kind, stages, micro_batches)
    every = {
        Task(s, f, m) for s in range(stages) for f in (True, False) for m in range(micro_batches)
    }
    assert len(tasks) == len(every) and set(tasks) == every
    place = {task: i for i, task in enumerate(tasks)}
    for stage, is_forward, micro in tasks:
        if is_forward and stage:
            assert place[stage - 1, True, micro] < place[stage, True, micro]
        if not is_forward:
            assert place[stage, True, micro] < place[stage, False, micro]
            if stage < stages - 1:
                assert place[stage + 1, False, micro] < place[stage, False, micro]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_never_holds_more_micro_batches_than_it_says(kind):
    stages, micro_batches = 4, 7
    for stage in range(stages):
        held = most = 0
        for task in schedule(kind, stages, micro_batches):
            if task.stage == stage:
                held += 1 if task.is_forward else -1
                most = max(most, held)
        assert most == in_flight(kind, stages, micro_batches, stage)
    assert in_flight("1f1b", stages, micro_batches, 0) < in_flight(
        "gpipe", stages, micro_batches, 0
    )


def test_a_schedule_of_another_name_is_one_line():
    with pytest.raises(ArgumentError, match="1f1b") as caught:
        schedule("1f1", 2, 2)
    one_line(caught)


# --- Cuts ---------------------------------------------------------------------------------------


def test_stages_one_after_the_other_are_the_network():
    parts = cut(pipelines.SYMBOL, ["act1", "fc2"], {"data", "softmax_label"})
    assert [part.sources for part in parts] == [[], ["act1_output"], ["fc2_output"]]
    args, _ = pipelines.begin()
    x = nets.samples(16)[0]
    value, source = x, "data"
    for part in parts:
        own = {name: args[name] for name in part.symbol.list_arguments() if name in args}
        (value,) = nets.fresh_outputs(part.symbol, own, {}, {source: value})
        source = f"{part.symbol.list_outputs()[0]}"
    np.testing.assert_allclose(value, nets.mlp_outputs(args, x, ("fc1", "fc2")), 1e-5, 1e-6)


def branches():
    x = mx.sym.Flatten(mx.sym.var("data"))
    a = mx.sym.FullyConnected(x, num_hidden=6, name="a")
    b = mx.sym.FullyConnected(x, num_hidden=6, name="b")
    both = mx.sym.Activation(a, act_type="tanh", name="t") * b
    net = mx.sym.FullyConnected(both, num_hidden=4, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def test_several_values_may_cross_a_cut():
    symbol = branches()
    wanted = pipelines.whole(symbol)
    found = pipelines.in_stages([["a", "b"]], symbol, ctx=[mx.cpu(0), mx.cpu(1)])
    pipelines.compare(found, wanted, exactly=True)


def tied():
    w = mx.sym.var("w")
    net = mx.sym.FullyConnected(mx.sym.var("data"), w, num_hidden=10, no_bias=True, name="one")
    net = mx.sym.FullyConnected(net, w, num_hidden=10, no_bias=True, name="two")
    return mx.sym.SoftmaxOutput(net, name="softmax")


@pytest.mark.parametrize(
    "symbol, cuts, text",
    [
        (branches(), ["a"], "name all values that cross"),
        (tied(), ["one"], "must belong to one stage"),
        (branches(), ["outt"], "did you mean 'out'"),
        (branches(), ["data"], "no operator"),
    ],
)
def test_a_cut_that_cannot_be_is_one_line(symbol, cuts, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        cut(symbol, cuts, {"data", "softmax_label"})
    one_line(caught)


@pytest.mark.parametrize("cuts", ["a", None, 3])
def test_cuts_are_a_list(cuts):
    with pytest.raises(ArgumentTypeError, match="list"):
        cut(branches(), cuts, set())


# --- One process --------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_of_one_process_to_the_bit(stages):
    ctx = [mx.cpu(i) for i in range(stages)]
    found = pipelines.in_stages(pipelines.CUTS[stages], ctx=ctx)
    pipelines.compare(found, whole(), exactly=True)
    x, y = nets.samples(20, seed=3)
    assert found.score(x, y) == whole().score(x, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("micro_batches", [2, 3, 8, 20])
def test_micro_batches_of_one_process(kind, micro_batches):
    ctx = [mx.cpu(i) for i in range(3)]
    found = pipelines.in_stages(
        pipelines.CUTS[3], ctx=ctx, micro_batches=micro_batches, schedule=kind
    )
    pipelines.compare(found, whole(), exactly=False)


def test_convolutions_with_batch_norm_train_and_save(tmp_path):
    symbol, shapes = nets.conv_bn(), {"data": (16, 1, 8, 8)}
    batches = lambda: ArrayIter(*nets.samples(32, (1, 8, 8)), 16)  # noqa: E731
    wanted = pipelines.whole(symbol, batches, **shapes)
    found = pipelines.in_stages(
        ["bn1"],
        symbol,
        batches,
        shapes,
        ctx=[mx.cpu(0), mx.cpu(1)],
    )
    nets.assert_close(found.arg_params, wanted.arg_params)
    nets.assert_close(found.aux_params, wanted.aux_params)
    found.save(tmp_path / "net")


def test_a_loop_by_hand():
    found, accuracy = pipelines.by_hand(["act1"], ctx=[mx.cpu(0), mx.cpu(1)], micro_batches=4)
    wanted, expected = pipelines.by_hand([])
    nets.assert_close(found, wanted)
    assert accuracy == expected


def test_parameters_without_gradient_stay():
    args, aux = pipelines.begin()
    ctx = [mx.cpu(0), mx.cpu(1)]
    manager = Pipeline(
        pipelines.SYMBOL, ["act1"], pipelines.data(), ctx, fixed_param_names=["fc1_weight"]
    )
    manager.set_params(args, aux)
    manager.load_data_batch(next(pipelines.data()))
    manager.forward(is_train=True)
    manager.backward()
    grads = dict(zip(manager.param_names, manager.grad_arrays))
    assert grads["fc1_weight"] == [None]
    assert np.abs(grads["fc2_weight"][0].asnumpy()).max() > 0


def test_what_a_pipeline_cannot_do_is_one_line():
    symbol, ctx = pipelines.SYMBOL, [mx.cpu(0), mx.cpu(1)]
    normalised = mx.sym.SoftmaxOutput(
        symbol.get_internals()["out_output"], name="softmax", normalization="batch"
    )
    manager = Pipeline(symbol, ["act1"], pipelines.data(), ctx)
    manager.load_data_batch(next(pipelines.data()))
    manager.forward(is_train=True)
    for kind, call, text in (
        (
            ArgumentError,
            lambda: Pipeline(symbol, [], pipelines.data(), ctx),
            "1 stages for 1 ranks",
        ),
        (
            ArgumentError,
            lambda: Pipeline(normalised, ["act1"], pipelines.data(), ctx, micro_batches=2),
            "normalization",
        ),
        (StateError, lambda: manager.install_monitor(mx.mon.Monitor(1)), "monitor"),
        (StateError, manager.get_outputs, "backward"),
        (
            ValueError,
            lambda: PipelineFeedForward(symbol, ["act1"], ctx, num_epoch=1).fit(
                pipelines.data(), work_load_list=[1, 2]
            ),
            "work_load_list",
        ),
    ):
        with pytest.raises(kind, match=text) as caught:
            call()
        one_line(caught)
