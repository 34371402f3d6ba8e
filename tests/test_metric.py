"""metric.py: every metric is what stock makes of one device's unpadded outputs."""

import nets
import numpy as np
import pytest
from nets import CPUS, Described, one_line

from mxloop import DataParallelExecutorManager, FeedForward, metric
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError

ROWS = [16, 9, 16, 2, 4]  # the rows of each batch that are real


def regression():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="out")
    return mx.sym.LinearRegressionOutput(net, mx.sym.var("softmax_label"), name="lro")


def column():
    """The same, for labels of shape (rows, 1)."""
    return regression()


def two_classes():
    return nets.mlp(classes=2)


# name -> (network, how to make the metric)
METRICS = {
    "acc": (nets.mlp, lambda: mx.metric.Accuracy()),
    "acc, two classes": (two_classes, lambda: mx.metric.Accuracy()),
    "top_k_accuracy": (nets.mlp, lambda: mx.metric.TopKAccuracy(top_k=3)),
    "f1": (two_classes, lambda: mx.metric.F1()),
    "f1, micro": (two_classes, lambda: mx.metric.F1(average="micro")),
    "mcc": (two_classes, lambda: mx.metric.MCC()),
    "mcc, micro": (two_classes, lambda: mx.metric.MCC(average="micro")),
    "pcc": (nets.mlp, lambda: mx.metric.PCC()),
    "ce": (nets.mlp, lambda: mx.metric.CrossEntropy()),
    "nll_loss": (nets.mlp, lambda: mx.metric.NegativeLogLikelihood()),
    "perplexity": (nets.mlp, lambda: mx.metric.Perplexity(ignore_label=None)),
    "perplexity, ignoring": (nets.mlp, lambda: mx.metric.Perplexity(ignore_label=2)),
    "mse": (regression, lambda: mx.metric.MSE()),
    "mae": (regression, lambda: mx.metric.MAE()),
    "rmse": (regression, lambda: mx.metric.RMSE()),
    "pearsonr": (column, lambda: mx.metric.PearsonCorrelation()),
    "pearsonr, micro": (column, lambda: mx.metric.PearsonCorrelation(average="micro")),
    "loss": (nets.mlp, lambda: mx.metric.Loss()),
    "torch": (nets.mlp, lambda: mx.metric.Torch()),
    "caffe": (nets.mlp, lambda: mx.metric.Caffe()),
    "custom": (
        nets.mlp,
        lambda: mx.metric.np(lambda label, pred: np.abs(pred[:, 0] - label).sum()),
    ),
    "composite": (nets.mlp, lambda: mx.metric.create(["acc", "ce"])),
}


DESCRIBED = [Described([("data", (16, 10))], [("softmax_label", s)]) for s in ((16,), (16, 1))]


def all_values(measured):
    """The value of a metric, and the counts behind it."""
    parts = measured.metrics if isinstance(measured, mx.metric.CompositeEvalMetric) else [measured]
    return np.array([(part.get()[1], part.num_inst, part.get_global()[1]) for part in parts])


def batches(net):
    """Padded batches, garbage in their padding, and what stands in their real rows."""
    classes = 2 if net is two_classes else 4
    for number, real in enumerate(ROWS):
        x, y = nets.samples(16, classes=classes, seed=number)
        x[real:], y[real:] = 1e3, 1
        if net is column:
            y = y[:, None]
        yield nets.batch(x, y, pad=16 - real), x[:real], y[:real]


