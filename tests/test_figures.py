"""The figures of lesson 06 say in words what they show, and the costs are ratios."""

from __future__ import annotations

from pathlib import Path

from lesson_lib.labs.crash_everywhere.costs import DEFAULT, read_costs, relative_costs
from lesson_lib.labs.crash_everywhere.figures import deaths, price_of_safety
from lesson_lib.labs.crash_everywhere.powerloss import SETTINGS, Survey
from lesson_lib.sweep import Outcome


def left(version: int | None, events: int, results: int) -> dict[str, int | None]:
    return {"version": version, "events": events, "saved results": results}


def test_the_words_name_the_points_at_which_a_tool_ran_again() -> None:
    outcomes = [
        Outcome(1, "begin", left(None, 0, 0), (), True, ()),
        Outcome(2, "tool_ran", left(1, 2, 0), ("lookup_runbook",), True, ()),
        Outcome(4, "end", left(4, 7, 2), (), True, ()),
    ]
    alt = deaths(outcomes, total=4).alt
    assert "over 4 crash points: on disk are at the end 7 events, version 4 and 2 saved" in alt
    assert alt.endswith("A tool ran again: lookup_runbook after a death at the points 2.")


def test_the_prices_are_told_from_the_cheapest_on() -> None:
    surveys = [
        Survey("WAL", "FULL", 9, corrupt=0, losing_points=0, most_lost=0, fsyncs=1),
        Survey("WAL", "OFF", 9, corrupt=1, losing_points=2, most_lost=1, fsyncs=0),
    ]
    shown = price_of_safety(surveys, {("WAL", "FULL"): 1.0, ("WAL", "OFF"): 0.25})
    assert shown.alt == (
        "Time of a checkpoint against WAL FULL: WAL OFF 0.25 times, 0 syncs, a power cut corrupts;"
        " WAL FULL 1 times, 1 sync, a power cut loses nothing."
    )
    assert shown.svg == price_of_safety(surveys, {("WAL", "FULL"): 1, ("WAL", "OFF"): 0.25}).svg


def test_the_costs_are_multiples_of_the_default_and_leave_nothing_behind(tmp_path: Path) -> None:
    costs = relative_costs(tmp_path, checkpoints=2, rounds=2)
    assert set(costs) == set(SETTINGS) == set(read_costs())
    assert costs[DEFAULT] == read_costs()[DEFAULT] == 1.0
    assert all(cost > 0 for cost in costs.values())
    assert list(tmp_path.iterdir()) == []
