"""Networks as scikit-learn estimators, for its pipelines, searches and cross-validation."""

import logging
from typing import Any, Callable, Dict, Optional

import numpy as np

from mxloop.compat import mx
from mxloop.errors import ArgumentError
from mxloop.model import FeedForward
from mxloop.optional import need
from mxloop.validation import check_symbol, shown

need("sklearn", "sklearn", "mxloop.sklearn")

from sklearn import base, utils  # noqa: E402
from sklearn.utils import multiclass, validation  # noqa: E402

__all__ = ["Classifier", "Regressor"]

# A search fits hundreds of times: epochs are told to those who ask, by this logger's level.
logger = logging.getLogger(__name__)
logger.setLevel(logging.WARNING)

HIDDEN = 64
NO_KEYWORDS: Dict[str, Any] = {}


def _hidden_layer(num_outputs):
    """The network where none is given: one hidden layer, and so many outputs."""
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=HIDDEN, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    return mx.sym.FullyConnected(net, num_hidden=num_outputs, name="fc2")


class _Estimator(base.BaseEstimator):
    """What both estimators share: settings, and a FeedForward that is made anew by every fit."""

    def __init__(
        self,
        symbol: Any = None,
        ctx: Any = None,
        num_epoch: int = 20,
        optimizer: Any = "adam",
        initializer: Optional[Callable] = None,
        numpy_batch_size: int = 32,
        random_state: Any = None,
        **optimizer_kwargs: Any,
    ):
        self.symbol = symbol
        self.ctx = ctx
        self.num_epoch = num_epoch
        self.optimizer = optimizer
        self.initializer = initializer
        self.numpy_batch_size = numpy_batch_size
        self.random_state = random_state
        if optimizer_kwargs:  # scikit-learn wants nothing but its own parameters to be set here
            self._keywords = optimizer_kwargs

    _keywords = NO_KEYWORDS

    def get_params(self, deep: bool = True) -> Dict[str, Any]:
        """Return the constructor's arguments, the optimizer's keywords among them."""
        return {**super().get_params(deep), **self._keywords}

    def set_params(self, **params: Any) -> "_Estimator":
        """Set the constructor's arguments anew; the next fit obeys them."""
        own = set(self._get_param_names())
        super().set_params(**{name: value for name, value in params.items() if name in own})
        others = {name: value for name, value in params.items() if name not in own}
        if others:
            self._keywords = {**self._keywords, **others}
        return self

    def _train(self, X, targets, num_outputs):
        """Fit a new model, which stays unless it fails."""
        model = FeedForward(
            self._network(num_outputs),
            ctx=self.ctx,
            num_epoch=self.num_epoch,
            optimizer=self.optimizer,
            initializer=mx.init.Xavier() if self.initializer is None else self.initializer,
            numpy_batch_size=self.numpy_batch_size,
            **self._keywords,
        )
        _check_outputs(model.symbol, X, num_outputs)
        seed = utils.check_random_state(self.random_state).randint(2**31 - 1)
        metric = mx.metric.create(self._metric)
        model.fit(X, targets, eval_metric=metric, logger=logger, seed=int(seed))
        self.model_ = model
        return self

    def _network(self, num_outputs):
        if self.symbol is None:
            return self._head(_hidden_layer(num_outputs))
        made_anew = callable(self.symbol) and not isinstance(self.symbol, mx.sym.Symbol)
        symbol = self.symbol(num_outputs) if made_anew else self.symbol
        check_symbol(symbol)
        return symbol

    def _outputs(self, X):
        validation.check_is_fitted(self)
        return self.model_.predict(self._checked(X, reset=False))

    def _checked(self, *arrays, reset=True, **checks):
        return _validate_data(self, *arrays, reset=reset, dtype=np.float32, allow_nd=True, **checks)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        tags.target_tags.multi_output = self._multi_output
        return tags

    def _more_tags(self):  # what the method above is to scikit-learn before 1.6
        return {
            "non_deterministic": self.random_state is None,
            "multioutput": self._multi_output,
        }


