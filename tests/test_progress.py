"""Progress: a bar on a terminal, lines elsewhere with the same values, silence on request."""

import io
import logging
import re

import nets
import pytest

from mxloop import FeedForward, optional
from mxloop.callback import Callback, Progress
from mxloop.data import ArrayIter
from mxloop.errors import InstallError

tqdm = pytest.importorskip("tqdm")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit(*callbacks, epochs=2, **settings):
    args, _ = nets.params(nets.mlp(), data=(8, 10))
    model = FeedForward(nets.mlp(), num_epoch=epochs, arg_params=args, learning_rate=0.1)
    return model.fit(ArrayIter(*nets.samples(44), 8), callbacks=callbacks, **settings)


def test_a_terminal_sees_a_bar_an_epoch_that_ends_full_with_the_epochs_values():
    stream = Terminal()
    model = fit(Progress(stream=stream))
    bars = [part.split("\r")[-1] for part in stream.getvalue().split("\n") if part]
    assert len(bars) == 2
    for row, bar in zip(model.history, bars):
        assert bar.startswith(f"Epoch {row['epoch'] + 1}/2: 100%|")
        assert "6/6" in bar
        assert f"accuracy={row['train_accuracy']:.4f}" in bar
        assert f"samples/sec={row['samples_per_second']:.0f}" in bar


def test_a_file_gets_a_line_every_so_many_batches_with_the_values_so_far(capsys):
    values = []

    class Values(Callback):
        def on_batch_end(self, state):
            if state.nbatch % 3 == 0:
                values.append(state.metric.get()[1])

    fit(Values(), Progress(frequent=3, stream=io.StringIO()))
    pattern = r"^Epoch\[(\d)\] Batch \[(\d)/6\]\taccuracy=([\d.]+)\tsamples/sec=(\d+)$"
    lines = re.findall(pattern, capsys.readouterr().out, re.MULTILINE)
    assert [line[:2] for line in lines] == [("0", "3"), ("0", "6"), ("1", "3"), ("1", "6")]
    assert [float(line[2]) for line in lines] == pytest.approx(values, abs=5e-5)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_raised_log_level_silences_both(capsys, stream):
    shown = stream()
    logging.getLogger("mxloop").setLevel(logging.WARNING)
    try:
        fit(Progress(frequent=1, stream=shown))
    finally:
        logging.getLogger("mxloop").setLevel(logging.NOTSET)
    output = capsys.readouterr()
    assert (shown.getvalue(), output.out, output.err) == ("", "", "")


def test_the_bar_is_closed_where_the_training_fails():
    class Fails(Callback):
        def on_batch_end(self, state):
            if state.nbatch == 2:
                raise KeyError

    stream = Terminal()
    with pytest.raises(KeyError):
        fit(Progress(stream=stream), Fails())
    assert stream.getvalue().endswith("\n")


def test_the_metric_is_not_read_at_every_batch(monkeypatch):
    """Reading waits for the devices."""
    reads = []
    found = lambda metric: reads.append(1) or [("accuracy", 0.5)]  # noqa: E731
    monkeypatch.setattr("mxloop.callback.progress.named_values", found)
    monkeypatch.setattr("mxloop.callback.progress.SECONDS", 1e9)
    fit(Progress(stream=Terminal()))
    assert not reads


def test_without_tqdm_a_terminal_is_one_line_that_names_the_extra(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(optional.importlib, "import_module", absent)
    with pytest.raises(InstallError) as caught:
        fit(Progress(stream=Terminal()))
    assert "mxloop[progress]" in nets.one_line(caught)
