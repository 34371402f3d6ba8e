"""`accumulate=k` is a batch k times as large: gradients add up, and one update is made of them."""

import math
import signal
from pathlib import Path

import nets
import numpy as np
import pytest
from nets import CPUS, assert_close, assert_equal, one_line
from resume_run import reference, run

from mxloop import (
    DataParallelExecutorManager,
    FeedForward,
    checkpoint,
    manifest_format,
    model,
    mx,
)
from mxloop.callback import (
    EMA,
    Callback,
    GradientClip,
    LimitBatches,
    LRFinder,
    Schedule,
    ValidateEvery,
    cosine,
)
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, ArgumentTypeError, DataError, DivergedError

SMALL, K = 4, 4
ROWS = 101  # six large batches, and five rows more: in small ones, four and one


def fitted(rows_a_batch, accumulate, devices=1, symbol=None, epochs=3, rows=ROWS, fit=(), **given):
    """A model of fixed first parameters, trained in a fixed order of samples."""
    symbol = nets.mlp() if symbol is None else symbol
    args, aux = nets.params(symbol, data=(8, 10), softmax_label=(8,))
    given.setdefault("learning_rate", 0.1)
    net = FeedForward(symbol, CPUS[:devices], epochs, arg_params=args, aux_params=aux, **given)
    data = ArrayIter(*nets.samples(rows), rows_a_batch, shuffle=True, seed=4)
    return net.fit(data, accumulate=accumulate, **dict(fit))


def assert_as_large(devices=1, atol=1e-6, callbacks=lambda: (), store=lambda: None, **settings):
    """Small batches, added up, against large ones on one device."""
    asked = {"kvstore": store(), "callbacks": callbacks()}
    small = fitted(SMALL, K, devices, fit=asked, **settings)
    asked = {"kvstore": None, "callbacks": callbacks()}
    large = fitted(SMALL * K, 1, fit=asked, **settings)
    assert_close(small.arg_params, large.arg_params, atol)
    assert_other(small, fitted(SMALL, 1, learning_rate=0.0, symbol=settings.get("symbol")))
    return small


def assert_other(one, other):
    name = "out_weight"
    assert np.abs((one.arg_params[name] - other.arg_params[name]).asnumpy()).max() > 1e-3


# --- The same numbers ---------------------------------------------------------------------------

STORES = {
    "none": lambda: None,
    "local": lambda: "local",
    "device": lambda: "device",
    "a store that updates": lambda: mx.kv.create("local"),
    "a store that updates on devices": lambda: mx.kv.create("device"),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("store", STORES)
def test_small_batches_added_up_equal_large_ones(store, devices):
    """#16969, #18659, #3283."""
    assert_as_large(devices, store=STORES[store], momentum=0.9, wd=0.01)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "nag", "momentum": 0.9},
        {"optimizer": "nadam", "learning_rate": 0.01},
        {"clip_gradient": 0.02},
        {"rescale_grad": 0.01},
    ],
    ids=str,
)
def test_with_whatever_optimizer(settings, devices):
    assert_as_large(devices, **settings)


def test_with_a_network_whose_layers_share_a_weight():
    shared = mx.sym.Variable("shared_weight")
    net = mx.sym.Variable("data")
    for i in range(2):
        net = mx.sym.FullyConnected(net, weight=shared, num_hidden=10, name=f"fc{i}")
        net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=4, name="out")
    assert_as_large(2, symbol=mx.sym.SoftmaxOutput(net, name="softmax"))


def test_the_norm_that_is_clipped_is_that_of_the_sum():
    small = assert_as_large(2, callbacks=lambda: GradientClip(0.05))
    assert_other(small, fitted(SMALL * K, 1))


def test_a_schedule_counts_updates():
    def schedule():
        return mx.lr_scheduler.MultiFactorScheduler(step=[3, 8], factor=0.3, base_lr=0.1)

    small = fitted(SMALL, K, lr_scheduler=schedule())
    large = fitted(SMALL * K, 1, lr_scheduler=schedule())
    assert_close(small.arg_params, large.arg_params)
    assert small._optimizer.num_update == large._optimizer.num_update == 3 * math.ceil(ROWS / 16)


def test_a_schedule_of_epochs_sets_the_rate_of_the_last_batch_of_an_update():
    assert_as_large(rows=96, callbacks=lambda: Schedule(cosine(3)))


def test_arrays_are_shuffled_alike():
    args, aux = nets.params(nets.mlp(), data=(8, 10), softmax_label=(8,))
    found = []
    for rows, k in ((SMALL, K), (SMALL * K, 1)):
        given = {"arg_params": args, "aux_params": aux, "learning_rate": 0.1}
        net = FeedForward(nets.mlp(), None, 2, numpy_batch_size=rows, **given)
        found.append(net.fit(*nets.samples(ROWS), seed=1, accumulate=k).arg_params)
    assert_close(*found)


