"""The HTML report: what stands in it, that it loads nothing, and that a browser shows it."""

import html.parser
import re
import shutil
import subprocess

import pytest
from test_plotting import PNG, rows

from mxloop import cli, history, report
from mxloop.errors import DataError

pytest.importorskip("matplotlib")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ABOUT = {
    "settings": {"optimizer": "SGD", "seed": 5, "note": "<script>alert(1)</script>"},
    "environment": {"mxnet": "1.9.1"},
    "network": [["layer", "parameters"], ["fc1", "176"]],
    "total": "244 parameters",
}


class Page(html.parser.HTMLParser):
    """The tags and texts of a page, which must be well-formed."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open, self.loaded = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loaded += [v for k, v in attrs if k in ("src", "href", "data") and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def page(**settings):
    return Page(report.make(rows(), ABOUT, "My run", **settings))


def test_the_page_has_results_curves_epochs_network_settings_and_environment():
    found = page()
    for text in ("My run", "5 epochs in 5.0 s", "Curves", "Epochs", "Network", "Settings"):
        assert text in found.texts
    assert "validation accuracy" in found.texts
    assert "0.8" in found.texts  # its last value
    assert "best 0.8 after 5 epochs" in found.texts
    assert "best 0.4 after 5 epochs" in found.texts  # of the loss, the least
    assert "svg" in found.tags
    assert {"SGD", "1.9.1", "fc1", "244 parameters"} <= set(found.texts)


def test_every_epoch_is_a_row_of_the_table():
    text = report.make(rows())
    table = re.findall(r"<tr><td>(\d+)</td>", text)
    assert table == ["0", "1", "2", "3", "4"]


def test_nothing_is_loaded_and_no_text_is_markup(tmp_path):
    picture = tmp_path / "confusion_matrix.png"
    picture.write_bytes(PNG)
    found = page(images=[str(picture)])
    assert all(source.startswith(("data:", "#")) for source in found.loaded)
    assert "script" not in found.tags
    assert "Confusion matrix" in found.texts
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", "".join(found.loaded))


def test_a_history_alone_will_do():
    assert "Settings" not in Page(report.make(rows(n=1))).texts


def test_a_file_that_is_no_picture_is_one_line(tmp_path):
    with pytest.raises(DataError, match="PNG"):
        page(images=[str(tmp_path / "notes.txt")])


def test_the_command_writes_the_page(tmp_path, capsys):
    history.write(tmp_path / "run.jsonl", rows())
    out = tmp_path / "report.html"
    words = ["report", str(tmp_path / "run.jsonl"), "-o", str(out), "--title", "A & B"]
    assert cli.main(words) == 0
    assert "A & B" in Page(out.read_text()).texts
    assert cli.main(["report", str(tmp_path / "none.jsonl"), "-o", str(out)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_the_page_without_a_server(tmp_path):
    out = tmp_path / "report.html"
    out.write_text(report.make(rows(), ABOUT, "My run"))
    common = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/p",
    ]
    shot = tmp_path / "page.png"
    options = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    subprocess.run([*common, f"--screenshot={shot}", out.as_uri()], **options)
    assert shot.read_bytes().startswith(PNG)
    assert shot.stat().st_size > 20_000  # no empty page
    shown = subprocess.run([*common, "--dump-dom", out.as_uri()], **options).stdout
    assert "alert(1)" in shown
    assert "<script>" not in shown
    assert shown.count("<section>") == 5
