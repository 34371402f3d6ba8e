"""training.py and passes.py: what the loop does with iterators, MXNet's own among them."""

import logging

import nets
import numpy as np
import pytest
from nets import CPUS, one_line

from mxloop import FeedForward
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, DataError
from mxloop.passes import one_pass


def numbered(n, batch_size, **keywords):
    """An NDArrayIter whose rows are their own numbers."""
    rows = np.arange(n, dtype="float32")
    return mx.io.NDArrayIter(rows.reshape(n, 1), rows % 4, batch_size, **keywords)


def csv_of(folder, n, batch_size, **keywords):
    np.savetxt(str(folder / "rows.csv"), np.arange(n))
    return mx.io.CSVIter(
        data_csv=str(folder / "rows.csv"), data_shape=(1,), batch_size=batch_size, **keywords
    )


def echo(devices=1):
    """A model whose outputs are its inputs."""
    net = mx.sym.broadcast_mul(mx.sym.var("data"), mx.sym.var("one_weight", shape=(1, 1)))
    return FeedForward(net, CPUS[:devices], arg_params={"one_weight": mx.nd.ones((1, 1))})


@pytest.mark.parametrize("n", [8, 9, 10, 11])
def test_rows_that_ndarrayiter_carries_over_are_no_padding(n):
    data = numbered(n, 4, last_batch_handle="roll_over")
    seen = []
    for _ in range(4):
        for batch in one_pass(data):
            rows = batch.data[0].asnumpy()[: 4 - batch.pad, 0]
            seen += rows.astype(int).tolist()
    assert len(seen) % 4 == 0
    assert seen == [i % n for i in range(len(seen))]


@pytest.mark.parametrize("devices", [1, 3])
def test_predict_and_score_see_the_rows_that_were_carried_over(devices):
    data = numbered(10, 4, last_batch_handle="roll_over")
    model = echo(devices)
    wanted = [[*range(8)], [8, 9, *range(10)], [*range(8)]]
    for rows in wanted:
        assert model.predict(data)[:, 0].tolist() == rows
    counted = mx.metric.CustomMetric(lambda label, out: (0.0, len(out)), allow_extra_outputs=True)
    data.hard_reset()
    model.score(data, eval_metric=counted)
    assert counted.num_inst == 8
    model.score(data, eval_metric=counted)
    assert counted.num_inst == 12


def test_fit_trains_on_the_rows_that_were_carried_over():
    """Each epoch's samples, counted by the metric, as the iterator's full batches."""
    counts = []
    model = FeedForward(nets.mlp(), CPUS[:2], num_epoch=3)
    model.fit(
        numbered(10, 4, last_batch_handle="roll_over"),
        eval_metric=mx.metric.CustomMetric(lambda label, out: (0.0, len(out)), name="rows"),
        batch_end_callback=lambda told: counts.append(told.eval_metric.num_inst),
    )
    assert counts == [4, 8, 4, 8, 12, 4, 8]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_fresh_csv_iterator_gives_every_row_once(tmp_path, devices):
    found = echo(devices).predict(csv_of(tmp_path, 33, 8))
    assert found[:, 0].tolist() == list(range(33))


def test_a_second_pass_over_a_filled_up_csv_warns_in_one_line(tmp_path, caplog):
    data, model = csv_of(tmp_path, 33, 8), echo()
    with caplog.at_level(logging.WARNING):
        model.predict(data)
        assert not caplog.records
        for _ in range(3):
            model.predict(data)
    (record,) = caplog.records
    message = record.getMessage()
    assert "record_iterator" in message and "\n" not in message and len(message) <= 250


def test_a_csv_iterator_with_round_batch_false_gives_every_row_in_each_pass(tmp_path):
    data, model = csv_of(tmp_path, 33, 8, round_batch=False), echo()
    for _ in range(3):
        assert model.predict(data)[:, 0].tolist() == list(range(33))


