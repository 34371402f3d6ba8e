"""mxloop.sklearn: estimators that scikit-learn's own checks, pipelines and searches take."""

import logging
import sys

import nets
import numpy as np
import pytest
from nets import one_line

from mxloop import FeedForward, mx
from mxloop.errors import ArgumentError, ArgumentTypeError, InstallError, MXLoopError

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mxloop.sklearn import Classifier, Regressor

X, Y = nets.samples(120)


def small(**settings):
    return Classifier(random_state=0, num_epoch=2, **settings)


# All of scikit-learn's checks apply. It leaves out by itself those of what these estimators do not
# have: sparse input, sample weights, partial_fit, transform, and arrays of other libraries.
@parametrize_with_checks([Classifier(random_state=0), Regressor(random_state=0)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


# --- Pipelines, searches, cross-validation ------------------------------------------------------


def convolutional(num_classes):
    net = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 1, 8, 8))
    net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=8, name="conv")
    net = mx.sym.Flatten(mx.sym.Activation(net, act_type="relu"))
    net = mx.sym.FullyConnected(net, num_hidden=num_classes, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def search(x, y, **settings):
    """A search over the rate and the network; one of the rates cannot learn anything."""
    steps = make_pipeline(MinMaxScaler(), Classifier(num_epoch=4, random_state=0))
    grid = {
        "classifier__learning_rate": [1e-6, 0.01],
        "classifier__symbol": [None, convolutional],
    }
    return GridSearchCV(steps, grid, cv=2, **settings).fit(x, y)


def test_a_grid_search_in_a_pipeline_finds_what_learns_the_digits():
    x, y = load_digits(return_X_y=True)
    found = search(x[:1200], y[:1200])
    assert found.best_params_["classifier__learning_rate"] == 0.01
    assert found.score(x[1200:], y[1200:]) > 0.9
    assert np.ptp(found.cv_results_["mean_test_score"]) > 0.5


@pytest.mark.slow
def test_a_search_gives_the_same_in_several_processes():
    x, y = load_digits(return_X_y=True)
    one, two = (search(x[:600], y[:600], n_jobs=jobs).cv_results_ for jobs in (1, 2))
    np.testing.assert_array_equal(one["mean_test_score"], two["mean_test_score"])


def test_cross_validation_scores_and_predicts_each_sample_by_a_net_that_has_not_seen_it():
    x, y = load_digits(return_X_y=True)
    words = np.array([f"a {digit}" for digit in range(10)])
    x, labels = x[:400] / 16, words[y[:400]]
    estimator = Classifier(random_state=0, learning_rate=0.01)
    assert cross_val_score(estimator, x, labels, cv=3).mean() > 0.8
    predicted = cross_val_predict(estimator, x, labels, cv=3)
    assert (predicted == labels).mean() > 0.8


# --- What they compute --------------------------------------------------------------------------


def test_a_classifier_is_the_feedforward_of_the_same_settings():
    symbol = nets.mlp()
    found = Classifier(
        symbol, optimizer="sgd", num_epoch=3, random_state=7, learning_rate=0.1, momentum=0.9
    ).fit(X, Y)
    seed = np.random.RandomState(7).randint(2**31 - 1)
    plain = FeedForward(
        symbol,
        num_epoch=3,
        initializer=mx.init.Xavier(),
        numpy_batch_size=32,
        learning_rate=0.1,
        momentum=0.9,
    ).fit(X, Y, seed=seed)
    probabilities = found.predict_proba(X)
    np.testing.assert_array_equal(probabilities, plain.predict(X))
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(found.predict(X), probabilities.argmax(axis=1))
    assert found.score(X, Y) == plain.score(X, Y)


def test_labels_of_any_kind_come_back_as_they_were():
    for labels in ([-1, 0, 5, 9], [0.5, 1.5, 2.5, 3.5], ["a", "b", "c", "d"]):
        labels = np.array(labels)[Y.astype(int)]
        if labels.dtype.kind == "f":
            labels = labels * 2  # whole numbers in floats are classes too
        found = small().fit(X, labels)
        np.testing.assert_array_equal(found.classes_, np.unique(labels))
        assert set(found.predict(X)) <= set(labels)


def test_images_go_in_with_all_their_axes():
    x, y = nets.samples(40, (1, 12, 12))
    assert small(symbol=nets.lenet()).fit(x, y).predict_proba(x).shape == (40, 4)


def test_a_regressor_learns_one_target_and_several():
    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x), (y - y.mean()) / y.std()
    estimator = Regressor(num_epoch=30, random_state=0)
    assert estimator.fit(x, y).score(x, y) > 0.5
    one = estimator.predict(x)
    assert one.shape == y.shape
    both = np.stack([y, -2 * y], axis=1)
    two = estimator.fit(x, both).predict(x)
    assert two.shape == both.shape
    assert np.corrcoef(two[:, 0], two[:, 1])[0, 1] < -0.9


def test_a_random_state_repeats_a_fit_and_without_one_fits_differ():
    first, again = (small().fit(X, Y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    free = Classifier(num_epoch=2)
    assert (free.fit(X, Y).predict_proba(X) != free.fit(X, Y).predict_proba(X)).any()


# --- Parameters and clones ----------------------------------------------------------------------


def test_a_clone_of_a_fitted_one_is_unfitted_and_has_its_parameters():
    fitted = small(symbol=nets.mlp(), learning_rate=0.02, ctx=[mx.cpu(0), mx.cpu(1)]).fit(X, Y)
    copy = clone(fitted)
    with pytest.raises(NotFittedError):
        copy.predict(X)
    assert not hasattr(copy, "classes_")
    assert copy.get_params()["learning_rate"] == 0.02
    np.testing.assert_array_equal(copy.fit(X, Y).predict_proba(X), fitted.predict_proba(X))


def test_the_optimizer_keywords_are_parameters():
    estimator = small(learning_rate=0.02)
    estimator.set_params(wd=0.1, num_epoch=3)
    params = estimator.get_params()
    assert (params["learning_rate"], params["wd"], params["num_epoch"]) == (0.02, 0.1, 3)
    assert Classifier().get_params().keys().isdisjoint({"learning_rate", "wd"})


def test_a_failed_fit_raises_one_line():
    cases = {
        "2 classes or targets": (ArgumentError, small(symbol=nets.mlp()), Y > 1),
        "pass a Symbol": (ArgumentTypeError, small(symbol=5), Y),
        "did you mean 'learning_rate'": (ArgumentError, small(learning_rat=1), Y),
        "num_epoch is 0": (ArgumentError, Classifier(num_epoch=0), Y),
    }
    for text, (kind, estimator, y) in cases.items():
        with pytest.raises(MXLoopError) as caught:
            estimator.fit(X, y)
        assert isinstance(caught.value, kind)
        assert text in one_line(caught)


def test_epochs_are_shown_to_those_who_ask(capsys, caplog):
    small().fit(X, Y)
    assert capsys.readouterr().out == ""
    with caplog.at_level(logging.INFO, logger="mxloop.sklearn"):
        small().fit(X, Y)
    assert "Epoch[1] Train-accuracy" in caplog.text


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "mxloop.sklearn")
    with pytest.raises(InstallError) as caught:
        import mxloop.sklearn  # noqa: F401
    assert "mxloop[sklearn]" in one_line(caught)
