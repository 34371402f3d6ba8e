"""HistoryFile and history.py: files against the history they are of, read by others' readers."""

import csv
import json
import math

import nets
import pandas
import pytest

from mxloop import FeedForward, about, history
from mxloop.callback import Callback, Checkpoint, HistoryFile, ReduceOnPlateau
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, DataError


def fit(*callbacks, epochs=3, **settings):
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(
        nets.mlp(), nets.CPUS[:2], epochs, arg_params=args, learning_rate=0.1, momentum=0.9
    )
    x, y = nets.samples(40)
    return model.fit(
        ArrayIter(x, y, 8), eval_data=ArrayIter(x, y, 8), callbacks=callbacks, **settings
    )


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_the_file_holds_the_history_after_every_epoch(tmp_path, ending):
    path, lengths = tmp_path / f"run{ending}", []

    class Look(Callback):
        def on_epoch_end(self, state):
            lengths.append(len(history.read(path)))

    model = fit(HistoryFile(path), Look())
    assert lengths == [1, 2, 3]
    assert history.read(path) == model.history
    assert not list(tmp_path.glob("*.partial"))


def test_others_read_the_files(tmp_path):
    model = fit(HistoryFile(tmp_path / "run.jsonl"), HistoryFile(tmp_path / "run.csv"))
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == model.history
    table = pandas.read_csv(tmp_path / "run.csv")
    assert list(table["epoch"]) == [0, 1, 2]
    assert list(table["val_accuracy"]) == [row["val_accuracy"] for row in model.history]
    with open(tmp_path / "run.csv", newline="") as stream:
        columns = next(csv.reader(stream))
    assert columns[0] == "epoch"
    assert sorted(columns) == sorted(model.history[0])


def test_the_rate_of_each_epoch_is_among_the_values(tmp_path):
    plateau = ReduceOnPlateau("samples_per_second", factor=0.5, patience=1, mode="max")

    class Slower(Callback):
        def on_epoch_end(self, state):
            state.history[-1]["samples_per_second"] = 100.0 - state.epoch

    model = fit(Slower(), HistoryFile(tmp_path / "run.jsonl"), plateau)
    assert [row["learning_rate"] for row in model.history] == [0.1, 0.1, 0.05]


def test_a_resumed_run_goes_on_in_its_file(tmp_path):
    path = tmp_path / "run.jsonl"
    fit(HistoryFile(path), epochs=2, checkpoint=Checkpoint(tmp_path / "m"))
    first = path.read_text()
    fit(HistoryFile(path), epochs=4, checkpoint=Checkpoint(tmp_path / "m"), resume=True)
    assert path.read_text().startswith(first)
    assert [row["epoch"] for row in history.read(path)] == [0, 1, 2, 3]


def test_values_that_no_json_knows_come_back_as_nan(tmp_path):
    rows = [{"epoch": 0, "train_mse": math.inf, "val_mse": math.nan}, {"epoch": 1, "val_mse": 1.0}]
    history.write(tmp_path / "a.jsonl", rows)
    assert "NaN" not in (tmp_path / "a.jsonl").read_text()
    read = history.read(tmp_path / "a.jsonl")
    assert math.isnan(read[0]["train_mse"])
    assert read[1] == rows[1]


@pytest.mark.parametrize(
    "content", ["", "hello\n", "[1]\n", '{"a": 1}\n', '{"epoch": "x"}\n', "[" * 9999]
)
@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_a_file_that_is_no_history_is_one_line(tmp_path, content, ending):
    path = tmp_path / f"run{ending}"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        history.read(path)
    nets.one_line(caught)


@pytest.mark.parametrize("name", ["run.txt", "run", "jsonl"])
def test_a_path_that_does_not_tell_the_format_is_one_line(name):
    with pytest.raises(ArgumentError) as caught:
        HistoryFile(name)
    assert ".jsonl or .csv" in nets.one_line(caught)


# --- What the run is ----------------------------------------------------------------------------


def test_settings_network_and_environment_stand_beside_it(tmp_path):
    fit(HistoryFile(tmp_path / "run.jsonl"), seed=5)
    told = about.read(str(tmp_path / "run.about.json"))
    assert told["settings"]["optimizer"] == "SGD"
    assert told["settings"]["optimizer.momentum"] == 0.9
    assert told["settings"]["devices"] == "cpu(0), cpu(1)"
    assert told["settings"]["seed"] == 5
    assert told["settings"]["batches in an epoch"] == 5
    assert told["environment"]["mxnet"].startswith("1.9")
    assert told["network"][2][0] == "fc1"
    assert told["total"].startswith("244 parameters")


def test_without_it_there_is_none_and_damaged_it_is_one_line(tmp_path):
    path = str(tmp_path / "run.about.json")
    assert about.read(path) is None
    for content in ("{", "[]", '{"settings": 3}'):
        (tmp_path / "run.about.json").write_text(content)
        with pytest.raises(DataError) as caught:
            about.read(path)
        nets.one_line(caught)
