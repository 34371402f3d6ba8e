"""Pictures of trainings, with matplotlib: curves, rates, confusions, mistakes.

Figures are made without pyplot, which would keep them all, and without a display.
"""

import math
import os
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from mxloop.callback.watch import SMALLER
from mxloop.errors import DataError
from mxloop.history import Rows
from mxloop.optional import need
from mxloop.validation import path_of, shown

LEARNING_RATE, SPEED, WAITING = "learning_rate", "samples_per_second", "waiting"
# Name in the history -> title, axis.
OTHERS = {
    LEARNING_RATE: ("Learning rate", "learning rate"),
    SPEED: ("Speed", "samples / second"),
    WAITING: ("Waiting for data", "share of the time"),
}
PANEL = (5.2, 3.6)  # inches
MOST_NUMBERS = 30  # classes of a confusion matrix whose cells still have room for a number


def figure(*size: float) -> Any:
    """Make an empty figure of so many inches."""
    made = need("matplotlib.figure", "plot", "a picture").Figure(size, layout="constrained")
    need("matplotlib.backends.backend_agg", "plot", "a picture").FigureCanvasAgg(made)
    return made


def save(made: Any, path: Any) -> None:
    """Write a figure; the path's end says the format, as '.png', '.svg' or '.pdf'.

    Raises
    ------
    DataError
        If the format is unknown, or the file cannot be written.
    """
    path = path_of(path)
    try:
        made.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw {shown(path, 100)}: {shown(error, 120)}") from error


# --- Curves -------------------------------------------------------------------------------------


def curves(runs: Dict[str, Rows]) -> Any:
    """Draw the histories of runs: a panel for each metric, the learning rate and the speed.

    Parameters
    ----------
    runs : dict of str to list of dict
        Histories by the name that the legend gives them. Of several runs each has a colour;
        training is dashed, validation solid.

    Returns
    -------
    Figure
    """
    panels = [name for name in _metrics(runs) + list(OTHERS) if _has(runs, name)]
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    made = figure(PANEL[0] * columns, PANEL[1] * rows)
    for i, name in enumerate(panels):
        axes = made.add_subplot(rows, columns, i + 1)
        _panel(axes, runs, name)
    return made


def _metrics(runs):
    """Names of metrics, losses first."""
    names: Dict[str, None] = {}
    for rows in runs.values():
        for key in (key for row in rows for key in row):
            kind, _, name = key.partition("_")
            if kind in ("train", "val"):
                names[name] = None
    return sorted(names, key=lambda name: not is_loss(name))


def is_loss(name: str) -> bool:
    """Whether a metric of this name is better when smaller."""
    return any(word in name for word in SMALLER)


def _has(runs, name):
    return name not in OTHERS or any(name in row for rows in runs.values() for row in rows)


def _panel(axes, runs, name):
    title, label = OTHERS.get(name, (name.capitalize(), name))
    axes.set_title(title)
    axes.set_xlabel("epochs done")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    for i, (run, rows) in enumerate(runs.items()):
        for kind in ("",) if name in OTHERS else ("train", "val"):
            _curve(axes, rows, f"{kind}_{name}" if kind else name, _look(runs, run, kind, i))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines and axes.lines[0].get_label()[0] != "_":
        axes.legend(fontsize="small")
    if name == LEARNING_RATE and _spans_decades(axes):
        axes.set_yscale("log")
    elif name in OTHERS:
        axes.set_ylim(bottom=0)
    if name == SPEED:
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _look(runs, run, kind, i):
    kinds = {"train": "training", "val": "validation", "": ""}
    one = len(runs) == 1
    label = kinds[kind] if one else f"{run} {kinds[kind]}".strip()
    colour = {"train": 0, "val": 1, "": 2}[kind] if one else i
    return {
        "label": label or "_",
        "color": f"C{colour % 10}",
        "linestyle": "--" if kind == "train" else "-",
    }


def _curve(axes, rows, key, look):
    points = [(row["epoch"] + 1, row[key]) for row in rows if key in row]
    if points:
        marker = "o" if len(points) < 30 else None
        axes.plot(*zip(*points), marker=marker, markersize=3, **look)


def _spans_decades(axes):
    values = [value for line in axes.lines for value in line.get_ydata()]
    return bool(values) and min(values) > 0 and max(values) >= 10 * min(values)


# --- Learning rates -----------------------------------------------------------------------------


