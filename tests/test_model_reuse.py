"""Models, optimizers and stores that are used again, and fits that fail."""

import numpy as np
import pytest

import mxloop
from mxloop import errors, mx

X = np.random.RandomState(0).normal(size=(33, 5))
Y = np.random.RandomState(1).randint(0, 3, 33)
TWO = [mx.cpu(0), mx.cpu(1)]


def network(name="fc"):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name=name)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def model(**settings):
    settings = {"learning_rate": 0.1, "num_epoch": 2, **settings}
    if not isinstance(settings.get("optimizer", "sgd"), str):
        del settings["learning_rate"]
    initializer = mx.init.Xavier()
    return mxloop.FeedForward(network(), numpy_batch_size=8, initializer=initializer, **settings)


def params(trained):
    return {name: array.asnumpy() for name, array in trained.arg_params.items()}


def assert_equal(one, other):
    assert set(one) == set(other)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


class Failing(mx.lr_scheduler.LRScheduler):
    """A schedule that fails at a step."""

    def __call__(self, num_update):
        if num_update >= 6:
            raise ZeroDivisionError("step 6")
        return 0.1


@pytest.mark.parametrize("kvstore", [None, "local", "device"])
def test_an_error_in_the_optimizer_ends_the_training_with_a_store_too(kvstore):
    with pytest.raises(ZeroDivisionError, match="step 6"):
        model(ctx=TWO, lr_scheduler=Failing()).fit(X, Y, kvstore=kvstore)


def rates_of(optimizer, seen):
    def note(_):
        seen.append(optimizer.learning_rate)

    return note


def test_an_optimizer_object_starts_its_schedule_anew_in_each_fit():
    schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=0.4)
    optimizer = mx.optimizer.SGD(learning_rate=0.4, lr_scheduler=schedule)
    first, second = [], []
    model(optimizer=optimizer).fit(X, Y, batch_end_callback=rates_of(optimizer, first))
    model(optimizer=optimizer).fit(X, Y, batch_end_callback=rates_of(optimizer, second))
    assert first[-1] < first[0] == 0.4
    assert second == first


def test_two_models_may_share_an_optimizer_object():
    def shared():
        schedule = mx.lr_scheduler.PolyScheduler(max_update=40, base_lr=0.4)
        return mx.optimizer.SGD(learning_rate=0.4, momentum=0.9, lr_scheduler=schedule)

    alone = model(optimizer=shared()).fit(X, Y, seed=1)
    alone.fit(X, Y, num_epoch=1)
    optimizer = shared()
    mine = model(optimizer=optimizer).fit(X, Y, seed=1)
    model(optimizer=optimizer, num_epoch=5).fit(X, Y)
    mine.fit(X, Y, num_epoch=1)
    assert_equal(params(mine), params(alone))


def test_set_params_after_a_fit_is_obeyed():
    trained = model(momentum=0.9).fit(X, Y)
    before = params(trained)
    trained.set_params(learning_rate=0.0, momentum=0.0)
    trained.fit(X, Y, num_epoch=1)
    assert_equal(params(trained), before)


def test_another_optimizer_after_a_fit_begins_with_states_of_its_own():
    trained = model(momentum=0.9).fit(X, Y, seed=1)
    fresh = model(optimizer="adam", arg_params=trained.arg_params, num_epoch=1)
    trained.set_params(optimizer="adam")
    fresh.fit(mx.io.NDArrayIter(X, Y, 8))
    trained.fit(mx.io.NDArrayIter(X, Y, 8), num_epoch=1)
    assert_equal(params(trained), params(fresh))


@pytest.mark.parametrize("mistake", [{"kvstore": "locall"}, {"y": Y * 100}])
def test_a_fit_that_made_no_step_leaves_the_model_as_it_was(mistake):
    failed = model(ctx=TWO)
    with pytest.raises(errors.MXLoopError):
        failed.fit(**{"X": X, "y": Y, "seed": 1, **mistake})
    with pytest.raises(errors.StateError, match="no parameters yet"):
        failed.predict(X)
    assert_equal(params(failed.fit(X, Y, seed=1)), params(model(ctx=TWO).fit(X, Y, seed=1)))


def test_a_mistake_after_training_loses_nothing():
    trained = model().fit(X, Y)
    before, history = params(trained), list(trained.history)
    with pytest.raises(errors.MXLoopError):
        trained.fit(X, Y, kvstore="locall")
    assert_equal(params(trained), before)
    assert trained.history == history