def linear(rows_a_batch, accumulate, devices, store):
    """Whole numbers, rates that are powers of two: no sum is rounded."""
    random = np.random.RandomState(3)
    x = random.randint(-2, 3, (40, 3)).astype("float32")
    y = random.randint(-4, 5, (40, 1)).astype("float32")
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc")
    net = mx.sym.LinearRegressionOutput(net, mx.sym.Variable("label"), name="out")
    args = {"fc_weight": mx.nd.zeros((1, 3)), "fc_bias": mx.nd.zeros((1,))}
    model = FeedForward(
        net, CPUS[:devices], 1, arg_params=args, aux_params={}, learning_rate=1 / 16
    )
    data = ArrayIter(x, y, rows_a_batch, label_name="label")
    return model.fit(data, eval_metric="mse", kvstore=store, accumulate=accumulate).arg_params


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("store", STORES)
def test_where_sums_are_exact_all_bits_are_those_of_large_batches(store, devices):
    found = linear(SMALL, K, devices, STORES[store]())  # updates of 16, 16 and 8 rows
    assert_equal(found, linear(SMALL * K, 1, 1, None))
    assert np.abs(found["fc_weight"].asnumpy()).min() > 0.01


def test_an_epoch_of_fewer_batches_than_an_update_makes_one():
    small = fitted(SMALL, 100, rows=20)
    large = fitted(20, 1, rows=20)
    assert_close(small.arg_params, large.arg_params)
    assert small._optimizer.num_update == 3


def test_one_batch_to_an_update_is_what_it_was_to_the_bit():
    assert_equal(fitted(SMALL, 1, 2).arg_params, fitted(SMALL, np.int64(1), 2).arg_params)


def test_epoch_size_and_batches_that_are_cut_off_end_with_an_update():
    """Three small batches an epoch: updates of 8 rows, then of 4."""
    for settings in ({"epoch_size": 3}, {"fit": {"callbacks": LimitBatches(3)}}):
        net = fitted(SMALL, 2, epochs=2, rows=24, **settings)
        assert net._optimizer.num_update == 4


# --- Callbacks ----------------------------------------------------------------------------------


class Noting(Callback):
    def __init__(self):
        self.seen, self.weights = [], []

    def on_batch_end(self, state):
        self.seen.append((state.nbatch, state.updated))
        self.weights.append(state.manager.param_arrays[0][0].asnumpy())


def test_callbacks_hear_of_each_batch_and_whether_it_made_the_update():
    noting = Noting()
    fitted(SMALL, 3, epochs=1, rows=28, fit={"callbacks": noting})
    assert noting.seen == [(i, i % 3 == 0) for i in range(1, 8)]
    moved = [(b != a).any() for a, b in zip(noting.weights, noting.weights[1:])]
    assert moved == [False, True, False, False, True, False]


def test_metrics_are_those_of_all_samples():
    net = fitted(SMALL, K, learning_rate=0.0, epochs=1)
    assert net.history[0]["train_accuracy"] == net.score(*nets.samples(ROWS))


@pytest.mark.parametrize("rows", [96, ROWS])
def test_the_moving_average_is_over_updates_those_of_epochs_ends_among_them(rows):
    seen = {}
    for size, k in ((SMALL, K), (SMALL * K, 1)):
        fit = {"eval_data": nets.samples(30, seed=5), "callbacks": EMA(0.9)}
        net = fitted(size, k, rows=rows, fit=fit)
        seen[k] = net.arg_params, [row["val_accuracy"] for row in net.history]
    assert_close(seen[K][0], seen[1][0])
    assert seen[K][1] == seen[1][1]


def test_an_evaluation_between_two_batches_of_an_update_changes_nothing():
    looked = {"eval_data": nets.samples(30, seed=5), "callbacks": ValidateEvery(3)}
    for symbol in (nets.mlp(), batch_normalised()):
        plain, found = (fitted(SMALL, K, 2, symbol, fit=fit) for fit in ({}, looked))
        assert_equal(found.arg_params, plain.arg_params)
        assert_equal(found.aux_params, plain.aux_params)


def batch_normalised():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn"), act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=4, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def test_rates_are_tried_one_an_update_and_losses_are_those_of_its_batches():
    finders = LRFinder(1e-3, 1e-1, steps=12), LRFinder(1e-3, 1e-1, steps=12)
    fitted(SMALL, K, rows=96, fit={"callbacks": finders[0]})
    fitted(SMALL * K, 1, rows=96, fit={"callbacks": finders[1]})
    for small, large in zip(finders[0].trials, finders[1].trials):
        np.testing.assert_allclose(small, large, rtol=1e-4)
    assert len(finders[0].trials) == len(finders[1].trials) == 12


