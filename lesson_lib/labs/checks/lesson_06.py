"""Checks of lesson 06: three deaths, the order of a commit, the setting to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.errors import ChildError
from lesson_lib.labs.checks import exercise, given
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.tickets import ticket_agent

KEY = "run-T104:draft_reply"


@exercise(1, "assign the list of the points at which the sessions die")
def exercise_1(points: Sequence[str]) -> str | None:
    """Let a session die at each of the learner's points, and count the drafts."""
    if len(points) != 3:
        return f"three sessions are to die, your list has {len(points)} points"
    for point in points:
        if str(point).partition(":")[0] not in ticket_agent.actions:
            return f"{point!r} has no name: choose points such as draft_reply:begin"
    with TemporaryDirectory() as name:
        files = Path(name, "agent.db"), Path(name, "ledger.txt")
        for number, point in enumerate(points, start=1):
            try:
                run_agent_in_child(*files, "T104", f"session-{number}", die_at=point, how="kill")
            except ChildError:
                return (
                    f"session-{number} never comes to {point!r}: there is no such point, or what"
                    " lies behind it was done before"
                )
        run_agent_in_child(*files, "T104", "session-4")
        calls = Ledger(files[1]).lines()
    drafts, others = calls.count(KEY), len(calls) - calls.count(KEY)
    if drafts != 3:
        return f"calls of the draft: {drafts}, wanted: 3"
    return None if others == 1 else f"calls of the look-up: {others}, wanted: 1"


@exercise(2, "put the six letters into an order")
def exercise_2(order: Sequence[str]) -> str | None:
    """Cut the power after each step of the learner's commit, in every way, and recover."""
    order = list(islice(order, 7))
    if sorted(order) != list("ABCDEF"):
        return "use each of the letters A to F once"
    for done in range(len(order) + 1):
        for left in _left_by_a_cut(order[:done]):
            found = _recovered(left)
            where = f"the power goes after {order[done - 1]}" if done else "the power goes at once"
            if found == "torn":
                return f"{where}, and half a page may be left: {_why_torn(order[:done])}"
            if found == "old" and done == len(order):
                return "the commit was acknowledged, and after a power cut it is gone"
    return None


def _left_by_a_cut(done: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield each state of the disk: what was not synced is there, missing or torn."""

    def fates(step: str, sync: str, *unsafe: str) -> tuple[str, ...]:
        if step not in done:
            return ("missing",)
        synced = sync in done and done.index(step) < done.index(sync)
        return ("there",) if synced else unsafe

    for page, journal, deleted in product(
        fates("D", "A", "there", "missing", "torn"),
        fates("C", "E", "there", "missing", "torn"),
        fates("B", "F", "there", "missing"),
    ):
        yield {"page": page, "journal": journal, "deleted": deleted}


def _why_torn(done: Sequence[str]) -> str:
    if "B" in done and "C" not in done[: done.index("B")]:
        return "B deletes a journal that is not written yet"
    if "C" not in done:
        return "its old content was not in the journal yet"
    if "E" not in done or done.index("E") > done.index("D"):
        return "the journal that could undo it was not safe when the page was written"
    return "the journal that could undo it is deleted, and the new page was not safe"


def _recovered(left: dict[str, str]) -> str:
    if left["journal"] == "there" and left["deleted"] == "missing":
        return "old"
    return {"there": "new", "missing": "old", "torn": "torn"}[left["page"]]


@exercise(3, "return the setting")
def exercise_3(choose: Callable[[Sequence[dict[str, Any]], int], str | None]) -> str | None:
    """Ask for settings that may lose nothing, one checkpoint, or more; and for the impossible."""
    rows: list[dict[str, Any]] = [
        {"setting": "DELETE EXTRA", "corrupts": False, "most lost": 0, "fsyncs": 5},
        {"setting": "WAL OFF", "corrupts": True, "most lost": 5, "fsyncs": 0},
        {"setting": "WAL FULL", "corrupts": False, "most lost": 0, "fsyncs": 1},
        {"setting": "DELETE FULL", "corrupts": False, "most lost": 1, "fsyncs": 4},
        {"setting": "WAL NORMAL", "corrupts": False, "most lost": 5, "fsyncs": 0},
    ]
    for table, may_lose, wanted, why in (
        (rows, 0, "WAL FULL", "no acknowledged checkpoint may be lost"),
        (rows, 3, "WAL FULL", "it needs the fewest syncs of those that lose so little"),
        (rows, 5, "WAL NORMAL", "it never corrupts, loses no more, and needs the fewest syncs"),
        (rows[:1] + rows[3:4], 1, "DELETE FULL", "one lost checkpoint is allowed"),
        (rows[1:2], 9, None, "if no setting will do, return None"),
    ):
        found = given(choose([dict(row) for row in table], may_lose))
        if found != wanted:
            names = ", ".join(row["setting"] for row in table)
            return f"of {names} with may_lose={may_lose} it chose {found!r}: {why}"
    return None
