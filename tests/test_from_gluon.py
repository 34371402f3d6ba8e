"""FeedForward.from_gluon: the same steps as Gluon's own Trainer makes."""

import nets
import numpy as np
import pytest
from nets import CPUS, one_line

from mxloop import FeedForward, export, mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, MXLoopError

nn, losses = mx.gluon.nn, mx.gluon.loss
SGD = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}


def dense(outputs=4, flatten=True):
    block = nn.HybridSequential()
    block.add(nn.Dense(8, activation="tanh", flatten=flatten), nn.Dense(outputs, flatten=flatten))
    return block


def convolutional(outputs=4):
    block = nn.HybridSequential()
    block.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten())
    block.add(nn.Dense(outputs))
    return block


def ready(block, shape, seed=5):
    """The block with parameters, whose shapes the first data tell."""
    mx.random.seed(seed)
    np.random.seed(seed)
    block.initialize(mx.init.Xavier())
    block(mx.nd.zeros((1, *shape)))
    return block


def steps_in_gluon(block, loss, x, y, batch=10, epochs=3):
    """Parameters by name after Gluon's own loop."""
    params = block.collect_params()
    trainer = mx.gluon.Trainer(params, "sgd", dict(SGD), kvstore=None)
    for _ in range(epochs):
        for rows in nets.batches(x, y, batch):
            with mx.autograd.record():
                value = loss(block(rows.data[0]), rows.label[0])
            value.backward()
            trainer.step(len(rows.data[0]))
    return {name: parameter.data() for name, parameter in params.items()}


def both(block, loss, x, y, ctx=None):
    """The parameters that mxloop's fit and Gluon's loop end with."""
    model = FeedForward.from_gluon(block, loss, ctx=ctx, num_epoch=3, **SGD)
    model.fit(ArrayIter(x, y, 10, label_name=label_of(model)), eval_metric=mx.metric.Loss())
    return {**model.arg_params, **model.aux_params}, steps_in_gluon(block, loss, x, y), model


def label_of(model):
    (name,) = [n for n in model.symbol.list_arguments() if n.endswith("label")]
    return name


X, Y = nets.samples(34)
TARGETS = X[:, :4] * 0.5
ONE_HOT = np.eye(4, dtype="float32")[Y.astype(int)]
BITS = (X[:, :4] > 0).astype("float32")

