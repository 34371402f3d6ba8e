"""A run on one page of HTML, which loads nothing: curves, results, settings, environment."""

import base64
import html
import io
import os
import re
from typing import Any, Dict, List, Optional, Sequence

from mxloop import plotting, storage
from mxloop.errors import DataError
from mxloop.history import Rows
from mxloop.validation import shown

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.lead { color: #555; margin-top: .3rem; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.card { border: 1px solid #ddd; border-radius: .5rem; padding: .5rem 1rem; }
.card b { display: block; font-size: 1.3rem; } .card span { color: #555; font-size: .85rem; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #eee;
  font-variant-numeric: tabular-nums; }
th { background: #f6f6f6; } .left th, .left td { text-align: left; overflow-wrap: anywhere; }
.left th { white-space: nowrap; vertical-align: top; }
img, svg { max-width: 100%; height: auto; }
"""
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".svg": "image/svg+xml"}
KINDS = {"train": "training", "val": "validation"}
TITLES = {"settings": "Settings", "environment": "Environment"}
OTHERS = ("epoch", "seconds", "samples_per_second", "waiting", "learning_rate")


def make(
    rows: Rows,
    about: Optional[Dict[str, Any]] = None,
    title: str = "Training run",
    images: Sequence[str] = (),
) -> str:
    """Make the page.

    Parameters
    ----------
    rows : list of dict
        The history.
    about : dict, optional
        What `mxloop.about.describe` told.
    title : str
    images : sequence of str
        Paths of pictures to include, as PNG, JPEG or SVG.

    Returns
    -------
    str
        HTML.
    """
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="lead">{len(rows)} epochs in {_duration(rows)}</p>',
        _cards(rows),
        _section("Curves", _svg(rows)),
        *[_section(_caption(path), _picture(path)) for path in images],
        _section("Epochs", _table(_epochs(rows))),
    ]
    told = about or {}
    if told.get("network"):
        network = _table(told["network"]) + f"<p>{html.escape(str(told.get('total', '')))}</p>"
        parts.append(_section("Network", network))
    parts += [_section(TITLES[key], _pairs(told[key])) for key in TITLES if key in told]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(title, content):
    return f"<section><h2>{html.escape(title)}</h2>\n{content}</section>"


def _duration(rows):
    seconds = sum(row.get("seconds", 0) for row in rows)
    if seconds < 120:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _cards(rows):
    """The last value of each metric, and the best one."""
    names = [
        k for k in dict.fromkeys(k for row in rows for k in row) if k.startswith(("train_", "val_"))
    ]
    cards = [_card(rows, name) for name in names]
    speeds = [row["samples_per_second"] for row in rows if "samples_per_second" in row]
    if speeds:
        cards.append(
            ("samples / second", f"{sum(speeds) / len(speeds):,.0f}", "mean of the epochs")
        )
    made = [
        f'<div class="card"><span>{html.escape(name)}</span><b>{value}</b><span>{note}</span></div>'
        for name, value, note in cards
    ]
    return f'<div class="cards">{"".join(made)}</div>'


def _card(rows, name):
    seen = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
    after, best = (min if plotting.is_loss(name) else max)(seen, key=lambda pair: pair[1])
    kind, _, metric = name.partition("_")
    title = f"{KINDS[kind]} {metric}"
    return title, _number(seen[-1][1]), f"best {_number(best)} after {after} epochs"


def _svg(rows):
    out = io.StringIO()
    plotting.curves({"run": rows}).savefig(out, format="svg")
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)


def _picture(path):
    kind = TYPES.get(os.path.splitext(path)[1].lower())
    if kind is None:
        raise DataError(f"{shown(path, 120)} is no picture for a page; pass PNG, JPEG or SVG files")
    data = base64.b64encode(storage.read(path)).decode()
    return f'<img alt="{html.escape(_caption(path))}" src="data:{kind};base64,{data}">'


def _caption(path):
    stem = os.path.splitext(os.path.basename(path))[0]
    return stem.replace("_", " ").replace("-", " ").capitalize()


def _epochs(rows) -> List[List[str]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: (name != "epoch", name in OTHERS))
    return [names, *([_number(row.get(name)) for name in names] for row in rows)]


def _number(value):
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(rows):
    head, *body = [[html.escape(str(cell)) for cell in row] for row in rows]
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _pairs(told):
    lines = [
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in told.items()
        if value is not None
    ]
    return '<table class="left">\n' + "\n".join(lines) + "\n</table>"
