"""A process may die anywhere: nothing acknowledged is lost, and the next one ends the run."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import swept_agents

from lesson_lib.errors import ChildError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.labs.crash_everywhere.ticket_target import TICKET_TARGET, rows
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.sweep import (
    Target,
    Undisturbed,
    kill_and_resume,
    kill_everywhere,
    run_session,
    run_undisturbed,
    sessions,
    stretches,
)
from lesson_lib.sweep.points import read_points
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

KEYS = ("run-T104:lookup_runbook", "run-T104:draft_reply")
ONLY_AFTER_A_CRASH = ("run_resumed", "tool_reused")
ENTRY = TICKET_TARGET.entry


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = run_undisturbed(TICKET_TARGET, tmp_path_factory.mktemp("whole"))
    check(run.folder)
    told = Ledger(run.folder / "told").lines()
    versions = [f"version {version}" for version in range(5)]
    assert [line for line in told if line.startswith("version")] == versions
    effects = [line for line in told if line.startswith("effect")]
    assert [line.split(" ")[1] for line in effects] == list(KEYS)
    return run


def passed(folder: Path, session: str) -> list[str]:
    return read_points(folder / f"{session}.points")


def crash_and_check(folder: Path, session: str, point: str, entry: str = ENTRY) -> None:
    assert run_session(entry, folder, session, point)[-1] == point
    check(folder)


def check(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Hold what is on disk against itself, and against what the dead processes were told."""
    found = rows(folder)
    runs = [RunState(*row) for row in found["agent_runs"]]
    events = [(row[2], row[3], from_json(row[5])) for row in found["agent_events"]]
    saved = [detail["version"] for _, kind, detail in events if kind == "checkpoint_saved"]
    executed = [detail["key"] for _, kind, detail in events if kind == "tool_executed"]

    assert [row[1] for row in found["agent_events"]] == list(range(1, len(events) + 1))
    assert [kind for _, kind, _ in events].count("run_started") == len(runs)
    assert saved == [*chain.from_iterable(range(1, run.version + 1) for run in runs)]
    assert sorted(executed) == [row[0] for row in found["tool_effects"]]
    on_disk = {
        *(f"version {version}" for run in runs for version in range(run.version + 1)),
        *(f"effect {row[0]} {row[4]}" for row in found["tool_effects"]),
        *(f"event {kind} of {session} {to_json(detail)}" for session, kind, detail in events),
    }
    assert set(Ledger(folder / "told").lines()) <= on_disk
    return found


def recover_and_compare(folder: Path, whole: Undisturbed, *crashed: str) -> None:
    """End the run in this process, which is another than any that died, and compare the end."""
    tools = Tools(read_runbooks(), Ledger(folder / "ledger"))
    with closing(connect(folder / "agent.db")) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, "last")
        ticket_agent.run_to_end(store, ticket_agent.resume_or_start(store, "run-T104"), tools)
    assert TICKET_TARGET.end(folder) == whole.end
    assert lasting_events(check(folder)) == lasting_events(rows(whole.folder))
    # A tool runs again after a crash between its call and the commit of its result; never else.
    calls = Counter(KEYS) + Counter(chain(*(unsaved(passed(folder, name)) for name in crashed)))
    assert Counter(tools.ledger.lines()) == calls


def lasting_events(found: dict[str, list[tuple[Any, ...]]]) -> Counter[tuple[str, ...]]:
    return Counter(row[3:] for row in found["agent_events"] if row[3] not in ONLY_AFTER_A_CRASH)


def unsaved(points: Sequence[str]) -> list[str]:
    """Return the key of the tool that ran last, if no COMMIT came after it."""
    ran = [number for number, point in enumerate(points) if point.endswith(":tool_ran")]
    since = points[ran[-1] :] if ran else []
    if not since or any(point.startswith("after COMMIT") for point in since):
        return []
    return ["run-T104:" + since[0].removesuffix(":tool_ran")]


def named(points: Iterable[str]) -> list[str]:
    return [point for point in points if ":" in point]


def test_the_points_are_the_named_ones_and_both_sides_of_each_statement(whole: Undisturbed) -> None:
    before = [p.removeprefix("before ") for p in whole.points if p.startswith("before ")]
    after = [p.removeprefix("after ") for p in whole.points if p.startswith("after ")]
    assert before == after
    assert "COMMIT" in before
    assert {point.partition(":")[0] for point in named(whole.points)} == set(ticket_agent.actions)
    assert len(before) + len(after) + len(named(whole.points)) == len(whole.points)
    assert len(set(whole.points)) == len(whole.points)


def named_or_commit(points: Sequence[str]) -> list[str]:
    return [point for point in points if ":" in point or "COMMIT" in point]


def every(points: Sequence[str]) -> list[str]:
    return list(points)


