"""plotting.py: what stands in the pictures, read off the figures; and that files are pictures."""

import nets
import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from mxloop import history, optional
from mxloop.callback.lr_finder import Trial
from mxloop.errors import DataError, InstallError

pytest.importorskip("matplotlib")
from mxloop import plotting  # noqa: E402

PNG = b"\x89PNG\r\n"


def rows(scale=1.0, n=5):
    return [
        {
            "epoch": epoch,
            "train_accuracy": 0.5 + 0.08 * epoch * scale,
            "val_accuracy": 0.4 + 0.1 * epoch * scale,
            "train_cross-entropy": 2.0 / (1 + epoch),
            "learning_rate": 0.1 / 10**epoch,
            "samples_per_second": 1000.0 + epoch,
            "seconds": 1.0,
        }
        for epoch in range(n)
    ]


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


def test_each_metric_rate_and_speed_has_a_panel_with_title_axes_and_legend():
    found = panels(plotting.curves({"run": rows()}))
    assert list(found) == ["Cross-entropy", "Accuracy", "Learning rate", "Speed"]
    for axes in found.values():
        assert axes.get_xlabel() == "epochs done"
        assert axes.get_ylabel()
    assert found["Speed"].get_ylabel() == "samples / second"
    legend = [text.get_text() for text in found["Accuracy"].get_legend().get_texts()]
    assert legend == ["training", "validation"]
    assert found["Learning rate"].get_yscale() == "log"


def test_the_curves_are_the_values():
    found = panels(plotting.curves({"run": rows()}))
    train, val = found["Accuracy"].lines
    assert list(train.get_xdata()) == [1, 2, 3, 4, 5]
    assert list(train.get_ydata()) == [row["train_accuracy"] for row in rows()]
    assert list(val.get_ydata()) == [row["val_accuracy"] for row in rows()]


def test_runs_share_panels_and_the_legend_names_them():
    found = panels(plotting.curves({"a": rows(), "b": rows(0.5, n=3)}))
    legend = [text.get_text() for text in found["Accuracy"].get_legend().get_texts()]
    assert legend == ["a training", "a validation", "b training", "b validation"]
    colours = [line.get_color() for line in found["Accuracy"].lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert [len(line.get_xdata()) for line in found["Speed"].lines] == [5, 3]


def test_an_epoch_without_a_value_is_left_out():
    gaps = rows()
    del gaps[2]["val_accuracy"]
    found = panels(plotting.curves({"run": gaps}))
    assert list(found["Accuracy"].lines[1].get_xdata()) == [1, 2, 4, 5]


def test_a_rate_that_reaches_zero_is_on_a_linear_axis():
    ended = rows()
    ended[-1]["learning_rate"] = 0.0
    assert panels(plotting.curves({"run": ended}))["Learning rate"].get_yscale() == "linear"


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_files_are_of_the_kind_that_the_name_says(tmp_path, ending):
    path = tmp_path / f"curves{ending}"
    plotting.save(plotting.curves({"run": rows()}), path)
    start = path.read_bytes()[:500]
    assert {".png": PNG, ".svg": b"<svg", ".pdf": b"%PDF"}[ending] in start


@pytest.mark.parametrize("name", ["curves.xyz", "nowhere/curves.png"])
def test_what_cannot_be_written_is_one_line(tmp_path, name):
    with pytest.raises(DataError) as caught:
        plotting.save(plotting.curves({"run": rows()}), tmp_path / name)
    nets.one_line(caught)


def test_without_matplotlib_it_is_one_line_that_names_the_extra(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(optional.importlib, "import_module", absent)
    with pytest.raises(InstallError) as caught:
        plotting.curves({"run": rows()})
    assert "mxloop[plot]" in nets.one_line(caught)


def test_the_rates_that_were_tried_are_drawn(tmp_path):
    trials = [Trial(10.0**-i, 1.0 + i, 1.0 + i) for i in range(5)]
    plotting.draw_rates(trials, 0.01, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(PNG)


# --- Confusions and mistakes --------------------------------------------------------------------


def test_a_confusion_is_that_of_scikit_learn():
    random = np.random.RandomState(0)
    labels, predicted = random.randint(0, 7, 200), random.randint(0, 7, 200)
    expected = confusion_matrix(labels, predicted, labels=range(9))
    np.testing.assert_array_equal(plotting.confusion(labels, predicted, 9), expected)


@pytest.mark.parametrize("size", [2, 10, 40])
def test_confusions_of_any_size_are_drawn(tmp_path, size):
    counts = np.random.RandomState(0).randint(0, 20, (size, size))
    plotting.draw_confusion(counts, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("channels", [1, 3])
def test_mistakes_are_drawn_the_surest_first(tmp_path, monkeypatch, channels):
    figures = []
    monkeypatch.setattr(plotting, "save", lambda figure, path: figures.append(figure))
    images = np.random.RandomState(0).uniform(size=(5, channels, 6, 6))
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.95, 0.05], [0.3, 0.7]])
    labels = [0, 1, 1, 1, 0]  # 1, 3 and 4 are mistakes, of 0.6, 0.95 and 0.7
    assert plotting.draw_mistakes(images, labels, probabilities, "x.png", most=2) == 3
    titles = [axes.get_title() for axes in figures[0].axes]
    assert titles == ["1 as 0 (95%)", "0 as 1 (70%)"]
    title = figures[0]._suptitle.get_text()  # Python 3.8's Matplotlib has no get_suptitle
    assert "3 of 5 wrong; the 2 surest" in title


def test_where_there_are_no_mistakes_the_sheet_says_so(tmp_path):
    images, probabilities = np.zeros((2, 1, 4, 4)), np.eye(2)
    assert plotting.draw_mistakes(images, [0, 1], probabilities, tmp_path / "m.png") == 0
    assert (tmp_path / "m.png").read_bytes().startswith(PNG)


# --- The command --------------------------------------------------------------------------------


def test_the_command_draws_one_run_or_several(tmp_path, capsys):
    from mxloop import cli

    for name in ("a", "b"):
        history.write(tmp_path / f"{name}.jsonl", rows())
    out = tmp_path / "c.png"
    assert cli.main(["plot", f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", "-o", str(out)]) == 0
    assert out.read_bytes().startswith(PNG)
    assert cli.main(["plot", f"{tmp_path}/none.jsonl", "-o", str(out)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_of_one_file_name_go_by_their_paths():
    assert plotting.default_names(["x/a.jsonl", "x/b.jsonl"]) == ["a", "b"]
    assert plotting.default_names(["x/a.jsonl", "y/a.jsonl"]) == ["x/a.jsonl", "y/a.jsonl"]