class StopAfter(Callback):
    def __init__(self, batch):
        self.batch, self.last = batch, None

    def on_batch_end(self, state):
        self.last = state.nbatch
        state.stop = state.stop or state.nbatch == self.batch


def test_a_stop_waits_for_the_update():
    stop = StopAfter(6)
    net = fitted(SMALL, K, fit={"callbacks": stop})
    assert stop.last == 8 and net._optimizer.num_update == 2
    assert_close(
        net.arg_params, fitted(16, 1, fit={"callbacks": LimitBatches(2)}, epochs=1).arg_params
    )


class Broken(Callback):
    """Puts NaN into one row of one batch."""

    def __init__(self, batch, row):
        self.batch, self.row = batch, row

    def on_batch_begin(self, state):
        if state.nbatch + 1 == self.batch:
            data = state.data_batch.data[0].copy()
            data[self.row] = math.nan
            state.data_batch = nets.batch(data.asnumpy(), state.data_batch.label[0].asnumpy())


@pytest.mark.parametrize(("row", "device"), [(0, "cpu(0)"), (3, "cpu(1)")])
def test_the_guard_names_the_batch_and_the_device_that_diverged(row, device):
    """In the middle of the second update."""
    with pytest.raises(DivergedError) as caught:
        fitted(SMALL, K, 2, fit={"callbacks": Broken(6, row)})
    assert f"on {device} is NaN or infinite in epoch 0, batch 6" in one_line(caught)


# --- Ends that come early, and going on ---------------------------------------------------------


class Failing(Callback):
    def on_batch_end(self, state):
        if state.nbatch == 6:
            raise KeyboardInterrupt


@pytest.mark.parametrize("store", ["none", "a store that updates"])
def test_what_was_gathered_when_the_training_ends_early_is_in_the_model(store):
    args, aux = nets.params(nets.mlp(), data=(8, 10), softmax_label=(8,))
    net = FeedForward(
        nets.mlp(), CPUS[:2], 1, arg_params=args, aux_params=aux, learning_rate=0.1, momentum=0.9
    )
    data = ArrayIter(*nets.samples(ROWS), SMALL, shuffle=True, seed=4)
    with pytest.raises(KeyboardInterrupt):
        net.fit(data, kvstore=STORES[store](), callbacks=Failing(), accumulate=K)
    cut = {"callbacks": LimitBatches(6), "kvstore": STORES[store]()}
    whole = fitted(SMALL, K, 2, epochs=1, momentum=0.9, fit=cut)
    assert_equal(net.arg_params, whole.arg_params)
    assert {number for _, number in net._states.values()} == {2}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# Six batches an epoch: updates of four and of two. Steps 6 and 12 are the last of an epoch.
