"""Pictures of lesson 08: where a crash may fall between two systems, and how long retries wait."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lesson_lib.labs.kit.drawing import BLUE, GREY, VERMILION, Picture, picture
from lesson_lib.riders.delivery import RetryPolicy

DATABASE, AGENT, SERVICE = 0.0, 1.0, 2.0
STEPS = (  # from whom, to whom, what
    (AGENT, DATABASE, "1. store the intent"),
    (AGENT, SERVICE, "2. pay, with the key"),
    (SERVICE, AGENT, "the receipt"),
    (AGENT, DATABASE, "3. store the answer"),
)
HEIGHTS = {"begin": 0.5, "intended": 1.5, "called": 3.5, "confirmed": 4.5}


def crash_points(rows: Sequence[Mapping[str, object]]) -> Picture:
    """Draw the steps of a remote call, with the rows of `Laboratory.kill_and_resume`."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for x, name in ((DATABASE, "the agent's\ndatabase"), (AGENT, "agent"), (SERVICE, "service")):
        axes.plot([x, x], [0.2, 4.9], color=GREY, linewidth=1)
        axes.text(x, 0.05, name, ha="center", va="bottom", fontsize=10, weight="bold")
    arrow = {"arrowstyle": "->", "color": BLUE, "linewidth": 1.6}
    for place, (start, end, label) in enumerate(STEPS, 1):
        axes.annotate("", xy=(end, place), xytext=(start, place), arrowprops=arrow)
        axes.text((start + end) / 2, place - 0.08, label, ha="center", va="bottom", fontsize=9)
    said = []
    for row in rows:
        height = HEIGHTS[str(row["killed at"])]
        axes.plot([-0.25, 2.3], [height, height], color=VERMILION, linestyle="--", linewidth=1.3)
        axes.plot([AGENT], [height], marker="X", color=VERMILION, markersize=10)
        outcome = f"paid then: {row['paid then']}, paid in the end: {row['paid in the end']}"
        axes.text(2.35, height, f"killed at {row['killed at']}\n{outcome}", va="center", fontsize=9)
        said.append(f"at {row['killed at']}: intent {row['intent on disk']}, {outcome}")
    axes.set_xlim(-0.3, 3.5)
    axes.set_ylim(5.0, -0.4)
    axes.set_axis_off()
    steps = "the agent stores the intent, pays with the key, gets the receipt, stores the answer"
    return picture(figure, f"In time from top to bottom {steps}. Killed {'; '.join(said)}.")


def waits(policy: RetryPolicy, seeds: Sequence[int]) -> Picture:
    """Draw when commands that fail together are tried again; a seed is the chance of one."""
    figure = Figure(figsize=(9, 1.0 + 0.3 * len(seeds)), layout="constrained")
    axes = figure.add_subplot()
    attempts = range(1, policy.max_attempts)
    again: list[float] = []
    for place, seed in enumerate(seeds):
        chance, now, times = random.Random(seed), 0.0, [0.0]
        for attempt in attempts:
            now += policy.wait_after(attempt, chance).total_seconds()
            times.append(now)
        axes.plot(times, [place] * len(times), color=BLUE, marker="o", markersize=6, linewidth=1)
        again += times[1:]
    limits = [policy.longest_wait(attempt).total_seconds() for attempt in attempts]
    for end in [sum(limits[:n]) for n in range(len(limits) + 1)]:
        axes.axvline(end, color=VERMILION, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(seeds)), [f"command {place + 1}" for place in range(len(seeds))])
    dashed = "dashed: when all would come at once without jitter"
    axes.set_xlabel(f"seconds since the first attempt; {dashed}")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    said = ", ".join(f"{limit:g}" for limit in limits)
    together = len(again) - len(set(again))
    return picture(
        figure,
        f"{len(seeds)} commands with {policy.max_attempts} attempts each. No wait is longer than"
        f" {said} seconds. After the first attempt, {together} attempts fall together with"
        f" another; the last one is over before {sum(limits):g} seconds have passed.",
    )
