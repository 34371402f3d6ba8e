"""A resumed run equals the one that was never interrupted, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from resume_run import BATCH, ROWS, Stop, data, network, run

import mxloop
from mxloop import checkpoint, errors, mx
from mxloop.callback import Checkpoint

SCRIPT = Path(__file__).with_name("resume_run.py")
STEPS = {"keep": 24, "pad": 24, "roll_over": 21, "discard": 20}


def assert_same(mine, reference):
    assert set(mine) == set(reference)
    for name, value in reference.items():
        assert np.array_equal(mine[name], value), name


_references = {}


def reference(**settings):
    key = tuple(sorted(settings.items()))
    if key not in _references:
        _references[key] = run(None, **settings)
    return _references[key]


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


def test_only_the_newest_are_kept_and_the_best_besides(tmp_path):
    class Values(mxloop.callback.Callback):
        """Gives the epochs values of which the second is best."""

        def on_epoch_end(self, state):
            state.history[-1]["val_x"] = (1.0, 3.0, 2.0, 2.5, 0.5)[state.epoch]

    keeper = Checkpoint(tmp_path / "m", keep=2, best="val_x")
    model = mxloop.FeedForward(network(), num_epoch=5, learning_rate=0.01)
    model.fit(data("keep"), seed=7, callbacks=Values(), checkpoint=keeper)
    assert checkpoint.generations(tmp_path / "m") == [(5, 0), (4, 0), (2, 0)]
    assert keeper.best_epoch == 2


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
