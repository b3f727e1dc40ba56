"""The figures of lesson 07: what more workers bring, and how many commits a storm needs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lesson_lib.labs.kit.drawing import LINES, SKY, Picture, picture
from lesson_lib.tickets import DATA


def read_throughput() -> list[dict[str, str]]:
    """Read `data/throughput.csv`, what `make bench` measured on one machine."""
    with (DATA / "throughput.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def throughput(rows: Sequence[Mapping[str, str]]) -> Picture:
    """Draw runs per second against the number of workers, one worker being 1.

    Args:
        rows: Those of `read_throughput`.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    kinds, said = dict.fromkeys(row["kind"] for row in rows), list[str]()
    for kind, (colour, marker, dash) in zip(kinds, LINES, strict=False):
        chosen = [row for row in rows if row["kind"] == kind]
        workers = [int(row["workers"]) for row in chosen]
        ratios = [float(row["relative_runs_per_second"]) for row in chosen]
        axes.plot(workers, ratios, dash, color=colour, marker=marker, markersize=9, label=kind)
        steps = [f"{r:g} with {n}" for n, r in zip(workers, ratios, strict=True)]
        said.append(f"{kind}: {', '.join(steps)}")
    axes.axline((1, 1), slope=1, color="black", linestyle=":", label="as many times as workers")
    axes.set_xticks(workers)
    axes.set_ylim(0, 8.5)
    axes.set_xlim(0.7, 8.3)
    axes.set_xlabel("worker processes")
    axes.set_ylabel("runs per second, relative to one")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return picture(
        figure,
        f"Lines of runs per second against worker processes, one worker being 1. {'; '.join(said)}"
        " workers. A dotted line shows as many times as workers.",
    )


def storm(commits: Mapping[int, int], checkpoints: int) -> Picture:
    """Draw how many commits the same number of checkpoints needs at each rate.

    Args:
        commits: For each rate, in checkpoints per second, how many commits there were.
        checkpoints: How many checkpoints were saved at each rate.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    rates, counts = list(commits), list(commits.values())
    bars = axes.bar(range(len(rates)), counts, color=SKY, edgecolor="black")
    axes.bar_label(bars, padding=2)
    axes.axhline(checkpoints, color="black", linestyle=":")
    axes.text(len(rates) - 0.5, checkpoints + 1, "a commit for each", ha="right", fontsize=9)
    axes.set_ylim(0, checkpoints * 1.15)
    axes.set_xticks(range(len(rates)), [f"{rate:,}" for rate in rates])
    axes.set_xlabel("checkpoints per second")
    axes.set_ylabel(f"commits for {checkpoints} of them")
    axes.spines[["top", "right"]].set_visible(False)
    said = ", ".join(f"{count} at {rate:,} per second" for rate, count in commits.items())
    return picture(figure, f"Bars of the commits for {checkpoints} checkpoints: {said}.")