def test_every_metric_of_mxnet_is_tested():
    registry = mx.registry.get_registry(mx.metric.EvalMetric)
    tested = {type(make()) for _, make in METRICS.values()}
    assert {kind.__name__ for kind in registry.values()} - {
        kind.__name__ for kind in tested
    } == set()


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_equals_the_same_metric_by_hand_on_one_device(name, devices):
    net, make = METRICS[name]
    symbol = net()
    manager = DataParallelExecutorManager(symbol, CPUS[:devices], DESCRIBED[net is column])
    args, aux = nets.params(symbol, data=(16, 10))
    manager.set_params(args, aux)
    found, wanted = make(), make()
    for batch, x, y in batches(net):
        manager.load_data_batch(batch)
        manager.forward()
        manager.update_metric(found, batch.label)
        outputs = nets.fresh_outputs(symbol, args, aux, {"data": x, "softmax_label": y})
        wanted.update([mx.nd.array(y)], [mx.nd.array(output) for output in outputs])
    assert np.isfinite(all_values(wanted)).all()
    np.testing.assert_allclose(all_values(found), all_values(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_regression_metrics_do_not_depend_on_uneven_slices(devices):
    symbol = regression()
    args, _ = nets.params(symbol, data=(7, 10))
    x, y = nets.samples(21)
    net = FeedForward(symbol, ctx=CPUS[:devices], arg_params=args, aux_params={})
    found = net.score(ArrayIter(x, y, batch_size=7), eval_metric=["mse", "mae", "rmse"])
    wrong = (nets.dense(args, "out", x.astype("float64"))[:, 0] - y).reshape(3, 7)
    wanted = [(wrong**2).mean(), np.abs(wrong).mean(), np.sqrt((wrong**2).mean(axis=1)).mean()]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


# --- Labels find their outputs by name -----------------------------------------------------------


def two_heads(order):
    body = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="out")
    heads = {
        "a": mx.sym.SoftmaxOutput(body, mx.sym.var("a_label"), name="a"),
        "b": mx.sym.LinearRegressionOutput(body, mx.sym.var("b_label"), name="b"),
    }
    return mx.sym.Group([heads[name] for name in order])


def head_values(args, x):
    linear = nets.dense(args, "out", x.astype("float64"))
    return {"a": nets.mlp_outputs(args, x, layers=()), "b": linear}


class Seen(mx.metric.EvalMetric):
    """Keeps what it is updated with."""

    def __init__(self, **keywords):
        super().__init__("seen", **keywords)

    def update(self, labels, preds):
        self.labels = [label.asnumpy() for label in labels]
        self.preds = [pred.asnumpy() for pred in preds]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("label_order", ["ab", "ba"])
@pytest.mark.parametrize("output_order", ["ab", "ba"])
def test_labels_pair_with_outputs_by_name_in_any_order(output_order, label_order, devices):
    x, _ = nets.samples(11)
    labels = {
        "a_label": np.arange(11, dtype="float32") % 4,
        "b_label": np.random.RandomState(0).normal(size=(11, 4)).astype("float32"),
    }
    net = two_heads(output_order)
    args, _ = nets.params(net, data=(16, 10))
    model = FeedForward(net, ctx=CPUS[:devices], arg_params=args, aux_params={})
    given = {f"{name}_label": labels[f"{name}_label"] for name in label_order}
    data = ArrayIter(x, given, batch_size=16, last_batch="pad")
    wanted = head_values(args, x)
    seen = Seen()
    model.score(data, eval_metric=seen)
    for name, label, pred in zip(output_order, seen.labels, seen.preds):
        np.testing.assert_array_equal(label, labels[f"{name}_label"])
        np.testing.assert_allclose(pred, wanted[name], rtol=0, atol=1e-5)
    for keywords, name in (
        ({"output_names": ["a_output"], "label_names": ["a_label"]}, "a"),
        ({"output_names": ["b_output"]}, "b"),
        ({"label_names": ["a_label"]}, "a"),
    ):
        seen = Seen(**keywords)
        model.score(data, eval_metric=seen)
        assert len(seen.labels) == len(seen.preds) == 1
        np.testing.assert_array_equal(seen.labels[0], labels[f"{name}_label"])
        np.testing.assert_allclose(seen.preds[0], wanted[name], rtol=0, atol=1e-5)


def test_ndarray_iter_which_sorts_its_labels_pairs_them_as_well():
    x, _ = nets.samples(8)
    net = two_heads("ba")
    args, _ = nets.params(net, data=(8, 10))
    labels = {"b_label": np.ones((8, 4), "float32"), "a_label": np.zeros(8, "float32")}
    seen = Seen()
    model = FeedForward(net, ctx=CPUS[:2], arg_params=args, aux_params={})
    model.score(mx.io.NDArrayIter({"data": x}, dict(labels), 8), eval_metric=seen)
    np.testing.assert_array_equal(seen.labels[0], labels["b_label"])
    np.testing.assert_array_equal(seen.labels[1], labels["a_label"])


def test_an_output_without_a_label_is_not_counted():
    body = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="out")
    net = mx.sym.Group(
        [mx.sym.BlockGrad(body, name="seen"), mx.sym.SoftmaxOutput(body, name="softmax")]
    )
    args, _ = nets.params(net, data=(16, 10))
    x, y = nets.samples(13)
    found = FeedForward(net, ctx=CPUS[:2], arg_params=args, aux_params={}).score(x, y)
    assert found == np.mean(nets.mlp_outputs(args, x, layers=()).argmax(axis=1) == y)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_label_that_the_network_does_not_read_can_be_measured_against(devices):
    net = mx.sym.softmax(nets.mlp(head=False), name="probabilities")
    args, _ = nets.params(net, data=(16, 10))
    x, y = nets.samples(13)
    data = Described([("data", (16, 10))], [("softmax_label", (16,))])
    manager = DataParallelExecutorManager(net, CPUS[:devices], data)
    manager.set_params(args, {})
    manager.load_data_batch(nets.batch(x, y))
    manager.forward()
    found = mx.metric.Accuracy()
    manager.update_metric(found, [mx.nd.array(y)])
    assert found.get()[1] == np.mean(nets.mlp_outputs(args, x).argmax(axis=1) == y)


