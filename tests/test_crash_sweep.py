"""A process may die anywhere: nothing acknowledged is lost, and the next one ends the run."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sweep_child

from lesson_lib import agent
from lesson_lib.crash import EXIT_STATUS
from lesson_lib.errors import RunCompletedError, UnknownRunError
from lesson_lib.json_text import from_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.show import TABLES, rows_on_disk
from lesson_lib.stores.sqlite import connect, create_schema, load_state
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

KEYS = ("run-T104:lookup_runbook", "run-T104:draft_reply")
ONLY_AFTER_A_CRASH = ("run_resumed", "tool_reused")
STRIDE = 11  # of the second crashes: each first crash begins at another one

# Where the system can, each child is forked off a process that has imported the package already.
CAN_FORK = hasattr(os, "fork")
processes: Any = multiprocessing.get_context("forkserver" if CAN_FORK else "spawn")
if CAN_FORK:
    processes.set_forkserver_preload(["lesson_lib.crash", "pytest"])

type Rows = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Uninterrupted:
    """The points that a run passes when nothing stops it, and the rows it leaves."""

    points: list[str]
    rows: Rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    folder = tmp_path_factory.mktemp("whole")
    assert child(folder, "session-1") == 0
    return Uninterrupted(passed(folder, "session-1"), check(folder))


def child(folder: Path, session: str, die_at: str | None = None, how: str = "exit") -> int | None:
    """Run a session in a process of its own and return its exit status."""
    process = processes.Process(target=sweep_child.session, args=(folder, session, die_at, how))
    process.start()
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


def passed(folder: Path, session: str) -> list[str]:
    return (folder / f"{session}.points").read_text(encoding="utf-8").splitlines()


def crash_and_check(folder: Path, session: str, point: str, how: str) -> None:
    status = child(folder, session, point, how)
    assert status == EXIT_STATUS or (how == "kill" and status in (-9, 15))
    assert passed(folder, session)[-1] == point
    check(folder)


def check(folder: Path) -> Rows:
    """Hold what is on disk against itself, and against what the dead processes were told."""
    try:
        rows = rows_on_disk(folder / "agent.db")
    except sqlite3.OperationalError:  # no tables yet
        rows = {name: [] for name in TABLES}
    runs = [RunState(*row) for row in rows["agent_runs"]]
    events = [(row[2], row[3], from_json(row[5])) for row in rows["agent_events"]]
    saved = [detail["version"] for _, kind, detail in events if kind == "checkpoint_saved"]
    executed = [detail["key"] for _, kind, detail in events if kind == "tool_executed"]

    assert [row[1] for row in rows["agent_events"]] == list(range(1, len(events) + 1))
    assert [kind for _, kind, _ in events].count("run_started") == len(runs)
    assert saved == [*chain.from_iterable(range(1, run.version + 1) for run in runs)]
    assert sorted(executed) == [row[0] for row in rows["tool_effects"]]
    on_disk = {
        *(f"version {version}" for run in runs for version in range(run.version + 1)),
        *(f"effect {row[0]} {row[4]}" for row in rows["tool_effects"]),
        *(
            f"resumed {session} at version {detail['version']}"
            for session, kind, detail in events
            if kind == "run_resumed"
        ),
    }
    assert set(Ledger(folder / "told").lines()) <= on_disk
    return rows


def recover_and_compare(folder: Path, whole: Uninterrupted, *crashed: str) -> None:
    """End the run in this process, which is another than any that died, and compare the end."""
    with closing(connect(folder / "agent.db")) as connection:
        create_schema(connection)
        try:
            state = agent.resume(connection, "run-T104", "last")
        except UnknownRunError:
            state = agent.start(connection, find_ticket(read_tickets(), "T104"), "last")
        except RunCompletedError:
            state = load_state(connection, "run-T104")
        agent.run_to_end(
            connection, state, "last", Tools(read_runbooks(), Ledger(folder / "ledger"))
        )
    rows = check(folder)
    for table in ("agent_runs", "tool_effects"):
        assert rows[table] == whole.rows[table]
    assert lasting_events(rows) == lasting_events(whole.rows)
    # A tool runs again after a crash between its call and the commit of its result; never else.
    calls = Counter(KEYS) + Counter(chain(*(unsaved(passed(folder, name)) for name in crashed)))
    assert Counter(Ledger(folder / "ledger").lines()) == calls


def lasting_events(rows: Rows) -> Counter[tuple[str, ...]]:
    return Counter(row[3:] for row in rows["agent_events"] if row[3] not in ONLY_AFTER_A_CRASH)


def unsaved(points: list[str]) -> list[str]:
    """Return the key of the tool that ran last, if no COMMIT came after it."""
    ran = [number for number, point in enumerate(points) if point.endswith(":tool_ran")]
    since = points[ran[-1] :] if ran else []
    if not since or any(p.startswith("after ") and p.endswith(" COMMIT") for p in since):
        return []
    return ["run-T104:" + since[0].removesuffix(":tool_ran")]


def test_the_points_are_the_named_ones_and_both_sides_of_each_statement(
    whole: Uninterrupted,
) -> None:
    before = [p.removeprefix("before ") for p in whole.points if p.startswith("before ")]
    after = [p.removeprefix("after ") for p in whole.points if p.startswith("after ")]
    assert before == after
    assert any(statement.endswith(" COMMIT") for statement in before)
    assert {point.partition(":")[0] for point in named(whole.points)} == set(agent.ACTIONS)
    assert len(set(whole.points)) == len(whole.points)


def named(points: list[str]) -> list[str]:
    return [point for point in points if not point.startswith(("before ", "after "))]


def test_a_crash_at_any_point_loses_nothing_acknowledged(
    whole: Uninterrupted, tmp_path: Path
) -> None:
    twice = 0
    for number, point in enumerate(whole.points):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            crash_and_check(folder, "session-1", point, ("exit", "kill")[number % 2])
            recover_and_compare(folder, whole, "session-1")
        except BaseException as error:
            error.add_note(f"the process died at {point!r}")
            raise
        twice += len(unsaved(passed(folder, "session-1")))
        shutil.rmtree(folder)
    print(f"{len(whole.points)} crash points, a tool ran twice after {twice} of them")


def test_a_second_crash_in_the_recovery_changes_nothing(
    whole: Uninterrupted, tmp_path: Path
) -> None:
    pairs = 0
    for number, first in enumerate(named(whole.points)):
        crashed, trial = tmp_path / f"{number}", tmp_path / f"{number}-trial"
        crashed.mkdir()
        crash_and_check(crashed, "session-1", first, ("exit", "kill")[number % 2])
        shutil.copytree(crashed, trial)
        child(trial, "session-2")
        for second in passed(trial, "session-2")[number % STRIDE :: STRIDE]:
            pairs += 1
            folder = tmp_path / f"{number}-{pairs}"
            shutil.copytree(crashed, folder)
            try:
                crash_and_check(folder, "session-2", second, ("exit", "kill")[pairs % 2])
                recover_and_compare(folder, whole, "session-1", "session-2")
            except BaseException as error:
                error.add_note(f"processes died at {first!r}, then at {second!r}")
                raise
            shutil.rmtree(folder)
    assert pairs > 5 * len(named(whole.points))
    print(f"{pairs} pairs of crash points")