@pytest.mark.parametrize("choose", [named_or_commit, pytest.param(every, marks=pytest.mark.prove)])
def test_a_crash_at_any_point_loses_nothing_acknowledged(
    choose: Callable[[Sequence[str]], list[str]], whole: Undisturbed, tmp_path: Path
) -> None:
    points, twice = choose(whole.points), 0
    for number, point in enumerate(points):
        folder = tmp_path / str(number)
        try:
            crash_and_check(folder, "session-1", point)
            recover_and_compare(folder, whole, "session-1")
        except BaseException as error:
            error.add_note(f"the process died at {point!r}")
            raise
        twice += len(unsaved(passed(folder, "session-1")))
        shutil.rmtree(folder)
    assert twice
    print(f"{len(points)} crash points, a tool ran twice after {twice} of them")


@pytest.mark.prove
def test_a_crash_at_any_line_of_the_core_loses_nothing_acknowledged(
    whole: Undisturbed, tmp_path: Path
) -> None:
    entry, folder = swept_agents.LINE_TARGET.entry, tmp_path / "killed"
    points = run_session(entry, folder, "session-1")
    shutil.rmtree(folder)
    assert len(points) > 250
    for point in points:
        try:
            crash_and_check(folder, "session-1", point, entry)
            run_session(ENTRY, folder, "session-2")
            check(folder)
            assert TICKET_TARGET.end(folder) == whole.end
        except BaseException as error:
            error.add_note(f"the process died at {point!r}")
            raise
        shutil.rmtree(folder)
    print(f"{len(points)} lines")


@pytest.mark.parametrize(
    "stride", [pytest.param(11, marks=pytest.mark.prove), 55], ids=["close", "far"]
)
def test_a_second_crash_in_the_recovery_changes_nothing(
    stride: int, whole: Undisturbed, tmp_path: Path
) -> None:
    pairs = 0
    # Of the second crashes, each first crash begins at another one.
    for number, first in enumerate(named(whole.points)):
        crashed, trial = tmp_path / f"{number}", tmp_path / f"{number}-trial"
        crash_and_check(crashed, "session-1", first)
        shutil.copytree(crashed, trial)
        run_session(ENTRY, trial, "session-2")
        for second in passed(trial, "session-2")[7 * number % stride :: stride]:
            pairs += 1
            folder = tmp_path / f"{number}-{pairs}"
            shutil.copytree(crashed, folder)
            try:
                crash_and_check(folder, "session-2", second)
                recover_and_compare(folder, whole, "session-1", "session-2")
            except BaseException as error:
                error.add_note(f"processes died at {first!r}, then at {second!r}")
                raise
            shutil.rmtree(folder)
    assert pairs > len(named(whole.points))
    print(f"{pairs} pairs of crash points")


def test_an_outcome_tells_what_a_death_left_and_repeated(whole: Undisturbed) -> None:
    first, ran, saved = (
        kill_and_resume(whole, point)
        for point in (
            whole.points[0],
            "lookup_runbook:tool_ran",
            "lookup_runbook:before_checkpoint",
        )
    )
    assert (first.number, *first.left.values(), first.repeated) == (1, None, 0, 0, ())
    assert (*ran.left.values(), ran.repeated) == (1, 2, 0, ("lookup_runbook",))
    assert (*saved.left.values(), saved.repeated) == (1, 3, 1, ())
    assert first.same_end
    assert ran.same_end
    assert saved.same_end


def test_later_deaths_are_deaths_in_the_recovery(whole: Undisturbed) -> None:
    ran, saved = "lookup_runbook:tool_ran", "lookup_runbook:checkpoint_saved"
    outcome = kill_and_resume(whole, ran, ran, saved)
    assert Ledger(whole.folder.with_name("killed") / "ledger").count(KEYS[0]) == 3
    assert outcome.recovery[-1] == "finish:checkpoint_saved"
    assert "draft_reply:begin" in outcome.recovery
    assert ran not in outcome.recovery
    with pytest.raises(ChildError, match="no run comes to 'nowhere'"):
        kill_and_resume(whole, "nowhere")


def test_neighbours_that_left_the_same_are_one_stretch(whole: Undisturbed) -> None:
    first, second, other = (
        kill_and_resume(whole, f"classify_priority:{place}")
        for place in ("begin", "before_checkpoint", "checkpoint_saved")
    )
    rows = stretches([first, second, other])
    assert [(row["from"], row["to"]) for row in rows] == [
        (first.number, second.number),
        (other.number, other.number),
    ]
    assert [(row["version"], row["repeated"]) for row in rows] == [(0, "nothing"), (1, "nothing")]


def test_an_end_that_differs_is_told(whole: Undisturbed) -> None:
    assert not kill_and_resume(replace(whole, end={}), "finish:begin").same_end


# Agents that know nothing of this package's stores


def killed_everywhere(target: Target, folder: Path) -> list[tuple[str, tuple[str, ...], bool]]:
    whole = run_undisturbed(target, folder / "whole")
    outcomes = kill_everywhere(whole)
    assert [outcome.point for outcome in outcomes] == list(whole.points)
    return [(each.point, each.repeated, each.same_end) for each in outcomes]