HEADS = {
    "softmax": (losses.SoftmaxCrossEntropyLoss(), Y, "SoftmaxOutput"),
    "weighted": (losses.SoftmaxCrossEntropyLoss(weight=0.5), Y, "SoftmaxOutput"),
    "soft labels": (losses.SoftmaxCrossEntropyLoss(sparse_label=False), ONE_HOT, "MakeLoss"),
    "l2": (losses.L2Loss(), TARGETS, "LinearRegressionOutput"),
    "l1": (losses.L1Loss(), TARGETS, "MAERegressionOutput"),
    "sigmoid": (losses.SigmoidBCELoss(), BITS, "LogisticRegressionOutput"),
    "huber": (losses.HuberLoss(), TARGETS, "MakeLoss"),
    "hinge": (losses.HingeLoss(), 2 * BITS - 1, "MakeLoss"),
    "own": (lambda out, label: (out - label).abs().sum(axis=1), TARGETS, "MakeLoss"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_loss_makes_the_steps_that_gluon_makes(name):
    loss, y, operator = HEADS[name]
    found, expected, model = both(ready(dense(), (10,)), loss, X, y, CPUS[:2])
    assert f'"op": "{operator}"' in model.symbol.tojson()
    nets.assert_close(found, expected, atol=2e-6)


def test_batch_norm_keeps_gluons_statistics():
    x, y = nets.samples(30, (1, 6, 6))
    block = ready(convolutional(), x.shape[1:])
    found, expected, model = both(block, losses.SoftmaxCrossEntropyLoss(), x, y)
    assert len(model.aux_params) == 2
    nets.assert_close(found, expected, atol=1e-5)
    np.testing.assert_allclose(
        model.predict(x), block(mx.nd.array(x)).softmax().asnumpy(), atol=1e-5
    )


def test_scores_over_time_are_a_mean_over_time_as_in_gluon():
    x = np.random.RandomState(0).normal(size=(20, 5, 6)).astype("float32")
    y = np.random.RandomState(1).randint(0, 4, (20, 5)).astype("float32")
    block = ready(dense(flatten=False), x.shape[1:])
    found, expected, _ = both(block, losses.SoftmaxCrossEntropyLoss(), x, y)
    nets.assert_close(found, expected, atol=2e-6)


def test_an_uninitialised_block_is_initialised_by_fit():
    model = FeedForward.from_gluon(
        dense(), losses.SoftmaxCrossEntropyLoss(), num_epoch=60, learning_rate=0.2
    )
    assert model.arg_params == {}
    model.fit(X, Y, seed=1)
    assert model.score(X, Y) > 0.7


def test_frozen_parameters_stay_to_the_bit():
    block = ready(dense(), (10,))
    block[0].collect_params().setattr("grad_req", "null")
    before = {name: p.data().asnumpy() for name, p in block.collect_params().items()}
    model = FeedForward.from_gluon(block, losses.SoftmaxCrossEntropyLoss(), num_epoch=2, **SGD)
    after = nets.numpy_of(model.fit(X, Y).arg_params)
    for name in before:
        assert (after[name] == before[name]).all() == name.startswith(block[0].name), name


def test_the_block_itself_is_left_as_it_was():
    block = ready(dense(), (10,))
    block.hybridize()
    before = block(mx.nd.array(X)).asnumpy()
    FeedForward.from_gluon(block, losses.L2Loss(), num_epoch=1, **SGD).fit(X, TARGETS)
    np.testing.assert_array_equal(block(mx.nd.array(X)).asnumpy(), before)


def test_a_model_goes_back_to_gluon():
    block = ready(convolutional(), (1, 6, 6))
    model = FeedForward.from_gluon(block, losses.HuberLoss(), num_epoch=1)
    x = mx.nd.array(nets.samples(4, (1, 6, 6))[0])
    np.testing.assert_allclose(export.to_gluon(model)(x).asnumpy(), block(x).asnumpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["huber", "hinge", "soft labels"])
def test_a_loss_beside_the_prediction_is_not_predicted_without_labels(name):
    loss, y, _ = HEADS[name]
    block = ready(dense(), (10,))
    model = FeedForward.from_gluon(block, loss)
    np.testing.assert_allclose(model.predict(X), block(mx.nd.array(X)).asnumpy(), atol=1e-6)
    prediction, value = model.predict(ArrayIter(X, y, 10, label_name="prediction_label"))
    assert prediction.shape == (34, 4)
    expected = loss(block(mx.nd.array(X)), mx.nd.array(y)).asnumpy()
    np.testing.assert_allclose(value, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18_v1", "mobilenetv2_0.25"])
def test_a_network_of_gluons_zoo_trains_and_is_exported(tmp_path, name):
    pytest.importorskip("onnxruntime")
    shape = (3, 64, 64)
    block = ready(mx.gluon.model_zoo.vision.get_model(name, classes=4), shape)
    model = FeedForward.from_gluon(
        block, losses.SoftmaxCrossEntropyLoss(), num_epoch=3, numpy_batch_size=8, learning_rate=0.01
    )
    x, y = nets.samples(8, shape)
    expected = block(mx.nd.array(x)).softmax().asnumpy()
    np.testing.assert_allclose(model.predict(x), expected, atol=1e-5)
    model.fit(x, y, eval_metric="ce", seed=1)
    losses_seen = [row["train_cross-entropy"] for row in model.history]
    assert losses_seen[-1] < losses_seen[0]
    assert export.to_onnx(model, tmp_path / "zoo.onnx") < 1e-4


class Branches(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x, x + 1


class ByShape(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


def test_what_cannot_be_converted_is_one_line():
    cross_entropy = losses.SoftmaxCrossEntropyLoss()
    cases = {
        "pass a HybridBlock": (ArgumentTypeError, nn.Sequential(), cross_entropy),
        "several outputs": (ArgumentError, Branches(), cross_entropy),
        "no shape or value": (ArgumentError, ByShape(), cross_entropy),
        "loss is 'ce'": (ArgumentTypeError, dense(), "ce"),
        "loss gave 3": (ArgumentTypeError, dense(), lambda prediction, label: 3),
    }
    for text, (kind, block, loss) in cases.items():
        with pytest.raises(MXLoopError) as caught:
            FeedForward.from_gluon(block, loss)
        assert isinstance(caught.value, kind)
        assert text in one_line(caught)