# --- What makes a metric -------------------------------------------------------------------------


def test_names_functions_objects_and_lists_make_metrics():
    def mean(label, pred):
        return float(pred.mean())

    own = mx.metric.F1()
    assert metric.create(own) is own
    assert isinstance(metric.create("CE"), mx.metric.CrossEntropy)
    assert metric.create(mean).get()[0] == "mean"
    made = metric.create(["acc", (own, "mse"), mean])
    assert made.get()[0][0] == "accuracy" and made.metrics[1].metrics[0] is own


@pytest.mark.parametrize("name", ["acuracy", "top_k_accuracy", "perplexity", "", "custom"])
def test_a_name_that_makes_no_metric_is_one_line(name):
    with pytest.raises(ArgumentError) as caught:
        metric.create(name)
    assert repr(name) in one_line(caught)


@pytest.mark.parametrize("value", [None, 3, {"acc": 1}, ["acc", 5]])
def test_a_value_that_is_no_metric_is_one_line(value):
    with pytest.raises(ArgumentTypeError) as caught:
        metric.create(value)
    one_line(caught)


def test_the_metric_of_an_epoch_is_over_the_epoch_whatever_a_logger_resets():
    x, y = nets.samples(80)
    own = mx.metric.Accuracy()
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    model = FeedForward(nets.mlp(), num_epoch=1, learning_rate=0, arg_params=args, aux_params={})
    model.fit(
        ArrayIter(x, y, batch_size=16),
        eval_data=ArrayIter(x, y, batch_size=16),
        eval_metric=own,
        batch_end_callback=lambda param: param.eval_metric.reset(),
        eval_batch_end_callback=lambda param: param.eval_metric.reset(),
    )
    wanted = np.mean(nets.mlp_outputs(args, x).argmax(axis=1) == y)
    assert model.history[0]["train_accuracy"] == model.history[0]["val_accuracy"] == wanted
    assert own.get() == ("accuracy", wanted) and own.num_inst == 80


def test_a_metric_object_used_twice_starts_anew():
    x, y = nets.samples(20)
    args, _ = nets.params(nets.mlp(), data=(16, 10))
    model = FeedForward(nets.mlp(), arg_params=args, aux_params={})
    own = mx.metric.Accuracy()
    assert model.score(x, y, own) == model.score(x, y, own)
    assert own.num_inst == 20
