"""The figure of lesson 10: which checkpoints were refused, and where each run went on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson_lib.labs.kit import drawing
from lesson_lib.labs.kit.drawing import Picture, picture
from lesson_lib.labs.recovery_path.patient import Outcome

BLACK = drawing.BLACK
STYLES: dict[str, dict[str, Any]] = {
    "kept": {"s": 150, "marker": "o", "facecolors": drawing.WHITE, "edgecolors": drawing.GREY},
    "refused": {"s": 140, "marker": "X", "facecolors": drawing.VERMILION, "edgecolors": BLACK},
    "taken": {"s": 150, "marker": "o", "facecolors": drawing.BLUE, "edgecolors": BLACK},
    "made again": {"s": 130, "marker": "D", "facecolors": drawing.ORANGE, "edgecolors": BLACK},
    "written as": {"s": 150, "marker": "s", "facecolors": drawing.GREEN, "edgecolors": BLACK},
}
MADE_AGAIN = ("rebuilt from events", "restarted from the ticket")


def ways_back(outcomes: Sequence[Outcome]) -> Picture:
    """Draw one line for each damage: its checkpoints, the refused ones, the arrow to a new one."""
    figure = Figure(figsize=(9, 0.42 * len(outcomes) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    lines = range(len(outcomes) - 1, -1, -1)
    words = [_line(axes, y, outcome) for y, outcome in zip(lines, outcomes, strict=True)]
    newest = max(o.report.state.version for o in outcomes if o.report.state)
    for name, style in STYLES.items():
        axes.scatter([], [], label=name, **style)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(STYLES), frameon=False)
    axes.set_yticks(lines, [outcome.damage for outcome in outcomes])
    axes.set_xticks(range(newest + 1))
    axes.set_xlabel("version of the checkpoint")
    axes.set_xlim(-0.5, newest + 0.5)
    axes.set_ylim(-0.5, len(outcomes) - 0.2)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return picture(figure, f"One line for each damage. {' '.join(words)}")


def _line(axes: Axes, y: int, outcome: Outcome) -> str:
    report = outcome.report
    refused = sorted({r.version for r in report.refused})
    chosen, now = report.chosen, report.state.version if report.state else None
    kept = [v for v in range(outcome.version + 1) if v not in (*refused, chosen, now)]
    way = "made again" if report.step in MADE_AGAIN else "taken"
    for style, versions in (
        ("kept", kept),
        ("refused", refused),
        (way, [] if chosen is None else [chosen]),
        ("written as", [] if now in (None, chosen) else [now]),
    ):
        axes.scatter(versions, [y] * len(versions), zorder=3, **STYLES[style])
    hidden = [v for v in refused if v in (chosen, now)]  # refused in one record, good in another
    axes.scatter(hidden, [y] * len(hidden), **STYLES["refused"] | {"s": 420})
    seen = [
        f"{name} {', '.join(map(str, v))}"
        for name, v in (("refused", refused), ("kept", kept))
        if v
    ]
    about = f"{outcome.damage}: {', '.join(seen)}"
    if chosen is None or now is None:
        axes.text(outcome.version + 1, y, report.step, ha="center", va="center", fontsize=9)
        return f"{about}, {report.step}."
    if now == chosen:
        return f"{about}, {way} {now}."
    arrow = {"arrowstyle": "->", "linewidth": 1.6, "shrinkA": 8, "shrinkB": 9}
    arrow["connectionstyle"] = f"arc3,rad={-0.3 / (now - chosen)}"
    axes.annotate("", (now, y + 0.05), (chosen, y + 0.05), arrowprops=arrow)
    return f"{about}, {way} {chosen}, written as {now}."
