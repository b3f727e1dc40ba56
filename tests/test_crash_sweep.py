"""A process may die anywhere: nothing acknowledged is lost, and the next one ends the run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from lesson_lib import agent
from lesson_lib.crash import run_python
from lesson_lib.crashes import sweep
from lesson_lib.crashes.sweep import GoodDay, Rows, good_day, kill_and_resume, live, rows_left
from lesson_lib.errors import ChildError
from lesson_lib.json_text import from_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import connect, create_schema
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

KEYS = ("run-T104:lookup_runbook", "run-T104:draft_reply")
ONLY_AFTER_A_CRASH = ("run_resumed", "tool_reused")
STRIDE = 11  # of the second crashes: each first crash begins at another one


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GoodDay:
    day = good_day(tmp_path_factory.mktemp("whole"))
    assert check(day.folder) == day.rows
    told = Ledger(day.folder / "told").lines()
    versions = [f"version {version}" for version in range(5)]
    assert [line for line in told if line.startswith("version")] == versions
    effects = [line for line in told if line.startswith("effect")]
    assert [line.split(" ")[1] for line in effects] == list(KEYS)
    return day


def passed(folder: Path, session: str) -> list[str]:
    return (folder / f"{session}.points").read_text(encoding="utf-8").splitlines()


def crash_and_check(folder: Path, session: str, point: str, how: str) -> None:
    assert live(folder, session, point, how)[-1] == point
    check(folder)


def check(folder: Path) -> Rows:
    """Hold what is on disk against itself, and against what the dead processes were told."""
    rows = rows_left(folder)
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


def recover_and_compare(folder: Path, whole: GoodDay, *crashed: str) -> None:
    """End the run in this process, which is another than any that died, and compare the end."""
    with closing(connect(folder / "agent.db")) as connection:
        create_schema(connection)
        state = agent.resume_or_start(connection, find_ticket(read_tickets(), "T104"), "last")
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


def unsaved(points: Sequence[str]) -> list[str]:
    """Return the key of the tool that ran last, if no COMMIT came after it."""
    ran = [number for number, point in enumerate(points) if point.endswith(":tool_ran")]
    since = points[ran[-1] :] if ran else []
    if not since or any(p.startswith("after ") and p.endswith(" COMMIT") for p in since):
        return []
    return ["run-T104:" + since[0].removesuffix(":tool_ran")]


def test_the_points_are_the_named_ones_and_both_sides_of_each_statement(
    whole: GoodDay,
) -> None:
    before = [p.removeprefix("before ") for p in whole.points if p.startswith("before ")]
    after = [p.removeprefix("after ") for p in whole.points if p.startswith("after ")]
    assert before == after
    assert any(statement.endswith(" COMMIT") for statement in before)
    assert {point.partition(":")[0] for point in named(whole.points)} == set(agent.ACTIONS)
    assert len(set(whole.points)) == len(whole.points)


def named(points: Iterable[str]) -> list[str]:
    return [point for point in points if not point.startswith(("before ", "after "))]


def test_a_crash_at_any_point_loses_nothing_acknowledged(whole: GoodDay, tmp_path: Path) -> None:
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


def test_a_second_crash_in_the_recovery_changes_nothing(whole: GoodDay, tmp_path: Path) -> None:
    pairs = 0
    for number, first in enumerate(named(whole.points)):
        crashed, trial = tmp_path / f"{number}", tmp_path / f"{number}-trial"
        crashed.mkdir()
        crash_and_check(crashed, "session-1", first, ("exit", "kill")[number % 2])
        shutil.copytree(crashed, trial)
        live(trial, "session-2")
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


def test_an_outcome_tells_what_a_death_left_and_repeated(whole: GoodDay) -> None:
    first, ran, saved = (
        kill_and_resume(whole, point)
        for point in (
            whole.points[0],
            "lookup_runbook:tool_ran",
            "lookup_runbook:before_checkpoint",
        )
    )
    assert (first.number, first.version, first.events, first.repeated) == (1, None, 0, ())
    assert (ran.version, ran.events, ran.effects, ran.repeated) == (1, 2, 0, ("lookup_runbook",))
    assert (saved.version, saved.events, saved.effects, saved.repeated) == (1, 3, 1, ())
    assert first.same_end
    assert ran.same_end
    assert saved.same_end


def test_later_deaths_are_deaths_in_the_recovery(whole: GoodDay) -> None:
    ran, saved = "lookup_runbook:tool_ran", "lookup_runbook:checkpoint_saved"
    outcome = kill_and_resume(whole, ran, ran, saved)
    assert Ledger(whole.folder.with_name("killed") / "ledger").count(KEYS[0]) == 3
    assert outcome.recovery[-1] == "finish:checkpoint_saved"
    assert "draft_reply:begin" in outcome.recovery
    assert ran not in outcome.recovery
    with pytest.raises(ChildError, match="no run comes to 'nowhere'"):
        kill_and_resume(whole, "nowhere")


def test_neighbours_that_left_the_same_are_one_stretch(whole: GoodDay) -> None:
    first, second, other = (
        kill_and_resume(whole, f"classify_priority:{place}")
        for place in ("begin", "before_checkpoint", "checkpoint_saved")
    )
    rows = sweep.stretches([first, second, other])
    assert [(row["from"], row["to"]) for row in rows] == [
        (first.number, second.number),
        (other.number, other.number),
    ]
    assert [(row["version"], row["repeated"]) for row in rows] == [(0, "nothing"), (1, "nothing")]


def test_a_nursery_that_died_is_one_error_and_no_more(tmp_path: Path) -> None:
    live(tmp_path / "first", "session-1")
    sweep._nursery().kill()
    sweep._nursery().wait()
    with pytest.raises((ChildError, BrokenPipeError)):
        live(tmp_path / "second", "session-1")
    assert live(tmp_path / "third", "session-1")[-1] == "finish:checkpoint_saved"


NO_FORK = """
import io, json, os, sys
from lesson_lib.crashes import sweep
del os.fork
folder = sys.argv.pop()
sys.stdin = io.StringIO(json.dumps([folder, "session-1", "finish:begin", "kill"]))
sweep.main()
"""


def test_a_system_without_fork_starts_a_process_for_each_session(tmp_path: Path) -> None:
    assert run_python(NO_FORK, tmp_path).printed.strip() in ("-9", "15")
    assert passed(tmp_path, "session-1")[-1] == "finish:begin"


def test_what_an_interrupt_leaves_behind_is_over_before_the_next_session(tmp_path: Path) -> None:
    live(tmp_path, "session-1")
    nursery = sweep._nursery()
    assert nursery.stdin
    nursery.stdin.write(json.dumps([str(tmp_path), "session-2", None, "exit"]) + "\n")
    sweep._nursery.cache_clear()
    sweep._end(nursery)
    assert (tmp_path / "session-2.points").exists()


def test_an_end_that_differs_is_told(whole: GoodDay) -> None:
    other = replace(whole, rows=whole.rows | {"agent_runs": []})
    assert not kill_and_resume(other, "finish:begin").same_end


def test_a_child_that_does_not_die_where_it_should_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="session-1 was to die at 'nowhere', and did not"):
        live(tmp_path, "session-1", "nowhere")


def test_an_interrupted_session_does_not_answer_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(tmp_path / "first", "session-1")

    def interrupted(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep._nursery().stdout, "readline", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live(tmp_path / "second", "session-1", "finish:begin")
    assert live(tmp_path / "third", "session-1")[-1] == "finish:checkpoint_saved"
