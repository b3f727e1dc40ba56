"""The figures of lesson 06: what each death leaves on disk, and what each setting costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lesson_lib.labs.crash_everywhere.powerloss import Survey
from lesson_lib.labs.kit.drawing import BLACK, BLUE, GREEN, ORANGE, VERMILION, Picture, picture
from lesson_lib.sweep import Outcome


def deaths(outcomes: Sequence[Outcome], total: int) -> Picture:
    """Draw what was on disk at each of `total` crash points, and where a tool ran a second time."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    numbers = [outcome.number for outcome in outcomes]
    for name, words, colour, style in (
        ("events", "events", BLUE, "-"),
        ("version", "version of the checkpoint", GREEN, "--"),
        ("saved results", "saved tool results", BLACK, ":"),
    ):
        values = [math.nan if o.left[name] is None else o.left[name] for o in outcomes]
        axes.step(numbers, values, style, where="post", color=colour, linewidth=2, label=words)
    twice = [outcome for outcome in outcomes if outcome.repeated]
    died, events = [o.number for o in twice], [o.left["events"] for o in twice]
    label = "died here: the tool ran again"
    axes.scatter(died, events, 70, marker="X", c=VERMILION, ec="black", label=label, zorder=3)
    axes.set_xlim(0, total + 1)
    axes.set_xlabel("crash point, in the order of the run")
    axes.set_ylabel("found on disk")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    tools = dict.fromkeys(tool for outcome in twice for tool in outcome.repeated)
    points = {tool: [str(o.number) for o in twice if tool in o.repeated] for tool in tools}
    spans = [f"{tool} after a death at the points {', '.join(at)}" for tool, at in points.items()]
    left = outcomes[-1].left
    return picture(
        figure,
        f"Steps that only rise, over {total} crash points: on disk are at the end"
        f" {left['events']} events, version {left['version']} and {left['saved results']} saved"
        f" tool results. A tool ran again: {'; '.join(spans)}.",
    )


VERDICTS = {
    "corrupts": (VERMILION, "xx"),
    "loses what it acknowledged": (ORANGE, "//"),
    "loses nothing": (BLUE, ""),
}


def price_of_safety(surveys: Sequence[Survey], costs: Mapping[tuple[str, str], float]) -> Picture:
    """Draw the time of a checkpoint, a multiple of that under WAL and FULL, for each setting."""
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
        axes.text(cost, n, f"  {_syncs(survey)}", va="center", fontsize=9)
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
