"""The figures of lesson 11: rows and time to resume, and work lost against commits."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson_lib.patterns.intervals import Interval
from lesson_lib.show import Picture, picture
from lesson_lib.tickets import DATA

# Okabe and Ito's palette; each line has a marker and a dash of its own too.
STYLES = (("#0072B2", "o", "-"), ("#009E73", "s", "--"), ("#D55E00", "^", ":"))


def read_times() -> list[dict[str, str]]:
    """Read `data/patterns.csv`: how long a resume took on the machine of `make bench`."""
    with (DATA / "patterns.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def times_at(steps: int) -> dict[str, float]:
    """Return the recorded time of a resume after so many steps, for each pattern.

    The unit is the time of the checkpoint's at the shortest recorded run.
    """
    rows = [row for row in read_times() if int(row["steps"]) == steps]
    return {row["pattern"]: float(row["relative_time"]) for row in rows}


def work_to_resume(rows: Mapping[str, Sequence[int]], lengths: Sequence[int]) -> Picture:
    """Draw how many rows each pattern fetches to resume, beside the recorded times.

    Args:
        rows: For each pattern, one count for each length.
        lengths: The lengths, in steps.
    """
    recorded = sorted({int(row["steps"]) for row in read_times()})
    times = {name: [times_at(steps)[name] for steps in recorded] for name in rows}
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    said = [
        _lines(left, rows, lengths, "rows fetched, counted here"),
        _lines(right, times, recorded, "time, recorded on one machine"),
    ]
    right.set_xlim(left=lengths[0])
    left.legend(frameon=False)
    return picture(
        figure,
        "Two panels of lines against the steps of the run, all axes logarithmic."
        f" {' '.join(said)} The times are multiples of the checkpoint's shortest.",
    )


def _lines(
    axes: Axes, found: Mapping[str, Sequence[float]], lengths: Sequence[int], title: str
) -> str:
    above = sorted(found, key=lambda name: found[name][-1])
    for (name, values), (colour, marker, dash) in zip(found.items(), STYLES, strict=True):
        axes.loglog(lengths, values, dash, color=colour, marker=marker, markersize=8, label=name)
        axes.annotate(
            f"{values[-1]:,g}",
            (lengths[-1], values[-1]),
            xytext=(8, 6 * (above.index(name) - 1)),
            textcoords="offset points",
            va="center",
        )
    axes.set_xticks([10, 100, 1000, 10000], ["10", "100", "1,000", "10,000"])
    axes.set_yticks([1, 10, 100, 1000, 10000], ["1", "10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.set_xlim(right=lengths[-1] * 4)
    axes.set_xlabel("steps of the run")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    at = ", ".join(f"{length:,}" for length in lengths)
    said = [f"{name}: {', '.join(f'{n:,g}' for n in values)}" for name, values in found.items()]
    return f"{title.capitalize()}, at {at} steps: {'; '.join(said)}."


def lost_work(intervals: Sequence[Interval], steps: int) -> Picture:
    """Draw the steps done again after a death against the commits of the run.

    Args:
        intervals: One for each distance between saves.
        steps: The length of the run.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    commits = [interval.commits for interval in intervals]
    for label, values, (colour, marker, dash), size in (
        ("at worst", [i.worst_redone for i in intervals], STYLES[2], 13),
        ("on average", [i.mean_redone for i in intervals], STYLES[0], 6),
    ):
        # The two meet where each step is saved: the open triangle stands around the dot.
        axes.loglog(
            commits,
            values,
            dash,
            color=colour,
            marker=marker,
            markersize=size,
            markerfacecolor="none" if size > 6 else colour,
            label=label,
        )
    for interval in intervals:
        axes.annotate(
            f"every {interval.every}" if interval.every > 1 else "every step",
            (interval.commits, interval.worst_redone),
            xytext=(8, 8),
            textcoords="offset points",
            fontsize=9,
        )
    axes.set_xticks(commits, [str(count) for count in commits])
    worst = [interval.worst_redone for interval in intervals]
    axes.set_yticks(worst, [str(count) for count in worst])
    axes.minorticks_off()
    axes.set_xlim(right=steps * 2)
    axes.set_xlabel(f"commits of a run of {steps} steps")
    axes.set_ylabel("steps done again after a death")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
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
