"""The figures of lesson 11: rows read to resume, and work lost against commits."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

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


def rows_to_resume(rows: Mapping[str, Sequence[int]], lengths: Sequence[int]) -> Picture:
    """Draw how many rows each pattern reads to resume, against the length of the run.

    Args:
        rows: For each pattern, one count for each length.
        lengths: The lengths, in steps.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, counts), (colour, marker, dash) in zip(rows.items(), STYLES, strict=True):
        axes.loglog(lengths, counts, dash, color=colour, marker=marker, markersize=8, label=name)
        axes.annotate(
            f"{counts[-1]:,}",
            (lengths[-1], counts[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
    axes.set_yticks([1, 10, 100, 1000, 10000], ["1", "10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.set_xlim(right=lengths[-1] * 2)
    axes.set_xlabel("steps of the run")
    axes.set_ylabel("rows read to resume it")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    said = [f"{name}: {', '.join(f'{n:,}' for n in counts)}" for name, counts in rows.items()]
    at = ", ".join(f"{length:,}" for length in lengths)
    return picture(
        figure,
        f"Lines of rows read to resume a run of {at} steps, both axes logarithmic."
        f" {'; '.join(said)}.",
    )


def lost_work(intervals: Sequence[Interval], steps: int) -> Picture:
    """Draw the steps done again after a death against the commits of the run.

    Args:
        intervals: One for each distance between saves.
        steps: The length of the run.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    commits = [interval.commits for interval in intervals]
    for label, values, (colour, marker, dash) in (
        ("at worst", [i.worst_redone for i in intervals], STYLES[2]),
        ("on average", [i.mean_redone for i in intervals], STYLES[0]),
    ):
        axes.loglog(commits, values, dash, color=colour, marker=marker, markersize=8, label=label)
    for interval in intervals:
        axes.annotate(
            f"every {interval.every}" if interval.every > 1 else "every step",
            (interval.commits, interval.worst_redone),
            xytext=(6, 6),
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
