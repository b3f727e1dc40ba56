"""Pictures of lesson 08: where a crash may fall between two systems, and how long retries wait."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson_lib.payments.delivery import RetryPolicy
from lesson_lib.show import Picture, picture

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito; each has a shape of its own
DATABASE, AGENT, SERVICE = 0.0, 1.0, 2.0
STEPS = (  # from whom, to whom, what
    (AGENT, DATABASE, "1. store the intent"),
    (AGENT, SERVICE, "2. pay, with the key"),
    (SERVICE, AGENT, "the receipt"),
    (AGENT, DATABASE, "3. store the answer"),
)
HEIGHTS = {"begin": 0.5, "intended": 1.5, "called": 3.5, "confirmed": 4.5}


def crash_points(rows: Sequence[Mapping[str, object]]) -> Picture:
    """Draw the three steps of a remote call as a sequence, with what each crash point led to.

    Args:
        rows: For each crash point `killed at`, `intent on disk`, `paid then` and `paid in the end`.
    """
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for x, name in ((DATABASE, "the agent's\ndatabase"), (AGENT, "agent"), (SERVICE, "service")):
        axes.plot([x, x], [0.2, 4.9], color=GREY, linewidth=1)
        axes.text(x, 0.05, name, ha="center", va="bottom", fontsize=10, weight="bold")
    for place, (start, end, label) in enumerate(STEPS, 1):
        _arrow(axes, start, end, place)
        axes.text((start + end) / 2, place - 0.08, label, ha="center", va="bottom", fontsize=9)
    said = []
    for row in rows:
        height = HEIGHTS[str(row["killed at"])]
        axes.plot([-0.25, 2.3], [height, height], color=ORANGE, linestyle="--", linewidth=1.3)
        axes.plot([AGENT], [height], marker="X", color=ORANGE, markersize=10)
        outcome = f"paid then: {row['paid then']}, paid in the end: {row['paid in the end']}"
        axes.text(2.35, height, f"killed at {row['killed at']}\n{outcome}", va="center", fontsize=9)
        said.append(f"at {row['killed at']}: intent {row['intent on disk']}, {outcome}")
    axes.set_xlim(-0.3, 3.5)
    axes.set_ylim(5.0, -0.4)
    axes.set_axis_off()
    steps = "the agent stores the intent, pays with the key, gets the receipt, stores the answer"
    return picture(figure, f"In time from top to bottom {steps}. Killed {'; '.join(said)}.")


def waits(policy: RetryPolicy, seeds: Sequence[int]) -> Picture:
    """Draw when each of several commands that fail together is tried again.

    Args:
        policy: How to retry.
        seeds: One for the chance of each command.
    """
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
    limits = [policy.wait_after(attempt, _Longest()).total_seconds() for attempt in attempts]
    for end in [sum(limits[:n]) for n in range(len(limits) + 1)]:
        axes.axvline(end, color=ORANGE, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(seeds)), [f"command {place + 1}" for place in range(len(seeds))])
    axes.set_xlabel(
        "seconds since the first attempt; dashed: when all would come at once without jitter"
    )
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


class _Longest(random.Random):
    """A chance that always gives the longest wait."""

    def random(self) -> float:
        return 1.0


def _arrow(axes: Axes, start: float, end: float, height: float) -> None:
    axes.annotate(
        "",
        xy=(end, height),
        xytext=(start, height),
        arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.6},
    )