def draw_rates(trials: Sequence[Any], suggestion: float, path: Any) -> None:
    """Draw the losses of an LRFinder over its rates, and the rate that it suggests."""
    made = figure(*PANEL)
    axes = made.add_subplot()
    rates = [trial.rate for trial in trials]
    axes.plot(rates, [trial.loss for trial in trials], color="C7", alpha=0.5, label="a batch")
    axes.plot(rates, [trial.smooth for trial in trials], color="C0", label="smoothed")
    axes.axvline(suggestion, color="C3", linestyle="--", label=f"suggestion {suggestion:.2g}")
    least = min(trial.smooth for trial in trials)
    axes.set_ylim(top=4 * least + 1e-9, bottom=0)
    axes.set(title="Learning rates tried", xlabel="learning rate", ylabel="loss", xscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(made, path)


# --- Confusions and mistakes --------------------------------------------------------------------


def confusion(labels: Sequence[int], predicted: Sequence[int], num_classes: int) -> np.ndarray:
    """Count how often each class was taken for each.

    Returns
    -------
    ndarray of int, shape (num_classes, num_classes)
        Row: the class that it is; column: what was predicted.
    """
    places = np.asarray(labels, int) * num_classes + np.asarray(predicted, int)
    counts = np.bincount(places, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def draw_confusion(counts: np.ndarray, path: Any, names: Optional[List[str]] = None) -> None:
    """Draw a confusion matrix, coloured by the share of each class.

    Parameters
    ----------
    counts : ndarray of int, shape (classes, classes)
        As `confusion` makes it.
    path : str or path-like
    names : list of str, optional
        Of the classes; their numbers by default.
    """
    size = len(counts)
    names = [str(i) for i in range(size)] if names is None else names
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = max(4.0, min(14.0, 2 + 0.42 * size))
    made = figure(side + 0.8, side)
    axes = made.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    made.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    right = int(np.trace(counts))
    total = int(counts.sum())
    title = f"Confusion matrix: {right} of {total} right ({right / max(total, 1):.1%})"
    axes.set(title=title, xlabel="predicted class", ylabel="true class")
    axes.set_xticks(range(size), names, rotation=90 if size > 12 else 0)
    axes.set_yticks(range(size), names)
    if size <= MOST_NUMBERS:
        for i, j in zip(*np.nonzero(counts)):
            colour = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, counts[i, j], ha="center", va="center", color=colour, fontsize=8)
    save(made, path)


def draw_mistakes(
    images: np.ndarray,
    labels: Sequence[int],
    probabilities: np.ndarray,
    path: Any,
    most: int = 40,
    names: Optional[List[str]] = None,
) -> int:
    """Draw the images that were taken for another class, the surest mistakes first.

    Parameters
    ----------
    images : ndarray, shape (samples, channels, height, width)
        One channel, or three.
    labels : sequence of int
    probabilities : ndarray, shape (samples, classes)
        What `predict` returned.
    path : str or path-like
    most : int
        Images on the sheet.
    names : list of str, optional
        Of the classes; their numbers by default.

    Returns
    -------
    int
        How many mistakes there were.
    """
    labels, predicted = np.asarray(labels, int), probabilities.argmax(axis=1)
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")]
    drawn = wrong[:most]
    columns = max(1, min(8, len(drawn)))
    rows = max(1, math.ceil(len(drawn) / columns))
    made = figure(max(4.0, 1.5 * columns), 0.8 + 1.75 * rows)
    made.suptitle(
        f"{len(wrong)} of {len(labels)} wrong{_surest(len(drawn), len(wrong))}\n"
        "true class as predicted class (its probability)",
        fontsize=10,
    )
    told = [str(i) for i in range(probabilities.shape[1])] if names is None else names
    for place, i in enumerate(drawn):
        axes = made.add_subplot(rows, columns, place + 1)
        axes.imshow(_pixels(images[i]), cmap="gray")
        axes.set_axis_off()
        share = probabilities[i, predicted[i]]
        axes.set_title(f"{told[labels[i]]} as {told[predicted[i]]} ({share:.0%})", fontsize=8)
    save(made, path)
    return len(wrong)


def _surest(drawn, wrong):
    return f"; the {drawn} surest mistakes" if drawn < wrong else ""


def _pixels(image):
    """An image for matplotlib: height, width, and colours last, from 0 to 1."""
    image = np.moveaxis(np.asarray(image, np.float64), 0, -1)
    least, most = image.min(), image.max()
    image = (image - least) / max(most - least, 1e-12)
    return image[..., 0] if image.shape[-1] == 1 else image


def default_names(paths: Sequence[str]) -> List[str]:
    """Names for the histories of runs: their files' names, and folders where those are alike."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return stems if len(set(stems)) == len(stems) else list(paths)
