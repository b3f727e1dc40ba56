"""The figures of lesson 06: what each death leaves on disk, and what each setting costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lesson_lib.crashes.powerloss import Survey
from lesson_lib.crashes.sweep import Outcome
from lesson_lib.show import Picture, picture

BLUE, GREEN, VERMILION = "#0072B2", "#009E73", "#D55E00"  # Okabe and Ito


def deaths(outcomes: Sequence[Outcome], total: int) -> Picture:
    """Draw what was on disk at each crash point, and where a tool ran a second time.

    Args:
        outcomes: In the order of their crash points.
        total: How many crash points the run has.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    numbers = [outcome.number for outcome in outcomes]
    versions = [math.nan if o.version is None else o.version for o in outcomes]
    for name, colour, style, values in (
        ("events", BLUE, "-", [outcome.events for outcome in outcomes]),
        ("version of the checkpoint", GREEN, "--", versions),
        ("saved tool results", "#000000", ":", [outcome.effects for outcome in outcomes]),
    ):
        axes.step(numbers, values, style, where="post", color=colour, linewidth=2, label=name)
    twice = [outcome for outcome in outcomes if outcome.repeated]
    axes.scatter(
        [outcome.number for outcome in twice],
        [outcome.events for outcome in twice],
        s=70,
        c=VERMILION,
        marker="X",
        edgecolors="black",
        label="died here: the tool ran again",
        zorder=3,
    )
    axes.set_xlim(0, total + 1)
    axes.set_xlabel("crash point, in the order of the run")
    axes.set_ylabel("found on disk")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    spans = [
        f"{name} after a death at the points {', '.join(map(str, points))}"
        for name, points in _points_by_tool(twice).items()
    ]
    return picture(
        figure,
        f"Steps that only rise, over {total} crash points: on disk are at the end"
        f" {outcomes[-1].events} events, version {outcomes[-1].version} and"
        f" {outcomes[-1].effects} saved tool results. A tool ran again: {'; '.join(spans)}.",
    )


VERDICTS = {
    "corrupts": (VERMILION, "xx"),
    "loses what it acknowledged": ("#E69F00", "//"),
    "loses nothing": (BLUE, ""),
}


def price_of_safety(surveys: Sequence[Survey], costs: Mapping[tuple[str, str], float]) -> Picture:
    """Draw the time of a checkpoint under each setting, with what a power cut may take.

    Args:
        surveys: What a power cut may take, for each setting.
        costs: The time of a checkpoint, as a multiple of that under WAL and FULL.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    rows = sorted(surveys, key=lambda s: costs[s.journal_mode, s.synchronous], reverse=True)
    for verdict, (colour, hatch) in VERDICTS.items():
        chosen = [n for n, survey in enumerate(rows) if survey.verdict == verdict]
        axes.barh(
            chosen,
            [costs[rows[n].journal_mode, rows[n].synchronous] for n in chosen],
            color=colour,
            hatch=hatch,
            edgecolor="black",
            label=verdict,
        )
    for n, survey in enumerate(rows):
        cost = costs[survey.journal_mode, survey.synchronous]
        axes.annotate(
            _syncs(survey),
            (cost, n),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [f"{s.journal_mode} {s.synchronous}" for s in rows])
    axes.set_xlabel("time of a checkpoint, as a multiple of WAL FULL")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="a power cut", frameon=False, loc="upper right", alignment="left")
    words = [
        f"{s.journal_mode} {s.synchronous} {costs[s.journal_mode, s.synchronous]:g} times,"
        f" {_syncs(s)}, a power cut {s.verdict}"
        for s in reversed(rows)
    ]
    return picture(figure, f"Time of a checkpoint against WAL FULL: {'; '.join(words)}.")


def _syncs(survey: Survey) -> str:
    return f"{survey.fsyncs} sync{'' if survey.fsyncs == 1 else 's'}"


def _points_by_tool(outcomes: Sequence[Outcome]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for outcome in outcomes:
        for tool in outcome.repeated:
            found.setdefault(tool, []).append(outcome.number)
    return found