def test_a_csv_iterator_without_a_filled_up_batch_repeats_in_silence(tmp_path, caplog):
    data, model = csv_of(tmp_path, 32, 8), echo()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert model.predict(data)[:, 0].tolist() == list(range(32))
    assert not caplog.records


@pytest.mark.parametrize("use", ["predict", "score"])
def test_an_iterator_at_its_end_is_one_line(use):
    data = numbered(8, 4)
    collections = list(data)
    assert len(collections) == 2
    with pytest.raises(DataError) as caught:
        getattr(echo(), use)(data, reset=False)
    assert "no batch" in one_line(caught)


def test_evaluating_on_the_training_iterator_within_a_pass_is_one_line():
    data = numbered(16, 4)
    with pytest.raises(ArgumentError) as caught:
        FeedForward(nets.mlp(), num_epoch=2, epoch_size=3).fit(data, eval_data=data)
    assert "iterator of its own" in one_line(caught)


def test_evaluating_on_the_training_iterator_after_whole_passes_works():
    data = numbered(16, 4)
    model = FeedForward(nets.mlp(), num_epoch=2).fit(data, eval_data=data)
    assert len(model.history) == 2


def test_a_label_that_nobody_feeds_is_one_line():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    net = mx.sym.MakeLoss(mx.sym.square(net - mx.sym.var("y")))
    with pytest.raises(DataError) as caught:
        FeedForward(net, num_epoch=1).fit(np.ones((8, 2)), np.ones((8, 1)))
    assert "'y'" in one_line(caught)


def test_an_input_whose_shape_nothing_says_is_one_line():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    target = mx.sym.Reshape(mx.sym.var("y"), shape=(-1, 1))
    net = mx.sym.MakeLoss(mx.sym.square(net - target))
    with pytest.raises(DataError) as caught:
        FeedForward(net, num_epoch=1).fit(np.ones((8, 2)), np.ones((8, 1)))
    assert "shape y has" in one_line(caught)


def test_labels_of_a_stock_iterator_are_looked_at_before_the_first_step():
    """To look at them batch by batch would wait for each step."""
    x, y = nets.samples(64)
    y[:] = 0
    y[50] = 7
    model = FeedForward(nets.mlp(classes=2), num_epoch=1)
    with pytest.raises(DataError, match="'softmax_label' holds 7; its output has 2 classes"):
        model.fit(mx.io.NDArrayIter(x, y, 16), batch_end_callback=lambda _: pytest.fail("a step"))


def two_of_each():
    """Two inputs of one shape and two labels, which only their names tell apart."""
    outs = []
    for name in "ab":
        scores = mx.sym.FullyConnected(mx.sym.var(name), num_hidden=4, name=f"fc_{name}")
        outs.append(mx.sym.SoftmaxOutput(scores, mx.sym.var(f"{name}_label"), name=name))
    return mx.sym.Group(outs)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("inputs", ["ab", "ba"])
@pytest.mark.parametrize("make", [ArrayIter, mx.io.NDArrayIter])
def test_evaluation_data_may_be_in_another_order_than_those_trained_on(make, inputs, devices):
    rng = np.random.RandomState(1)
    x = {name: rng.randn(24, 5).astype("float32") for name in "ba"}
    y = {f"{name}_label": rng.randint(0, 4, 24).astype("float32") for name in "ba"}
    data = make(dict(x), dict(y), 8)  # NDArrayIter writes into its dicts
    model = FeedForward(two_of_each(), CPUS[:devices], 2, learning_rate=0.3)
    labels = {f"{name}_label": y[f"{name}_label"] for name in "ab"}
    model.fit({name: x[name] for name in inputs}, labels, eval_data=data)
    accuracy = model.history[-1]["val_accuracy"]
    assert accuracy == model.score(data)
    hits = [model.predict(data)[i].argmax(1) == y[f"{name}_label"] for i, name in enumerate("ab")]
    assert accuracy == pytest.approx(np.mean(hits))
