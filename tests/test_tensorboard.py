"""TensorBoard: the values that its event files hold are those of the history."""

import struct

import nets
import pytest

from mxloop import FeedForward
from mxloop.callback import Callback, Checkpoint, TensorBoard
from mxloop.data import ArrayIter

pytest.importorskip("tensorboardX")
from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: E402


def fit(*callbacks, epochs=3, **settings):
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(nets.mlp(), num_epoch=epochs, arg_params=args, learning_rate=0.1)
    x, y = nets.samples(40)
    return model.fit(
        ArrayIter(x, y, 8),
        eval_data=ArrayIter(x, y, 8),
        eval_metric=["acc", "ce"],
        callbacks=callbacks,
        **settings,
    )


def events(folder):
    """All events of a folder's files: each record is a length, 4 bytes, the event, 4 bytes."""
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(folder):
    """Values by (tag, step); a restart from a step takes those after it back."""
    found = {}
    for event in events(folder):
        if event.session_log.status == SessionLog.START and event.step:
            found = {place: value for place, value in found.items() if place[1] < event.step}
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    return found


def expected(history, kind):
    return {
        (key[len(kind) + 1 :], row["epoch"] + 1): pytest.approx(value)
        for row in history
        for key, value in row.items()
        if key.startswith(f"{kind}_")
    }


def test_training_and_validation_are_two_runs_with_the_metrics_of_the_history(tmp_path):
    model = fit(TensorBoard(tmp_path))
    assert scalars(tmp_path / "val") == expected(model.history, "val")
    found = scalars(tmp_path / "train")
    for place, value in expected(model.history, "train").items():
        assert found.pop(place) == value
    assert {tag for tag, _ in found} == {
        "seconds",
        "samples_per_second",
        "waiting",
        "learning_rate",
    }
    assert [found["learning_rate", step] for step in (1, 2, 3)] == [pytest.approx(0.1)] * 3


def test_a_resumed_run_goes_on_where_it_was_taken_up(tmp_path):
    class Fails(Callback):
        def on_epoch_end(self, state):
            if state.epoch == 2:
                raise KeyError

    with pytest.raises(KeyError):
        fit(TensorBoard(tmp_path / "tb"), Fails(), checkpoint=Checkpoint(tmp_path / "m"))
    model = fit(TensorBoard(tmp_path / "tb"), checkpoint=tmp_path / "m", resume=2, epochs=4)
    assert scalars(tmp_path / "tb" / "val") == expected(model.history, "val")