@pytest.mark.parametrize(
    ("step", "devices", "optimizer"),
    [(n, 1 + n % 2, "adam" if n % 3 else "sgd") for n in (1, 2, 3, 4, 5, 6, 9, 11, 12, 14)],
)
def test_a_run_resumes_from_within_an_update_to_the_bit(tmp_path, step, devices, optimizer):
    settings = {"devices": devices, "optimizer": optimizer, "accumulate": 4}
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=step, **settings) is None
    found = checkpoint.newest(prefix)
    within = (step - 1) % 6 + 1
    assert found.manifest["gathered"]["batches"] == within % 4
    assert (found.epoch, found.batch) == ((step - 1) // 6, within)
    mx.random.seed(step)
    assert_same(run(prefix, resume=True, **settings), reference(**settings))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_batch_and_the_run_resumes_there(tmp_path, number):
    prefix = str(tmp_path / "m")
    with pytest.raises(KeyboardInterrupt):
        run(prefix, stop_at=9, signal_number=int(number), accumulate=4)
    assert checkpoint.generations(prefix)[0] == (1, 3)
    assert_same(run(prefix, resume=True, accumulate=4), reference(accumulate=4))


def test_checkpoints_within_updates_do_not_change_a_run_and_each_serves(tmp_path):
    prefix = str(tmp_path / "m")
    assert_same(
        run(prefix, every=1, accumulate=4, num_epoch=2), reference(accumulate=4, num_epoch=2)
    )
    for place in checkpoint.generations(prefix)[:9]:
        checkpoint.remove(prefix, *place)
    assert checkpoint.newest(prefix).manifest["gathered"]["batches"] > 0
    again = run(prefix, resume=True, accumulate=4, num_epoch=2)
    assert_same(again, reference(accumulate=4, num_epoch=2))


@pytest.mark.parametrize("stop_at", [5, 6, 7])
def test_a_moving_average_resumes_to_the_bit(tmp_path, stop_at):
    """Also where the update of an epoch's end is still to come."""

    def go(**more):
        fit = {"callbacks": [EMA(0.8)], "seed": 2, "eval_data": nets.samples(20), **more}
        return fitted(SMALL, 4, epochs=2, rows=24, fit=fit)

    class Stop(Callback):
        def on_batch_end(self, state):
            if state.epoch * 6 + state.nbatch == stop_at:
                raise KeyboardInterrupt

    wanted = go()
    with pytest.raises(KeyboardInterrupt):
        go(callbacks=[EMA(0.8), Stop()], checkpoint=tmp_path / "m")
    found = go(checkpoint=tmp_path / "m", resume=True)
    assert_equal(found.arg_params, wanted.arg_params)
    assert [row["val_accuracy"] for row in found.history] == [
        row["val_accuracy"] for row in wanted.history
    ]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_gathered_gradients_go_to_other_devices(tmp_path, before, after, caplog):
    prefix = str(tmp_path / "m")
    kept = {"checkpoint": prefix, "seed": 1}
    with pytest.raises(KeyboardInterrupt):
        fitted(SMALL, K, before, fit={"callbacks": Failing(), **kept})
    found = fitted(SMALL, K, after, fit={"resume": True, **kept})
    assert "equal to rounding" in caplog.text
    assert_close(found.arg_params, fitted(SMALL * K, 1, fit={"seed": 1}).arg_params)


def test_resuming_within_an_update_of_another_size_is_one_line(tmp_path, caplog):
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=9, accumulate=4) is None
    with pytest.raises(DataError) as caught:
        run(prefix, resume=True, accumulate=2)
    assert "is 3 batches into an update of 4, and accumulate is 2" in one_line(caught)
    assert run(prefix, resume=1, accumulate=2) is not None  # between two updates it goes on
    assert "makes an update of 2 batches, the run before made one of 4" in caplog.text


def test_a_checkpoint_from_before_there_was_accumulate_is_resumed(tmp_path):
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=9) is None
    path = Path(f"{checkpoint.stem(prefix, 1, 3)}.json")
    manifest = manifest_format.decode(path.read_bytes())
    del manifest["gathered"]
    path.write_bytes(manifest_format.encode(manifest))
    assert_same(run(prefix, resume=True), reference())


# --- Loops of one's own -------------------------------------------------------------------------


def bound(rows, **settings):
    manager = DataParallelExecutorManager(nets.mlp(), CPUS[:2], nets.described(rows), **settings)
    manager.set_params(nets.params(nets.mlp(), data=(8, 10))[0], {})
    return manager


def trained_by_hand(rows, accumulate):
    manager = bound(rows)
    update = model.Update(manager, mx.optimizer.SGD(learning_rate=0.1), accumulate=accumulate)
    for _ in range(2):
        for batch in nets.batches(*nets.samples(ROWS), rows):
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            update()
        update.finish()
        assert update.waiting == 0
    args = {}
    manager.copy_to(args, {})
    return args


def test_an_update_adds_up_in_a_loop_of_ones_own():
    assert_close(trained_by_hand(SMALL, K), trained_by_hand(SMALL * K, 1))


def test_train_makes_an_update_of_what_is_left_at_an_epochs_end():
    found = []
    for rows, k in ((SMALL, K), (SMALL * K, 1)):
        manager = bound(rows)
        update = model.Update(manager, mx.optimizer.SGD(learning_rate=0.1), accumulate=k)
        model.train(manager, update, ArrayIter(*nets.samples(ROWS), rows), 2)
        found.append({})
        manager.copy_to(found[-1], {})
    assert_close(*found)


def test_a_manager_that_adds_up_gradients_itself_is_one_line():
    with pytest.raises(ArgumentError) as caught:
        model.Update(bound(SMALL, grad_req="add"), mx.optimizer.SGD(), accumulate=2)
    assert "bind it with grad_req='write'" in one_line(caught)


# --- A user's mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", None])
def test_what_is_no_number_of_batches_is_one_line_before_a_step(value):
    net = FeedForward(nets.mlp(), num_epoch=1)
    kind = ArgumentError if value in (0, -1) else ArgumentTypeError
    kind = ArgumentTypeError if value is True else kind
    for wrong in (
        lambda: net.fit(*nets.samples(8), accumulate=value),
        lambda: model.Update(bound(SMALL), mx.optimizer.SGD(), accumulate=value),
    ):
        with pytest.raises(kind) as caught:
            wrong()
        assert one_line(caught).startswith(f"accumulate is {value!r}; it must be an integer of at")
    assert net.arg_params is None
