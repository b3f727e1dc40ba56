"""The figures of lesson 11: rows and time to resume, and work lost against commits."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson_lib.labs.four_patterns.intervals import Interval
from lesson_lib.labs.kit.drawing import LINES, Picture, picture
from lesson_lib.tickets import DATA


def recorded() -> dict[int, dict[str, float]]:
    """Return how long a resume took after so many steps, for each pattern, at `make bench`.

    The unit is the time of the checkpoint's after the fewest.
    """
    times: dict[int, dict[str, float]] = {}
    with (DATA / "patterns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            at = times.setdefault(int(row["steps"]), {})
            at[row["pattern"]] = float(row["relative_time"])
    return times


def work_to_resume(rows: Mapping[str, Sequence[int]], lengths: Sequence[int]) -> Picture:
    """Draw how many rows each pattern fetches to resume at each length, beside recorded times."""
    times = recorded()
    figure = Figure(figsize=(10, 4), layout="constrained")
    said = []
    for axes, title, at, found in zip(
        figure.subplots(1, 2, sharex=True),
        ("rows fetched, counted here", "time, recorded on one machine"),
        (lengths, [*times]),
        (rows, {name: [each[name] for each in times.values()] for name in rows}),
        strict=True,
    ):
        _lines(axes, at, found)
        axes.set_xlabel("steps of the run")
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set_xlim(right=at[-1] * 4)
        steps = ", ".join(f"{length:,}" for length in at)
        told = [f"{name}: {', '.join(f'{n:,g}' for n in ns)}" for name, ns in found.items()]
        said.append(f"{title.capitalize()}, at {steps} steps: {'; '.join(told)}.")
        for values in found.values():
            _label(axes, f"{values[-1]:,g}", at[-1], values[-1])
    return picture(
        figure,
        "Two panels of lines against the steps of the run, all axes logarithmic."
        f" {' '.join(said)} The times are multiples of the checkpoint's shortest.",
    )


def lost_work(intervals: Sequence[Interval], steps: int) -> Picture:
    """Draw the steps done again after a death against the commits of a run of so many steps."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    redone: dict[str, list[float]] = {
        "on average": [interval.mean_redone for interval in intervals],
        "at worst": [interval.worst_redone for interval in intervals],
    }
    _lines(axes, [interval.commits for interval in intervals], redone)
    for i in intervals:
        _label(axes, f"every {i.every}", i.commits, i.worst_redone)
    axes.set_xlabel(f"commits of a run of {steps} steps")
    axes.set_ylabel("steps done again after a death")
    axes.set_xlim(right=steps * 2)
    said = [
        f"saved every {i.every}: {i.commits} commits, {i.mean_redone:g} on average,"
        f" {i.worst_redone} at worst"
        for i in intervals
    ]
    return picture(
        figure,
        f"Falling lines of the steps done again after a death against the commits of a run of"
        f" {steps} steps, both axes logarithmic. {'; '.join(said)}.",
    )


def _lines(axes: Axes, at: Sequence[int], found: Mapping[str, Sequence[float]]) -> None:
    for (name, values), (colour, marker, dash) in zip(found.items(), LINES, strict=False):
        # Open markers: where two lines meet, both are seen.
        axes.loglog(at, values, dash, color=colour, marker=marker, fillstyle="none", label=name)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _label(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(8, 0), textcoords="offset points", va="center")
