"""Results as plain text."""

from typing import Any, Dict, List, Sequence

import rounds
from line_up import BARE, MXLOOP


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns, the first to the left and all others to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def speeds(results: Dict[str, Any]) -> str:
    """One line a setting: samples per second, ratios, CPU time, the accuracy that was reached."""
    head = ["samples/s", "median", "min", "max", "of limit", "mxloop is", "CPU/wall", "python us"]
    rows = [[name, *_row(result, results)] for name, result in results.items()]
    return table(head, rows)


def _row(result, results) -> List[str]:
    spread = rounds.spread(*rounds.speeds(result))
    limit = _over(result, results.get(BARE))
    ours = _over(results.get(MXLOOP), result)
    return [
        *(f"{value:,.0f}" for value in spread),
        limit,
        f"{ours}x" if ours else "",
        f"{cpu_per_wall(result):.2f}",
        f"{python_us(result):.0f}",
    ]


def _over(result, other):
    return "" if result is None or other is None else f"{rounds.ratio(result, other).median:.2f}"


def cpu_per_wall(result: Dict[str, Any]) -> float:
    """How many cores were at work, on average."""
    epochs = result["epochs"]
    return sum(epoch["cpu"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs)


def python_us(result: Dict[str, Any]) -> float:
    """Microseconds of CPU time in Python's thread, a step and device."""
    work = result["work"]
    steps = work["samples"] // work["batch"]
    main = rounds.spread([epoch["main"] for epoch in result["epochs"]]).median
    return 1e6 * main / steps / work["contexts"]


def verdicts(found: Sequence[Any]) -> str:
    """One line a target."""
    rows = [
        (
            f"{v.target.net} against {v.target.text}",
            f"{v.ratio.median:.2f}",
            f"{v.ratio.low:.2f}..{v.ratio.high:.2f}",
            f">= {v.target.least:.2f}",
            holds(v.holds),
            f"{v.ours} / {v.theirs}",
        )
        for v in found
    ]
    return table(["target", "ratio", "min..max", "wanted", "", "settings"], rows)


def holds(is_so: bool) -> str:
    """The word for a target that is met, and the one for one that is not."""
    return "holds" if is_so else "MISSED"


def disturbance(results: Dict[str, Any]) -> str:
    """A warning, where other processes used the machine meanwhile."""
    epochs = [epoch for result in results.values() for epoch in result["epochs"]]
    bad = [epoch for epoch in epochs if epoch["others"] > rounds.BUSY]
    if not bad:
        return ""
    return (
        f"Other processes took more than a tenth of a core in {len(bad)} of {len(epochs)} runs: "
        "those rounds are left out where three others remain.\n"
    )
