"""A resumed run equals the one that was never interrupted, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nets
import numpy as np
import pytest
from nets import one_line
from resume_run import BATCH, ROWS, Stop, data, network, reference, run, stopper

import mxloop
from mxloop import checkpoint, errors, mx
from mxloop.callback import Checkpoint

SCRIPT = Path(__file__).with_name("resume_run.py")
STEPS = {"keep": 24, "pad": 24, "roll_over": 21, "discard": 20}


def assert_same(mine, reference):
    assert set(mine) == set(reference)
    for name, value in reference.items():
        assert np.array_equal(mine[name], value), name


def in_new_process(tmp_path, **settings):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    environ = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_checkpoints_do_not_change_a_run(tmp_path):
    assert_same(run(str(tmp_path / "m"), every=2), reference())


def positions():
    chosen, found = random.Random(8), []
    for n in range(30):
        last_batch = ("keep", "roll_over", "pad", "discard")[n % 4]
        optimizer, devices = ("sgd", "adam")[n // 4 % 2], 1 + n // 8 % 2
        last = STEPS[last_batch] - 1
        step = last if n % 10 == 0 else 6 if n % 10 == 1 else chosen.randint(1, last)
        found.append((last_batch, optimizer, devices, step))
    return found


@pytest.mark.parametrize(("last_batch", "optimizer", "devices", "step"), positions())
def test_a_run_resumes_from_any_batch(tmp_path, last_batch, optimizer, devices, step):
    settings = {"last_batch": last_batch, "optimizer": optimizer, "devices": devices}
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=step, **settings) is None
    np.random.seed(step)
    mx.random.seed(step)
    assert_same(run(prefix, resume=True, **settings), reference(**settings))


@pytest.mark.parametrize(("step", "devices"), [(5, 1), (6, 2), (15, 2)])
def test_a_run_resumes_in_a_new_process(tmp_path, step, devices):
    prefix, out = str(tmp_path / "m"), str(tmp_path / "out.npz")
    assert run(prefix, stop_at=step, devices=devices) is None
    done = in_new_process(tmp_path, prefix=prefix, resume=True, devices=devices, out=out)
    assert done.returncode == 0, done.stderr
    with np.load(out) as result:
        assert_same(dict(result), reference(devices=devices))


@pytest.mark.parametrize("devices", [1, 3, 4])
def test_a_run_on_two_devices_resumes_on_others_and_says_so(tmp_path, caplog, devices):
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=24, devices=2) is None
    found = checkpoint.newest(prefix)
    model = mxloop.FeedForward(
        network(),
        ctx=[mx.cpu(i) for i in range(devices)],
        num_epoch=5,
        learning_rate=0.05,
        momentum=0.9,
        wd=1e-3,
    )
    with pytest.raises(errors.DataError, match="counted accuracy, cross-entropy"):
        model.fit(data("keep"), checkpoint=prefix, resume=True, seed=7)
    metric = ["acc", "ce"]
    model.fit(data("keep"), eval_metric=metric, checkpoint=prefix, resume=True, seed=7)
    assert [row["epoch"] for row in model.history] == [0, 1, 2, 3, 4]
    assert (found.epoch, found.batch) == (3, 6)
    assert "equal to rounding" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step_with_a_checkpoint_and_the_old_handlers(tmp_path, number):
    prefix, before = str(tmp_path / "m"), signal.getsignal(number)
    kind = KeyboardInterrupt if number == signal.SIGINT else errors.Terminated
    with pytest.raises(kind, match="learned so far"):
        run(prefix, stop_at=8, signal_number=int(number))
    assert signal.getsignal(number) is before
    assert checkpoint.generations(prefix)[0] == (1, 2)
    assert_same(run(prefix, resume=True), reference())


def test_terminated_is_a_keyboard_interrupt_and_no_ordinary_exception():
    assert issubclass(errors.Terminated, KeyboardInterrupt)
    assert not issubclass(errors.Terminated, Exception)


def test_a_thread_that_is_not_the_main_one_trains_without_handlers(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(str(tmp_path / "m"))))
    thread.start()
    thread.join(120)
    assert_same(results[0], reference())


def test_auto_begins_anew_and_then_resumes(tmp_path):
    prefix = str(tmp_path / "m")
    assert run(prefix, resume="auto", stop_at=9) is None
    assert_same(run(prefix, resume="auto"), reference())


def test_resuming_a_finished_run_returns_at_once(tmp_path):
    prefix = str(tmp_path / "m")
    run(prefix)
    assert_same(run(prefix, resume=True, stop_at=1), reference())


def test_a_number_resumes_after_so_many_epochs(tmp_path):
    prefix = str(tmp_path / "m")
    run(prefix)
    assert_same(run(prefix, resume=2), reference())


def test_a_broken_newest_checkpoint_is_passed_over(tmp_path, caplog):
    prefix = str(tmp_path / "m")
    run(prefix)
    (tmp_path / "m-0004.states").write_bytes(b"")
    assert_same(run(prefix, resume=True), reference())
    assert caplog.text.count("passed over") == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"resume": True}, "resume needs checkpoint="),
        ({"resume": True, "checkpoint": "nowhere"}, "no valid checkpoint"),
        ({"resume": "yes", "checkpoint": "m"}, "'auto'"),
        ({"resume": 3, "checkpoint": "m"}, "m-symbol.json"),
        ({"checkpoint": 5}, "prefix"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, settings, text):
    monkeypatch.chdir(tmp_path)
    model = mxloop.FeedForward(network(), num_epoch=1)
    with pytest.raises(errors.MXLoopError, match=text) as told:
        model.fit(data("keep"), **settings)
    assert len(str(told.value)) <= 250
    assert "\n" not in str(told.value)


def test_an_iterator_without_state_is_read_again_to_its_place(tmp_path, caplog):
    rng = np.random.RandomState(5)
    x, y = rng.normal(size=(ROWS, 6)).astype("float32"), rng.randint(0, 4, ROWS).astype("float32")

    def fit(stop_at=None, **settings):
        model = mxloop.FeedForward(network(), num_epoch=3, learning_rate=0.05, momentum=0.9)
        steps = []

        def stop(_):
            steps.append(1)
            if len(steps) == stop_at:
                raise Stop

        model.fit(mx.io.NDArrayIter(x, y, BATCH), seed=7, batch_end_callback=stop, **settings)
        return {name: array.asnumpy() for name, array in model.arg_params.items()}

    whole = fit()
    with pytest.raises(Stop):
        fit(stop_at=9, checkpoint=str(tmp_path / "m"))
    assert_same(fit(checkpoint=str(tmp_path / "m"), resume=True), whole)
    assert caplog.text.count("read again") == 1


class Halving(mx.lr_scheduler.LRScheduler):
    """A schedule of somebody's own, with numbers in all that may hold them."""

    def __init__(self):
        super().__init__(base_lr=np.float32(0.1))
        self.steps, self.seen = [3, 8, 14], {}
        self.within = mx.lr_scheduler.FactorScheduler(2, 0.9, base_lr=0.5)

    def __call__(self, num_update):
        self.seen[num_update] = 1
        if self.steps and num_update > self.steps[0]:
            self.steps.pop(0)
            self.base_lr = self.base_lr * np.float32(0.5)
        return float(self.base_lr) * self.within(num_update) * (1 + 0.01 * len(self.seen))