class Classifier(base.ClassifierMixin, _Estimator):
    """A network that tells classes, of any labels that scikit-learn knows.

    Parameters
    ----------
    symbol : Symbol or callable, optional
        The network for an input 'data' of shape (samples, ...), ending in SoftmaxOutput, with one
        output a class; or number of classes -> Symbol. By default one hidden layer of 64.
    ctx : Context or list of Context, optional
    num_epoch : int
    optimizer : str or Optimizer
    initializer : callable, optional
        By default Xavier's.
    numpy_batch_size : int
        Samples in a batch.
    random_state : int, RandomState or None
        Makes initialisation and the order of the samples repeatable.
    **optimizer_kwargs
        For an optimizer by name, as `learning_rate`, `momentum`, `wd`; a search may set these too.

    Attributes
    ----------
    model_ : FeedForward
        What was trained: save or export it.
    classes_ : ndarray, shape (classes,)
        The labels in the order of the outputs.
    n_features_in_ : int

    Notes
    -----
    ``logging.getLogger('mxloop.sklearn').setLevel(logging.INFO)`` shows the epochs.
    """

    _metric = "acc"
    _multi_output = False

    @staticmethod
    def _head(net):
        return mx.sym.SoftmaxOutput(net, name="softmax")

    def fit(self, X: Any, y: Any) -> "Classifier":
        """Train from new parameters.

        Parameters
        ----------
        X : array, shape (samples, ...)
        y : array, shape (samples,)
            Numbers or text.

        Raises
        ------
        MXLoopError
            One line, if the network does not go with the data; scikit-learn's own errors tell
            what is wrong with the data alone.
        """
        X, y = self._checked(X, y)
        multiclass.check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return self._train(X, numbers, len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities, float32 of shape (samples, classes), in the order of `classes_`."""
        return self._outputs(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each sample, as it stood in `y`; shape (samples,)."""
        outputs = self._outputs(X)
        return self.classes_[outputs.argmax(axis=1)]


class Regressor(base.RegressorMixin, _Estimator):
    """A network that tells one number a sample, or several.

    Targets are taken as they are: where they are far from 0..1, scale them, as
    `sklearn.compose.TransformedTargetRegressor` does.

    Parameters
    ----------
    symbol : Symbol or callable, optional
        The network for an input 'data', ending in LinearRegressionOutput or the like, with one
        output a target; or number of targets -> Symbol. By default one hidden layer of 64.
    ctx, num_epoch, optimizer, initializer, numpy_batch_size, random_state, **optimizer_kwargs
        As those of `Classifier`.

    Attributes
    ----------
    model_ : FeedForward
    n_features_in_ : int
    """

    _metric = "mse"
    _multi_output = True

    @staticmethod
    def _head(net):
        return mx.sym.LinearRegressionOutput(net, name="regression")

    def fit(self, X: Any, y: Any) -> "Regressor":
        """Train from new parameters.

        Parameters
        ----------
        X : array, shape (samples, ...)
        y : array, shape (samples,) or (samples, targets)

        Raises
        ------
        MXLoopError
            As `Classifier.fit`.
        """
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        return self._train(X, y, 1 if self._flat else y.shape[1])

    def predict(self, X: Any) -> np.ndarray:
        """Return the targets, of the shape that `y` had; float64, as scikit-learn wants it."""
        outputs = self._outputs(X).astype(np.float64)
        return outputs.reshape(-1) if self._flat else outputs


def _check_outputs(symbol, X, wanted):
    """The network must have one output of a column a class or target."""
    inputs = {"data": X.shape} if "data" in symbol.list_arguments() else {}
    try:
        _, shapes, _ = symbol.infer_shape_partial(**inputs)
    except RuntimeError:  # the fit will tell what is wrong
        return
    known = [shape for shape in shapes or [] if shape]
    columns = [int(np.prod(shape[1:])) for shape in known]
    if columns and columns != [wanted] and 0 not in columns:
        raise ArgumentError(
            f"the network's outputs have the shapes {shown(known)}, and y has {wanted} classes or "
            f"targets; end it in one loss of {wanted} outputs, or pass a function of their number"
        )


def _validate_data(estimator, X, *y, **checks):
    """Scikit-learn's checks of input; its version 1.6 made the method a function."""
    if hasattr(validation, "validate_data"):
        return validation.validate_data(estimator, X, *y, **checks)
    return estimator._validate_data(X, *y, **checks)
