"""callback/: events, the state they read, and MXNet's bare callables, while `fit` runs."""

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal

from mxloop import FeedForward
from mxloop.callback import Callback, Speedometer, as_callbacks
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, EngineError

SGD = {"learning_rate": 0.1, "momentum": 0.9}
EVENTS = [name for name in dir(Callback) if name.startswith("on_")]


def network(epochs=2, devices=2, **settings):
    args, aux = nets.params(nets.mlp(), data=(8, 10))
    return FeedForward(
        nets.mlp(), CPUS[:devices], epochs, arg_params=args, aux_params=aux, **SGD, **settings
    )


def train_data(n=40, seed=0):
    return ArrayIter(*nets.samples(n, seed=seed), batch_size=16)


def recording(*names):
    """A callback that notes what the state says at each of these events."""

    class Recording(Callback):
        def __init__(self):
            self.seen = []

    def noting(name):
        def note(self, state, *args):
            self.seen.append((name, state.epoch, state.nbatch, state.samples, *args))

        return note

    for name in names or EVENTS:
        setattr(Recording, name, noting(name))
    return Recording()


# --- Events -------------------------------------------------------------------------------------


def test_events_come_in_order_with_the_place_where_training_stands():
    seen = recording()
    network(epochs=2).fit(train_data(), eval_data=train_data(20), callbacks=seen)
    epochs = [
        [
            ("on_epoch_begin", epoch, 0, 0),
            ("on_batch_begin", epoch, 0, 0),
            ("on_batch_end", epoch, 1, 16),
            ("on_batch_begin", epoch, 1, 16),
            ("on_batch_end", epoch, 2, 32),
            ("on_batch_begin", epoch, 2, 32),
            ("on_batch_end", epoch, 3, 40),
            ("on_eval_begin", epoch, 3, 40),
            ("on_eval_batch_end", epoch, 1, 16),
            ("on_eval_batch_end", epoch, 2, 20),
            ("on_eval_end", epoch, 2, 20),
            ("on_epoch_end", epoch, 2, 20),
        ]
        for epoch in (0, 1)
    ]
    begin, end = [("on_train_begin", 0, 0, 0)], [("on_train_end", 1, 2, 20)]
    assert seen.seen == [*begin, *epochs[0], *epochs[1], *end]


def test_several_callbacks_hear_each_event_in_their_order():
    heard = []

    class Named(Callback):
        def __init__(self, name):
            self._name = name

        def on_batch_end(self, state):
            heard.append(self._name)

    network(epochs=1).fit(train_data(16), callbacks=(Named("a"), Named("b"), Named("c")))
    assert heard == ["a", "b", "c"]


def test_where_one_callback_fails_the_others_hear_the_event_all_the_same():
    seen = recording("on_batch_end", "on_exception")

    class Fails(Callback):
        def on_batch_end(self, state):
            raise KeyError

    with pytest.raises(KeyError):
        network().fit(train_data(), callbacks=[Fails(), seen, Fails()])
    assert [event for event, *_ in seen.seen] == ["on_batch_end", "on_exception"]


def test_a_callback_may_stand_at_any_of_mxnets_doors():
    doors = ["epoch_end", "batch_end", "eval_end", "eval_batch_end"]
    seen = {f"{door}_callback": recording("on_batch_end", "on_train_end") for door in doors}
    network(epochs=1).fit(train_data(), eval_data=train_data(20), **seen)
    wanted = [("on_batch_end", 0, i, min(16 * i, 40)) for i in (1, 2, 3)]
    for callback in seen.values():
        assert callback.seen == [*wanted, ("on_train_end", 0, 2, 20)]


def test_the_state_holds_what_the_training_holds():
    held = {}

    class Look(Callback):
        def on_train_begin(self, state):
            held["span"] = (state.begin_epoch, state.num_epoch, state.stop)

        def on_batch_end(self, state):
            held["rows"] = state.data_batch.data[0].shape[0]
            held["learning_rate"] = state.optimizer.learning_rate
            held["metric"] = state.metric.get()
            held["slices"] = state.manager.slices

        def on_epoch_end(self, state):
            held["params"] = nets.numpy_of(state.arg_params)
            held["history"] = dict(state.history[-1])

    net = network(epochs=3, begin_epoch=1).fit(train_data(), callbacks=Look())
    assert held["span"] == (1, 3, False)
    assert held["rows"] == 8
    assert held["learning_rate"] == 0.1
    assert held["slices"] == [slice(0, 4), slice(4, 8)]
    assert held["metric"] == ("accuracy", net.history[-1]["train_accuracy"])
    assert held["history"] == net.history[-1]
    assert_equal(held["params"], net.arg_params)


def test_params_at_the_end_of_an_epoch_are_those_of_that_epoch():
    at_end = []

    class Keep(Callback):
        def on_epoch_end(self, state):
            at_end.append(nets.numpy_of(state.arg_params))

    network(epochs=2).fit(train_data(), callbacks=Keep())
    for epochs, params in enumerate(at_end, start=1):
        assert_equal(params, network(epochs=epochs).fit(train_data()).arg_params)


