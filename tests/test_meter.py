"""meter.py: metrics are counted late, and nobody can tell."""

import copy
import logging
import pickle

import nets
import numpy as np
import pytest
from nets import CPUS

from mxloop import FeedForward
from mxloop.compat import mx

N = 20  # batches
X, Y = nets.samples(16 * N, classes=2)
SILENT = logging.Logger("silent")
SILENT.disabled = True


class Reusing(mx.io.DataIter):
    """Writes each batch into the same two arrays, its labels in turn with the given dtypes."""

    def __init__(self, dtypes=("float32",)):
        super().__init__(16)
        self.data, self.place = mx.nd.zeros((16, 10)), 0
        self.labels = [mx.nd.zeros((16,), dtype=dtype) for dtype in dtypes]
        self.provide_data = [mx.io.DataDesc("data", (16, 10))]
        self.provide_label = [mx.io.DataDesc("softmax_label", (16,))]

    def reset(self):
        self.place = 0

    def next(self):
        if self.place == N:
            raise StopIteration
        rows = slice(16 * self.place, 16 * (self.place + 1))
        label = self.labels[self.place % len(self.labels)]
        self.data[:], label[:] = X[rows], Y[rows]
        self.place += 1
        return mx.io.DataBatch([self.data], [label], pad=0)


def fit(metric, callback=None, data=None, devices=1, num_epoch=1):
    args, _ = nets.params(nets.mlp(classes=2), data=(16, 10))
    model = FeedForward(nets.mlp(classes=2), CPUS[:devices], num_epoch, arg_params=args)
    data = Reusing() if data is None else data
    return model.fit(data, eval_metric=metric, batch_end_callback=callback, logger=SILENT)


def by_hand(metrics):
    """The metrics' values after each batch, of MXNet's executor and updater."""
    net = nets.mlp(classes=2)
    args, _ = nets.params(net, data=(16, 10))
    executor = net.simple_bind(mx.cpu(), data=(16, 10), softmax_label=(16,))
    executor.copy_params_from(args)
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(rescale_grad=1 / 16))
    values = []
    for batch in Reusing():
        executor.forward(is_train=True, data=batch.data[0], softmax_label=batch.label[0])
        executor.backward()
        for i, name in enumerate(args):
            updater(i, executor.grad_dict[name], executor.arg_dict[name])
        for metric in metrics:
            metric.update(batch.label, executor.outputs)
        values.append([metric.get()[1] for metric in metrics])
    return values


def several():
    kinds = mx.metric
    return [
        kinds.Accuracy(),
        kinds.TopKAccuracy(top_k=2),
        kinds.F1(),
        kinds.MCC(average="micro"),
        kinds.CrossEntropy(),
        kinds.Perplexity(ignore_label=1),
        kinds.PCC(),
        kinds.CustomMetric(lambda label, out: float((out.argmax(1) == label).mean())),
    ]


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("looks", [False, True])
def test_metrics_are_those_counted_by_hand(devices, looks):
    wanted, found = by_hand(several()), []
    callback = (lambda told: found.append(told.eval_metric.get()[1])) if looks else None
    metric = mx.metric.CompositeEvalMetric(several())
    row = fit(metric, callback, devices=devices).history[-1]
    values = [value for name, value in row.items() if name.startswith("train_")]
    np.testing.assert_allclose(values, wanted[-1], atol=1e-6)
    np.testing.assert_allclose(metric.get()[1], wanted[-1], atol=1e-6)
    if looks:
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("dtypes", [["float32"], ["float32", "int32"]])
def test_labels_may_come_in_the_same_array_and_in_several_dtypes(dtypes):
    metric = mx.metric.Accuracy()
    fit(metric, data=Reusing(dtypes))
    (wanted,) = by_hand([mx.metric.Accuracy()])[-1]
    assert metric.get()[1] == wanted


class Own(mx.metric.EvalMetric):
    """Counts in an attribute of its own, and cannot be a key of a dict."""

    def reset(self):
        self.rows = 0
        super().reset()

    def update(self, labels, preds):
        self.rows += len(labels[0])
        self.num_inst = self.sum_metric = 1

    def __eq__(self, other):
        return self is other


LOOKS = {
    "num_inst": lambda metric: metric.num_inst,
    "vars": lambda metric: vars(metric)["num_inst"],
    "copy": lambda metric: copy.copy(metric).num_inst,
    "deepcopy": lambda metric: copy.deepcopy(metric).num_inst,
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)).num_inst,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_sees_all_batches(look):
    seen = []
    fit(mx.metric.Accuracy(), lambda told: seen.append(look(told.eval_metric)))
    assert seen == [16 * (i + 1) for i in range(N)]


def test_attributes_of_ones_own_are_seen_as_well():
    seen = []
    fit(Own("own"), lambda told: seen.append(told.eval_metric.rows))
    assert seen == [16 * (i + 1) for i in range(N)]


def test_a_count_that_is_set_to_zero_does_not_count_earlier_batches():
    seen = []

    def callback(told):
        if told.nbatch == 5:
            told.eval_metric.num_inst = 0
        seen.append(told.eval_metric.num_inst)

    fit(mx.metric.Accuracy(), callback)
    assert seen[3:7] == [64, 0, 16, 32]


def test_a_metric_and_its_copies_say_that_they_are_of_its_class():
    kinds = []

    def callback(told):
        metric = told.eval_metric
        kinds.extend([metric.__class__, type(copy.deepcopy(metric)), type(copy.copy(metric))])

    metric = mx.metric.Accuracy()
    fit(metric, callback)
    assert {*kinds, type(metric)} == {mx.metric.Accuracy}


def test_scoring_with_the_same_metric_within_a_fit_leaves_it_watched():
    metric, seen = mx.metric.Accuracy(), []
    args, _ = nets.params(nets.mlp(classes=2), data=(16, 10))
    other = FeedForward(nets.mlp(classes=2), arg_params=args)

    def callback(told):
        if told.nbatch == 3:
            other.score(X[:32], Y[:32], eval_metric=metric)
        seen.append(metric.num_inst)

    fit(metric, callback)
    assert seen[:6] == [16, 32, 32, 48, 64, 80] and type(metric) is mx.metric.Accuracy


def test_a_metric_may_be_there_twice_and_grow():
    accuracy = mx.metric.Accuracy()
    metric = mx.metric.CompositeEvalMetric([accuracy, accuracy])
    fit(metric, lambda told: told.nbatch == 3 and metric.add(mx.metric.CrossEntropy()))
    kinds = [mx.metric.Accuracy, mx.metric.Accuracy, mx.metric.CrossEntropy]
    assert [type(each) for each in metric.metrics] == kinds
    assert accuracy.num_inst == 2 * 16 * N


class Raising(mx.metric.Accuracy):
    def update(self, labels, preds):
        if self.num_inst == 64:
            raise RuntimeError("of the metric")
        super().update(labels, preds)


def test_a_metric_that_raises_keeps_its_class():
    metric = mx.metric.CompositeEvalMetric([Raising(), mx.metric.Accuracy()])
    with pytest.raises(RuntimeError, match="of the metric"):
        fit(metric)
    assert [type(each) for each in metric.metrics] == [Raising, mx.metric.Accuracy]