def shuffled():
    """MXNet's iterator, which draws its order anew in each epoch, from NumPy's global state."""
    rng = np.random.RandomState(5)
    x, y = rng.normal(size=(ROWS, 6)).astype("float32"), rng.randint(0, 4, ROWS).astype("float32")
    np.random.seed(3)
    return mx.io.NDArrayIter(x, y, BATCH, shuffle=True)


WAYS = {
    "a schedule of one's own": ({"lr_scheduler": Halving}, {}, None),
    "a factor": ({"lr_scheduler": lambda: mx.lr_scheduler.FactorScheduler(3, 0.5)}, {}, None),
    "NumPy's rate": ({"learning_rate": lambda: np.float32(0.07)}, {}, None),
    "a monitor": ({}, {"monitor": lambda: mx.mon.Monitor(3)}, None),
    "epochs of 4 batches": ({"epoch_size": lambda: 4}, {}, None),
    "epochs of 8 batches": ({"epoch_size": lambda: 8}, {}, None),
    "MXNet's shuffling iterator": ({}, {}, shuffled),
    "nadam": ({"optimizer": lambda: "nadam", "momentum": None}, {}, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_another_kind_resumes_too(tmp_path, way):
    own, told, source = WAYS[way]

    def fit(stop_at=None, **settings):
        keywords = {"learning_rate": 0.05, "momentum": 0.9}
        keywords.update({name: value and value() for name, value in own.items()})
        keywords = {name: value for name, value in keywords.items() if value is not None}
        model = mxloop.FeedForward(network(), num_epoch=3, **keywords)
        settings.update({name: value() for name, value in told.items()})
        stop = stopper(stop_at, None)
        batches = source() if source else data("keep")
        model.fit(batches, seed=7, batch_end_callback=stop, **settings)
        return {name: array.asnumpy() for name, array in model.arg_params.items()}

    whole, prefix = fit(), str(tmp_path / "m")
    with pytest.raises(Stop):
        fit(stop_at=9, checkpoint=prefix)
    assert_same(fit(checkpoint=prefix, resume=True), whole)


def test_other_rates_than_the_run_began_with_are_told_of_and_not_used(tmp_path, caplog):
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=9) is None
    model = mxloop.FeedForward(
        network(),
        num_epoch=4,
        learning_rate=0.5,
        momentum=0.9,
        wd=1e-3,
        initializer=mx.init.Xavier(),
    )
    settings = {"eval_data": data("keep"), "eval_metric": ["acc", "ce"], "checkpoint": prefix}
    model.fit(data("keep"), seed=7, resume=True, **settings)
    assert "keeps the lr of its own" in caplog.text
    found = {**model.arg_params, **model.aux_params}
    for name, value in found.items():
        assert np.array_equal(value.asnumpy(), reference()[name]), name


def stepped(**settings):
    return mx.lr_scheduler.MultiFactorScheduler([3], **settings)


OTHERS = {
    "a deeper network": (
        {"symbol": lambda: nets.mlp((5, 5), 4)},
        {"symbol": lambda: nets.mlp((5,), 4)},
        "fc2_weight",
    ),
    "a schedule": ({"lr_scheduler": stepped}, {}, "lr_scheduler"),
    "no schedule": ({}, {"lr_scheduler": stepped}, "lr_scheduler"),
    "another schedule": (
        {"lr_scheduler": lambda: mx.lr_scheduler.PolyScheduler(9)},
        {"lr_scheduler": stepped},
        "lr_scheduler",
    ),
    "another optimizer": ({"optimizer": lambda: "adam"}, {}, "optimizer"),
    "another size of batches": ({"numpy_batch_size": lambda: 7}, {}, "batch_size"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_run_with_something_else_is_not_resumed(tmp_path, what):
    after, before, text = OTHERS[what]
    rng = np.random.RandomState(5)
    x, y = rng.normal(size=(ROWS, 5)), rng.randint(0, 4, ROWS)
    for num_epoch, own in ((1, before), (2, after)):
        settings = {"symbol": network, "learning_rate": lambda: 0.01, **own}
        model = mxloop.FeedForward(
            num_epoch=num_epoch, **{name: value() for name, value in settings.items()}
        )
        if num_epoch == 1:
            model.fit(x, y, checkpoint=tmp_path / "m")
    with pytest.raises(errors.DataError, match=text) as told:
        model.fit(x, y, checkpoint=tmp_path / "m", resume=True)
    one_line(told)


def test_a_folder_that_is_not_there_is_told_of_before_a_step(tmp_path):
    model = mxloop.FeedForward(network(), num_epoch=1)
    steps = []
    with pytest.raises(errors.DataError, match="no folder"):
        model.fit(data("keep"), checkpoint=tmp_path / "no" / "m", batch_end_callback=steps.append)
    assert not steps


def test_shorter_epochs_than_the_place_to_resume_are_one_line(tmp_path):
    prefix = str(tmp_path / "m")
    assert run(prefix, stop_at=5) is None
    model = mxloop.FeedForward(network(), num_epoch=4, epoch_size=3)
    with pytest.raises(errors.ArgumentError, match="epoch_size is 3") as told:
        model.fit(data("keep"), eval_metric=["acc", "ce"], checkpoint=prefix, resume=True)
    one_line(told)


class Forgetful(mxloop.callback.Callback):
    """Remembers what no file can hold."""

    def state_dict(self):
        return {"net": network}


def test_a_callbacks_state_that_no_file_holds_is_one_line_and_hides_no_other_error(
    tmp_path, caplog
):
    model = mxloop.FeedForward(network(), num_epoch=1)
    settings = {"callbacks": Forgetful(), "checkpoint": tmp_path / "m"}
    with pytest.raises(errors.ArgumentTypeError, match="state_dict") as told:
        model.fit(data("keep"), **settings)
    one_line(told)
    with pytest.raises(Stop):
        model.fit(data("keep"), batch_end_callback=stopper(2, None), **settings)
    assert "no checkpoint of the end" in caplog.text


class Unfit(mxloop.callback.Callback):
    def load_state_dict(self, state):
        state["nothing"]


def test_a_state_that_does_not_fit_a_callback_is_one_line(tmp_path):
    fit_with(tmp_path / "m", num_epoch=1)
    model = mxloop.FeedForward(network(), num_epoch=2, learning_rate=0.01)
    settings = {"checkpoint": tmp_path / "m", "callbacks": Unfit()}
    model.fit(data("keep"), seed=7, **settings)
    with pytest.raises(errors.DataError, match="callback Unfit") as told:
        model.fit(data("keep"), resume=True, **settings)
    one_line(told)


def test_parameters_that_a_function_changes_at_an_epochs_end_are_saved(tmp_path):
    class Clip(mxloop.callback.Callback):
        def on_epoch_end(self, state):
            args = {name: array.clip(-0.1, 0.1) for name, array in state.arg_params.items()}
            state.manager.set_params(args, state.aux_params)

    model = mxloop.FeedForward(network(), num_epoch=1, initializer=mx.init.Uniform(1))
    model.fit(data("keep"), callbacks=Clip(), checkpoint=tmp_path / "m")
    saved = checkpoint.newest(tmp_path / "m").arg_params
    assert all(abs(array.asnumpy()).max() <= 0.1001 for array in saved.values())


def test_at_an_epochs_end_nothing_is_copied_twice(tmp_path, monkeypatch):
    calls, copy_to = [], mxloop.DataParallelExecutorManager.copy_to
    counting = lambda *args: calls.append(1) or copy_to(*args)  # noqa: E731
    monkeypatch.setattr(mxloop.DataParallelExecutorManager, "copy_to", counting)
    fit_with(tmp_path / "m", num_epoch=3)
    assert len(calls) == 3


class Values(mxloop.callback.Callback):
    """Gives the epochs accuracies of its own."""

    def __init__(self, *values):
        self.values = values

    def on_epoch_end(self, state):
        state.history[-1]["train_accuracy"] = self.values[state.epoch]


def fit_with(keeper, *values, num_epoch=None, **settings):
    model = mxloop.FeedForward(network(), num_epoch=num_epoch or len(values), learning_rate=0.01)
    told = Values(*values) if values else None
    return model.fit(data("keep"), seed=7, callbacks=told, checkpoint=keeper, **settings)


def test_only_the_newest_are_kept_and_the_best_besides(tmp_path):
    keeper = Checkpoint(tmp_path / "m", keep=2, best="train_accuracy")
    fit_with(keeper, float("nan"), 3.0, 2.0, 2.5, 0.5)
    assert checkpoint.generations(tmp_path / "m") == [(5, 0), (4, 0), (2, 0)]
    assert keeper.best_epoch == 2
    fit_with(keeper, 1.0)
    assert keeper.best_epoch == 1  # of the new training


def test_the_best_may_be_the_least(tmp_path):
    keeper = Checkpoint(tmp_path / "m", keep=1, best="train_accuracy", mode="min")
    fit_with(keeper, 2.0, 1.0, 3.0)
    assert checkpoint.generations(tmp_path / "m") == [(3, 0), (2, 0)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"best": "val_accuracy", "mode": "least"}, "max"),
        ({"best": "loss_of_some_kind"}, "pass mode="),
        ({"best": 5}, "5"),
        ({"mode": "least"}, "max"),
        ({"keep": 0}, "keep is 0"),
        ({"keep": -1}, "keep is -1"),
        ({"every_n_batches": 0}, "every_n_batches is 0"),
        ({"every_n_epochs": 0}, "every_n_epochs is 0"),
        ({"prefix": None}, "None"),
        ({"prefix": "a\0b"}, "NUL"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(settings, text):
    with pytest.raises(errors.MXLoopError, match=text) as told:
        Checkpoint(**{"prefix": "m", **settings})
    one_line(told)


def test_the_best_by_what_is_not_measured_is_one_line(tmp_path):
    with pytest.raises(errors.MXLoopError, match="val_accuracy"):
        fit_with(Checkpoint(tmp_path / "m", best="val_accuracy"), num_epoch=1)
    assert not list(tmp_path.iterdir())


def test_a_run_begun_anew_overtakes_what_an_older_one_left(tmp_path):
    fit_with(tmp_path / "m", num_epoch=4)
    mine = fit_with(Checkpoint(tmp_path / "m", keep=2), num_epoch=2)
    assert checkpoint.generations(tmp_path / "m") == [(2, 0), (1, 0)]
    nets.assert_equal(checkpoint.newest(tmp_path / "m").arg_params, mine.arg_params)


def test_a_model_saved_beside_is_neither_resumed_from_nor_removed(tmp_path):
    keeper = Checkpoint(tmp_path / "m", keep=1)
    fit_with(keeper, num_epoch=2).save(tmp_path / "m", 9)
    model = fit_with(keeper, num_epoch=3, resume=True)
    assert [row["epoch"] for row in model.history] == [0, 1, 2]
    assert checkpoint.generations(tmp_path / "m") == [(3, 0), (9, 0)]


def test_checkpoints_come_every_n_batches(tmp_path):
    run(str(tmp_path / "m"), every=2, num_epoch=1)
    assert checkpoint.generations(tmp_path / "m") == [(1, 0), (0, 6), (0, 4), (0, 2)]


def test_a_disk_that_fails_at_the_end_does_not_hide_what_ended_the_run(tmp_path, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    model = mxloop.FeedForward(network(), num_epoch=1, learning_rate=0.01)

    def fail(_):
        folder.rmdir()
        raise Stop

    with pytest.raises(Stop):
        model.fit(data("keep"), checkpoint=folder / "m", batch_end_callback=fail)
    assert "no checkpoint of the end" in caplog.text