# --- MXNet's callables --------------------------------------------------------------------------

LOCALS = {
    "executor_manager",
    "data_batch",
    "eval_metric",
    "epoch",
    "nbatch",
    "symbol",
    "optimizer",
}


def test_a_batch_callback_gets_mxnets_param_with_the_promised_locals():
    params = []
    net = network(epochs=2)
    net.fit(train_data(), batch_end_callback=params.append)
    assert [(p.epoch, p.nbatch) for p in params] == [(e, n) for e in (0, 1) for n in (1, 2, 3)]
    for param in params:
        assert isinstance(param, mx.model.BatchEndParam)
        assert param.locals.keys() >= LOCALS
        assert (param.locals["epoch"], param.locals["nbatch"]) == (param.epoch, param.nbatch)
        assert param.locals["eval_metric"] is param.eval_metric
        assert param.locals["symbol"].tojson() == net.symbol.tojson()
    last = params[-1].locals
    assert isinstance(last["optimizer"], mx.optimizer.SGD)
    assert last["executor_manager"].param_names == list(net.arg_params)
    assert last["data_batch"].data[0].shape == (8, 10)


def test_the_value_inside_a_batch_callback_includes_the_present_batch():
    found, wanted = [], []
    x, y = nets.samples(40)

    class Before(Callback):
        """Predicts each batch with the parameters that it is about to be trained with."""

        def __init__(self):
            self._right = self._rows = 0

        def on_batch_begin(self, state):
            args, start = {}, 16 * state.nbatch
            state.manager.copy_to(args, {})
            probabilities = nets.mlp_outputs(args, x[start : start + 16])
            self._right += (probabilities.argmax(axis=1) == y[start : start + 16]).sum()
            self._rows += len(probabilities)
            wanted.append(self._right / self._rows)

    network(epochs=1).fit(
        train_data(),
        batch_end_callback=lambda param: found.append(param.eval_metric.get()[1]),
        callbacks=Before(),
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_metric_object_holds_the_last_epochs_value_afterwards():
    metric = mx.metric.create(["acc", "ce"])
    net = network(epochs=2).fit(
        train_data(),
        eval_metric=metric,
        eval_data=train_data(20, seed=4),
        batch_end_callback=lambda param: param.eval_metric.reset(),
    )
    row = net.history[-1]
    assert metric.get()[1] == [row["train_accuracy"], row["train_cross-entropy"]]
    assert metric.metrics[0].num_inst == 40


def test_an_epoch_callback_gets_epoch_symbol_and_parameters():
    calls = []

    def note(epoch, symbol, arg_params, aux_params):
        calls.append((epoch, symbol, {**arg_params, **aux_params}))

    net = network(epochs=2).fit(train_data(), epoch_end_callback=note)
    assert [epoch for epoch, _, _ in calls] == [0, 1]
    assert calls[-1][1].tojson() == net.symbol.tojson()
    assert calls[-1][2].keys() == net.arg_params.keys()


def test_evaluation_callbacks_get_the_evaluations_value():
    values = []
    evaluated = train_data(20, seed=4)
    net = network(epochs=2).fit(
        train_data(),
        eval_data=evaluated,
        eval_end_callback=lambda param: values.append((param.epoch, param.eval_metric.get()[1])),
    )
    assert values == [(row["epoch"], row["val_accuracy"]) for row in net.history]
    counted = []
    net.score(evaluated, batch_end_callback=lambda param: counted.append(param.nbatch))
    assert counted == [1, 2]


# --- Stopping -----------------------------------------------------------------------------------


class StopAt(Callback):
    def __init__(self, event, epoch, nbatch=None):
        setattr(self, event, self._stop)
        self._at = (epoch, nbatch)

    def _stop(self, state):
        if self._at in ((state.epoch, state.nbatch), (state.epoch, None)):
            state.stop = True


def test_stop_ends_the_training_after_the_present_batch():
    net = network(epochs=5)
    seen = recording("on_batch_end", "on_epoch_end", "on_train_end")
    net.fit(train_data(), callbacks=[seen, StopAt("on_batch_end", 1, 2)])
    assert seen.seen[-4:] == [
        ("on_batch_end", 1, 1, 16),
        ("on_batch_end", 1, 2, 32),
        ("on_epoch_end", 1, 2, 32),
        ("on_train_end", 1, 2, 32),
    ]
    assert len(net.history) == 2
    # The same five steps by their number.
    assert_equal(net.arg_params, after_steps(5))


def test_stop_at_an_epochs_end_ends_the_training_there():
    net = network(epochs=5).fit(train_data(), callbacks=StopAt("on_epoch_end", 1))
    assert [row["epoch"] for row in net.history] == [0, 1]
    assert_equal(net.arg_params, network(epochs=2).fit(train_data()).arg_params)


def test_a_stopped_training_evaluates_all_its_data():
    net = network(epochs=5)
    evaluated = train_data(50, seed=4)
    net.fit(train_data(), eval_data=evaluated, callbacks=StopAt("on_batch_end", 0, 2))
    assert len(net.history) == 1
    assert net.history[0]["val_accuracy"] == net.score(evaluated)


def after_steps(steps):
    """Parameters after so many batches of the data, in epochs of one batch each."""
    return network(epochs=steps, epoch_size=1).fit(train_data()).arg_params


# --- Nothing learned is lost --------------------------------------------------------------------


class Fails(mx.io.DataIter):
    """An iterator that raises an error instead of its fifth batch."""

    def __init__(self, error):
        super().__init__(16)
        self._inner, self._error, self._left = train_data(), error, 5
        self.provide_data, self.provide_label = self._inner.provide_data, self._inner.provide_label

    def reset(self):
        self._inner.reset()

    def next(self):
        batch = self._inner.next()
        self._left -= 1
        if not self._left:
            raise self._error
        return batch


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_iterator_that_fails_leaves_what_was_learned_in_the_model(error):
    net, seen = network(), recording("on_exception")
    with pytest.raises(type(error)):
        net.fit(Fails(error), callbacks=seen)
    assert_equal(net.arg_params, after_steps(4))
    assert [(event, epoch, raised) for event, epoch, *_, raised in seen.seen] == [
        ("on_exception", 1, error)
    ]


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("kvstore", [None, "local", "device"])
def test_a_callback_that_fails_leaves_what_was_learned_in_the_model(kvstore, error):
    def fail(param):
        if (param.epoch, param.nbatch) == (1, 2):
            raise error

    net = network()
    with pytest.raises(type(error)) as caught:
        net.fit(train_data(), kvstore=kvstore, batch_end_callback=fail)
    assert caught.value is error
    assert_close(net.arg_params, after_steps(5))
    assert len(net.history) == 1
    x, _ = nets.samples(9)
    np.testing.assert_allclose(net.predict(x), nets.mlp_outputs(net.arg_params, x), atol=1e-6)


def test_after_an_interruption_training_goes_on_from_what_was_learned():
    class Interrupt(Callback):
        def on_epoch_begin(self, state):
            if state.epoch == 2:
                raise KeyboardInterrupt

    net = network(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        net.fit(train_data(), callbacks=Interrupt())
    net.fit(train_data(), num_epoch=2)
    assert [row["epoch"] for row in net.history] == [0, 1, 2, 3]
    assert_equal(net.arg_params, network(epochs=4).fit(train_data()).arg_params)


class FailingOp(mx.operator.CustomOp):
    """The identity, until it has no training passes left and fails inside MXNet's engine."""

    left = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        FailingOp.left -= is_train
        if FailingOp.left < 0:
            raise ValueError("inside the engine")
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("failing_after_a_while")
class FailingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return FailingOp()


@pytest.mark.parametrize("behind", ["data", "act1_output"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kvstore", [None, "local"])
def test_a_failure_in_the_engine_leaves_the_last_epochs_parameters(
    monkeypatch, kvstore, devices, behind
):
    """As for want of memory on a card; the step that failed was made in part."""
    monkeypatch.setattr(FailingOp, "left", 4 * devices)  # one epoch and one batch
    symbol = nets.mlp(head=False).get_internals()["act1_output"]
    failing = mx.sym.Custom(symbol.get_internals()[behind], op_type="failing_after_a_while")
    symbol = symbol(data=failing) if behind == "data" else failing
    symbol = mx.sym.FullyConnected(symbol, num_hidden=4, name="out")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax")
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    net = FeedForward(symbol, CPUS[:devices], 2, arg_params=args, **SGD)
    with pytest.raises(EngineError) as caught:
        net.fit(train_data(), kvstore=kvstore)
    nets.one_line(caught)
    assert isinstance(caught.value.__cause__, mx.base.MXNetError)
    assert len(net.history) == 1
    mx.nd.waitall()  # nothing is left that would strike whatever runs next
    assert_close(net.arg_params, network(epochs=1, devices=1).fit(train_data()).arg_params)


# --- A user's mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "door", ["callbacks", "batch_end_callback", "epoch_end_callback", "eval_end_callback"]
)
@pytest.mark.parametrize("wrong", [3, "Speedometer", [Callback(), None], ({"a": 1},)], ids=repr)
def test_what_cannot_be_called_is_one_line(door, wrong):
    with pytest.raises(ArgumentTypeError) as caught:
        network().fit(train_data(), **{door: wrong})
    assert door in nets.one_line(caught)


def test_mxnets_callables_in_callbacks_are_one_line_that_names_the_kind_wanted():
    with pytest.raises(ArgumentTypeError) as caught:
        network().fit(train_data(), callbacks=[mx.callback.Speedometer(16)])
    assert "mxloop.callback.Callback" in nets.one_line(caught)


@pytest.mark.parametrize("frequent", [0, -1, 2.5, "10"])
def test_a_frequency_that_makes_no_sense_is_one_line(frequent):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        Speedometer(16, frequent)
    assert "frequent" in nets.one_line(caught)


def test_no_callbacks_are_an_empty_list():
    assert as_callbacks() == as_callbacks([], (), None) == []