def test_a_model_is_saved_under_the_epochs_that_it_has_done(tmp_path):
    trained = model(num_epoch=3).fit(X, Y)
    trained.save(tmp_path / "m")
    trained.fit(X, Y, num_epoch=2)
    trained.save(tmp_path / "m")
    assert {path.name for path in tmp_path.glob("*.params")} == {"m-0003.params", "m-0005.params"}


def test_an_interrupted_model_is_saved_under_the_epochs_that_it_has_done(tmp_path):
    def stop(param):
        if param.epoch == 1:
            raise KeyboardInterrupt

    trained = model(num_epoch=10)
    with pytest.raises(KeyboardInterrupt):
        trained.fit(X, Y, batch_end_callback=stop)
    trained.save(tmp_path / "m")
    assert (tmp_path / "m-0001.params").exists()


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_that_knows_some_parameters_takes_the_others(kind):
    store = mx.kv.create(kind)
    store.init("fc_weight", mx.nd.zeros((3, 5)))
    mine = model(ctx=TWO).fit(X, Y, seed=1, kvstore=store)
    assert_equal(params(mine), params(model(ctx=TWO).fit(X, Y, seed=1, kvstore=kind)))


def test_a_store_filled_by_another_network_is_one_line():
    store = mx.kv.create("local")
    store.init("fc_weight", mx.nd.zeros((7, 2)))
    with pytest.raises(errors.DataError, match="make a new one") as told:
        model(ctx=TWO).fit(X, Y, kvstore=store)
    assert len(str(told.value)) <= 250


SETTINGS = [{"momentum": 0.9}, {"optimizer": "adam"}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("further", [True, False])
def test_training_goes_on_with_the_optimizer_states_of_a_file(tmp_path, settings, further):
    whole = model(num_epoch=4, ctx=TWO, **settings).fit(X, Y, seed=1)
    half = model(num_epoch=2, ctx=TWO, **settings).fit(X, Y, seed=1)
    half.save(tmp_path / "m", save_optimizer_states=True)
    rest = {"learning_rate": 0.1, "num_epoch": 4, "numpy_batch_size": 8, **settings}
    loaded = mxloop.FeedForward.load(tmp_path / "m", 2, TWO, load_optimizer_states=True, **rest)
    loaded.fit(X, Y, seed=1, num_epoch=2 if further else None)
    assert_equal(params(loaded), params(whole))


def test_states_that_were_not_saved_are_missed_in_one_line(tmp_path):
    model().fit(X, Y).save(tmp_path / "m")
    with pytest.raises(errors.DataError, match="save_optimizer_states=True"):
        mxloop.FeedForward.load(tmp_path / "m", 2, load_optimizer_states=True)


def test_a_file_without_a_parameter_is_refused_unless_that_is_allowed(tmp_path):
    trained = model().fit(X, Y)
    del trained.arg_params["fc_bias"]
    trained.save(tmp_path / "m")
    with pytest.raises(errors.DataError, match="fc_bias"):
        mxloop.FeedForward.load(tmp_path / "m", 2)
    loaded = mxloop.FeedForward.load(tmp_path / "m", 2, allow_missing=True)
    loaded.fit(X, Y, num_epoch=1)
    assert set(loaded.arg_params) == {"fc_weight", "fc_bias"}


def test_a_file_with_an_unknown_parameter_is_refused_unless_that_is_allowed(tmp_path):
    trained = model().fit(X, Y)
    trained.arg_params["other_weight"] = mx.nd.zeros((1,))
    trained.save(tmp_path / "m")
    with pytest.raises(errors.DataError, match="other_weight"):
        mxloop.FeedForward.load(tmp_path / "m", 2)
    loaded = mxloop.FeedForward.load(tmp_path / "m", 2, allow_extra_params=True)
    assert loaded.predict(X).shape == (33, 3)


def test_do_checkpoint_writes_over_a_saved_model(tmp_path):
    model(num_epoch=1).fit(X, Y).save(tmp_path / "m")
    save = mxloop.callback.do_checkpoint(tmp_path / "m")
    second = model(num_epoch=1).fit(X, Y, epoch_end_callback=save)
    assert_equal(params(mxloop.FeedForward.load(tmp_path / "m", 1)), params(second))


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_used_again_on_more_devices_is_one_line(kind):
    """MXNet would write beyond its buffers."""
    store, three = mx.kv.create(kind), [mx.cpu(i) for i in range(3)]
    for ctx in (mx.cpu(), TWO):
        model(ctx=ctx).fit(X, Y, kvstore=store)
    with pytest.raises(errors.ArgumentError, match="of 2 devices, and cannot do so for 3"):
        model(ctx=three).fit(X, Y, kvstore=store)
    model(ctx=TWO).fit(X, Y, kvstore=store)