def test_an_agent_that_replaces_its_file_survives_every_death(tmp_path: Path) -> None:
    found = killed_everywhere(swept_agents.target(swept_agents.replacing), tmp_path)
    assert all(same_end for *_, same_end in found)
    assert [point for point, repeated, _ in found if repeated == ("b",)] == [
        *("b:called", "before open new.json #2"),
        *("after open new.json #2", "before replace done.json #2"),
    ]


def test_an_agent_that_overwrites_its_file_dies_with_it(tmp_path: Path) -> None:
    target = swept_agents.target(swept_agents.overwriting)
    whole = run_undisturbed(target, tmp_path / "whole")
    assert kill_and_resume(whole, "before open done.json #2").same_end
    with pytest.raises(ChildError, match="session-2 failed: JSONDecodeError: Expecting value"):
        kill_and_resume(whole, "after open done.json #2")


def test_a_call_that_is_never_made_is_another_end(tmp_path: Path) -> None:
    found = killed_everywhere(swept_agents.target(swept_agents.forgetful), tmp_path)
    assert found == [(f"{step}:saved", (), False) for step in "abc"]


def test_the_statements_of_an_agent_with_a_database_of_its_own(tmp_path: Path) -> None:
    found = killed_everywhere(swept_agents.target(swept_agents.with_sqlite), tmp_path)
    assert all(same_end for *_, same_end in found)
    repeating = [point for point, repeated, _ in found if repeated == ("b",)]
    assert repeating == ["before INSERT INTO done #2"]


# The process that forks


def test_a_server_that_died_is_one_error_and_no_more(tmp_path: Path) -> None:
    run_session(ENTRY, tmp_path / "first", "session-1")
    sessions._server().kill()
    with pytest.raises(ChildError, match="has died: try again"):
        run_session(ENTRY, tmp_path / "second", "session-1")
    assert run_session(ENTRY, tmp_path / "third", "session-1")[-1] == "finish:checkpoint_saved"


def test_a_system_without_fork_starts_a_process_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork", raising=False)
    assert run_session(ENTRY, tmp_path, "session-1", "finish:begin")[-1] == "finish:begin"
    assert run_session(ENTRY, tmp_path, "session-2")[-1] == "finish:checkpoint_saved"
    with pytest.raises(ChildError, match="the child process failed: in the printer"):
        run_session("swept_agents:failing", tmp_path, "session-1")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("swept_agents:failing", "session-1 failed: ValueError: no paper"),
        ("swept_agents:leaving", "session-1 failed: SystemExit: 3"),
        ("swept_agents:nothing", "session-1 failed: AttributeError: .*no attribute 'nothing'"),
        ("no_such_module:main", "session-1 failed: ModuleNotFoundError: No module named"),
    ],
)
def test_a_session_that_fails_says_why(entry: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=words):
        run_session(entry, tmp_path, "session-1")


def test_a_session_dies_at_a_number_too(tmp_path: Path) -> None:
    assert len(run_session(ENTRY, tmp_path, "session-1", 77)) == 77


def test_a_child_that_does_not_die_where_it_should_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="session-1 was to die at 'nowhere', and did not"):
        run_session(ENTRY, tmp_path, "session-1", "nowhere")


def test_an_interrupted_session_ends_and_does_not_answer_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sessions._server()
    answers, read = iter([server.read, None]), server.read

    def interrupted() -> str:
        if next(answers, read) is None:
            raise KeyboardInterrupt
        return read()

    monkeypatch.setattr(server, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_session("swept_agents:endless", tmp_path / "second", "session-1")
    assert sessions._server() is server
    assert run_session(ENTRY, tmp_path / "third", "session-1")[-1] == "finish:checkpoint_saved"


def test_what_a_session_started_ends_with_it_and_requests_are_not_its_to_read(
    tmp_path: Path,
) -> None:
    assert run_session("swept_agents:with_a_child", tmp_path, "session-1") == ["read ''"]
    sleeper = int((tmp_path / "child").read_text(encoding="utf-8"))
    deadline = time.monotonic() + 60
    while _lives(sleeper) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(sleeper)


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


def test_an_agent_that_was_mended_is_swept_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mended_agent.py"
    for name in ("first", "second"):
        module.write_text(f"def session(folder, session, point): point({name!r})\n")
        assert run_session("mended_agent:session", tmp_path / name, "session-1") == [name]


def test_an_agent_without_points_is_not_called_sound(tmp_path: Path) -> None:
    target = swept_agents.target(swept_agents.pointless)
    with pytest.raises(ChildError, match="pointless passed no crash point"):
        run_undisturbed(target, tmp_path / "whole")


def test_an_error_of_a_sweep_names_the_death_before_it(tmp_path: Path) -> None:
    whole = run_undisturbed(swept_agents.target(swept_agents.overwriting), tmp_path / "whole")
    words = r"after a death at 'after open done\.json', session-2 failed"
    with pytest.raises(ChildError, match=words):
        kill_and_resume(whole, "after open done.json")
