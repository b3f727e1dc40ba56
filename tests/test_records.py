"""Runs and events: a checkpoint is there whole or not at all, in an order no clock decides."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store_parts import rows

from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    JSONValueError,
    LessonError,
    RunExistsError,
    StaleVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import Child
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    delete_run,
    execute_once,
    load_state,
    read_events,
    record_event,
    save_checkpoint,
    start_run,
    unfinished_runs,
)


def start(connection: AgentConnection, **changed: object) -> RunState:
    wanted = {"run_id": "run-1", "ticket_id": "T1", "first_action": "look", "context": {"n": 0}}
    arguments: dict[str, Any] = {"session": "s1", **wanted, **changed}
    session = arguments.pop("session")
    return start_run(connection, RunState.begin(**arguments), session=session)


def save(connection: AgentConnection, state: RunState, **changed: object) -> RunState:
    wanted = {"action": "look", "found": {"n": 1}, "next_action": "look"}
    arguments: dict[str, Any] = {"session": "s1", **wanted, **changed}
    session = arguments.pop("session")
    return save_checkpoint(connection, state, Step(**arguments), session=session)


def note(connection: AgentConnection, **changed: object) -> None:
    wanted = {"run_id": "run-1", "session": "s1", "event_type": "noted", "action": "look"}
    arguments: dict[str, Any] = {**wanted, **changed}
    with connection:
        record_event(connection, **arguments)


def by_hand(database: Path, script: str) -> None:
    """Change rows as no function of the package would."""
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.executescript(script)


# What is saved comes back.


def test_a_started_run_is_at_version_0_and_its_first_event_says_so(
    connection: AgentConnection,
) -> None:
    state = start(connection, context={"ticket": {"area": "packing"}})
    assert state == RunState("run-1", "T1", "running", "look", '{"ticket": {"area": "packing"}}', 0)
    assert load_state(connection, "run-1") == state
    (event,) = read_events(connection, "run-1")
    assert (event.sequence, event.session, event.event_type) == (1, "s1", "run_started")
    assert (event.action, event.detail) == ("start", "{}")


def test_a_checkpoint_is_one_version_on_and_its_event_says_so(connection: AgentConnection) -> None:
    first = start(connection)
    saved = save(connection, first, session="s2", action="look", next_action="draft")
    assert saved == RunState("run-1", "T1", "running", "draft", '{"n": 1}', 1)
    assert load_state(connection, "run-1") == saved
    event = read_events(connection, "run-1")[-1]
    assert (event.sequence, event.session, event.event_type) == (2, "s2", "checkpoint_saved")
    assert (event.action, event.detail) == ("look", '{"version": 1}')


def test_no_next_action_completes_a_run(connection: AgentConnection) -> None:
    saved = save(connection, start(connection), next_action=None)
    assert (saved.status, saved.next_action) == ("completed", None)
    assert load_state(connection, "run-1") == saved


def test_what_one_connection_saved_another_loads(
    connection: AgentConnection, database: Path
) -> None:
    saved = save(connection, start(connection))
    with closing(connect(database)) as other:
        assert load_state(other, "run-1") == saved
        assert read_events(other, "run-1") == read_events(connection, "run-1")


def test_an_event_keeps_its_detail_and_its_time_in_utc(
    database: Path, connection: AgentConnection
) -> None:
    noon = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    start(connection)
    with closing(connect(database, clock=lambda: noon)) as other:
        note(other, detail={"b": [1], "a": None})
    event = read_events(connection, "run-1")[-1]
    assert event.detail == '{"a": null, "b": [1]}'
    assert event.created_at_utc == "2024-05-01T10:00:00.000000Z"


def test_a_state_cannot_be_changed_in_place(connection: AgentConnection) -> None:
    state = start(connection, context={"n": [0]})
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.version = 7  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        state.context["n"] = 7  # type: ignore[index]
    state.context["n"].append(7)
    assert state.context == {"n": [0]}
    assert load_state(connection, "run-1") == state


def test_the_state_and_what_was_found_stay_as_they_were(
    connection: AgentConnection,
) -> None:
    first, found = start(connection), {"n": [1]}
    saved = save(connection, first, found=found)
    found["n"].append(2)
    assert (first.version, dict(first.context)) == (0, {"n": 0})
    assert (saved.version, dict(saved.context)) == (1, {"n": [1]})


# Fact 8: order comes from the sequence, never from a clock.


def test_events_stay_in_order_though_the_clock_runs_backwards(database: Path) -> None:
    hours = count()
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    with closing(connect(database, clock=lambda: noon - timedelta(hours=next(hours)))) as ours:
        state = start(ours)
        for n in range(1, 12):  # 10 comes after 9, too
            state = save(ours, state, found={"n": n})
        read = [event.detail for event in read_events(ours, "run-1")]
        usual = "SELECT detail FROM agent_events ORDER BY created_at_utc"
        by_clock = [detail for (detail,) in ours.execute(usual)]
        assert load_state(ours, "run-1").context == {"n": 11}
    in_order = ["{}", *(f'{{"version": {n}}}' for n in range(1, 12))]
    assert (read, by_clock) == (in_order, in_order[::-1])


def test_the_time_of_an_event_is_there_whatever_the_version_of_sqlite(
    connection: AgentConnection,
) -> None:
    (usual,) = connection.execute("SELECT unixepoch('subsec')").fetchone()
    assert (usual is None) == (sqlite3.sqlite_version_info < (3, 42))
    start(connection)
    (event,) = read_events(connection, "run-1")
    datetime.strptime(event.created_at_utc, "%Y-%m-%dT%H:%M:%S.%f%z")


# Refused, and nothing changed.


def test_a_run_cannot_be_started_twice(connection: AgentConnection, database: Path) -> None:
    save(connection, start(connection))
    before = rows(database)
    with pytest.raises(RunExistsError, match=r"run-1 was started before: resume it"):
        start(connection, ticket_id="T2")
    assert rows(database) == before


def test_a_run_begins_at_version_0_only(connection: AgentConnection, database: Path) -> None:
    later = save(connection, start(connection))
    before = rows(database)
    with pytest.raises(InvalidStateError, match="run-2 begins at version 0, not 1"):
        start_run(connection, dataclasses.replace(later, run_id="run-2"), session="s1")
    assert rows(database) == before


@pytest.mark.parametrize("loaded", [0, 1, 3])
def test_a_writer_with_another_version_is_refused(
    connection: AgentConnection, database: Path, loaded: int
) -> None:
    current = save(connection, save(connection, start(connection)))
    before = rows(database)
    with pytest.raises(StaleVersionError, match=f"run-1 is at version 2, .* {loaded}: load"):
        save(connection, dataclasses.replace(current, version=loaded), found={"n": "other"})
    assert rows(database) == before


def test_of_two_workers_at_one_version_the_second_is_refused(
    connection: AgentConnection, database: Path
) -> None:
    start(connection)
    with closing(connect(database)) as other:
        mine, theirs = load_state(connection, "run-1"), load_state(other, "run-1")
        saved = save(connection, mine, found={"by": "first"})
        with pytest.raises(StaleVersionError):
            save(other, theirs, found={"by": "second"})
        assert load_state(other, "run-1") == saved


UNKNOWN: dict[str, Callable[[AgentConnection], object]] = {
    "load_state": lambda c: load_state(c, "run-9"),
    "read_events": lambda c: read_events(c, "run-9"),
    "delete_run": lambda c: delete_run(c, "run-9"),
    "save_checkpoint": lambda c: save(c, RunState("run-9", "T1", "running", "look", "{}", 0)),
}


@pytest.mark.parametrize("ask", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_run_is_named(
    connection: AgentConnection, database: Path, ask: Callable[[AgentConnection], object]
) -> None:
    start(connection)
    before = rows(database)
    with pytest.raises(UnknownRunError, match=r"agent\.db holds no .*'run-9'"):
        ask(connection)
    assert rows(database) == before


def test_an_event_of_an_unknown_run_is_refused(connection: AgentConnection, database: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        note(connection)
    assert rows(database)["agent_events"] == []


def test_an_event_is_recorded_inside_a_block_only(
    connection: AgentConnection, database: Path
) -> None:
    start(connection)
    before = rows(database)
    with pytest.raises(TransactionError, match="inside the caller's `with connection:`"):
        record_event(connection, run_id="run-1", session="s", event_type="noted", action="look")
    assert rows(database) == before


OWN_BLOCK: dict[str, Callable[[AgentConnection, RunState], object]] = {
    "start_run": lambda c, _: start(c, run_id="run-2"),
    "save_checkpoint": save,
    "delete_run": lambda c, _: delete_run(c, "run-1"),
    "create_schema": lambda c, _: create_schema(c),
}


@pytest.mark.parametrize("write", OWN_BLOCK.values(), ids=OWN_BLOCK)
def test_what_commits_by_itself_is_refused_inside_a_block(
    connection: AgentConnection,
    database: Path,
    write: Callable[[AgentConnection, RunState], object],
) -> None:
    state = start(connection)
    before = rows(database)
    with pytest.raises(TransactionError, match="does not nest"), connection:
        record_event(connection, run_id="run-1", session="s", event_type="noted", action="look")
        write(connection, state)
    assert rows(database) == before


@pytest.mark.parametrize("name", ["run_id", "session", "event_type", "action"])
@pytest.mark.parametrize("value", ["", None, 5, b"s", "\ud800"])
def test_an_event_holds_text_only(
    connection: AgentConnection, database: Path, name: str, value: object
) -> None:
    start(connection)
    before = rows(database)
    with pytest.raises(InvalidStateError, match=rf"^{name} "):
        note(connection, **{name: value})
    assert rows(database) == before


@pytest.mark.parametrize("name", ["run_id", "ticket_id"])
@pytest.mark.parametrize("value", ["", None, 104, b"r", "\ud800"])
def test_a_run_is_named_by_text_only(
    connection: AgentConnection, database: Path, name: str, value: object
) -> None:
    with pytest.raises(InvalidStateError, match=rf"^{name} "):
        start(connection, **{name: value})
    assert rows(database)["agent_runs"] == []


# A checkpoint and its event: both or neither.

FAILURES: dict[str, tuple[type[BaseException], str]] = {
    "the disk is full": (StorageError, "disk is full"),
    "the table refuses": (sqlite3.IntegrityError, "no more events"),
    "the session is no text": (InvalidStateError, "session"),
    "the clock fails": (ZeroDivisionError, "by zero"),
}


@contextlib.contextmanager
def failing_event(database: Path, failure: str) -> Iterator[tuple[AgentConnection, str]]:
    """Open a connection on which the insert of an event fails; yield a session name too."""
    clock = (lambda: 1 / 0) if failure == "the clock fails" else (lambda: datetime.now(UTC))
    with closing(connect(database, clock=clock)) as opened:  # type: ignore[arg-type]
        if failure == "the table refuses":
            opened.execute(
                "CREATE TRIGGER full BEFORE INSERT ON agent_events"
                " BEGIN SELECT RAISE(ABORT, 'no more events'); END"
            )
        session = "" if failure == "the session is no text" else "s"
        if failure == "the disk is full":
            (pages,) = opened.execute("PRAGMA page_count").fetchone()
            opened.execute(f"PRAGMA max_page_count = {pages}")
            session *= 100_000
        yield opened, session
        opened.execute("DROP TRIGGER IF EXISTS full")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_checkpoint_whose_event_fails_is_not_there(
    connection: AgentConnection, database: Path, failure: str
) -> None:
    state = start(connection)
    before, (error, said) = rows(database), FAILURES[failure]
    with failing_event(database, failure) as (failing, session):
        with pytest.raises(error, match=said):
            save(failing, state, session=session)
        assert rows(database) == before
        assert load_state(failing, "run-1") == state
    assert save(connection, state).version == 1


@pytest.mark.parametrize("failure", FAILURES)
def test_a_run_whose_first_event_fails_is_not_there(
    connection: AgentConnection, database: Path, failure: str
) -> None:
    before, (error, said) = rows(database), FAILURES[failure]
    with failing_event(database, failure) as (failing, session):
        with pytest.raises(error, match=said):
            start(failing, session=session)
        assert rows(database) == before


@pytest.mark.parametrize(
    "write",
    [
        lambda connection, value: start(connection, context=value),
        lambda connection, value: save(connection, start(connection), found=value),
    ],
    ids=["start", "save"],
)
def test_a_context_that_is_not_json_is_refused(
    connection: AgentConnection,
    database: Path,
    write: Callable[[AgentConnection, object], RunState],
) -> None:
    with pytest.raises(JSONValueError, match=r"^context\.seen is nan"):
        write(connection, {"seen": float("nan")})
    assert [row[5] for row in rows(database)["agent_runs"]] in ([], [0])


SAVE = """
import sys
from lesson_lib.errors import StaleVersionError
from lesson_lib.model import Step
from lesson_lib.sqlite import connect, load_state, record_event, save_checkpoint
connection = connect(sys.argv[1], timeout=60)
print("ready", flush=True)
sys.stdin.readline()
saved = refused = 0
while saved < 10:
    state = load_state(connection, "run-1")
    try:
        step = Step("look", {"n": state.context["n"] + 1}, "look")
        save_checkpoint(connection, state, step, session=sys.argv[2])
        saved += 1
    except StaleVersionError:
        refused += 1
    with connection:
        record_event(connection, run_id="run-1", session=sys.argv[2], event_type="noted",
            action="look")
connection.close()
print(refused, flush=True)
"""


def test_four_racing_processes_leave_no_gap_and_lose_no_checkpoint(
    connection: AgentConnection, database: Path
) -> None:
    start(connection)
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(Child("-c", SAVE, database, f"s{n}")) for n in range(4)]
        assert [racer.read() for racer in racers] == ["ready"] * 4
        for racer in racers:
            racer.tell("go")
        refused = sum(int(racer.read()) for racer in racers)
    state, events = load_state(connection, "run-1"), read_events(connection, "run-1")
    assert (state.version, dict(state.context)) == (40, {"n": 40})
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    saved = [event for event in events if event.event_type == "checkpoint_saved"]
    assert [event.detail for event in saved] == [f'{{"version": {n}}}' for n in range(1, 41)]
    assert len(events) == 1 + 2 * 40 + refused


# Rows that cannot be trusted.

CORRUPT = {
    "a version that no event tells of": ("UPDATE agent_runs SET version = 3", "version 3"),
    "a version too small": ("UPDATE agent_runs SET version = 1", "version 1"),
    "a negative version": ("UPDATE agent_runs SET version = -1", "version -1"),
    "the first event missing": ("DELETE FROM agent_events WHERE sequence = 1", "a gap"),
    "an event missing": ("DELETE FROM agent_events WHERE sequence = 2", "a gap"),
    "the last event missing": ("DELETE FROM agent_events WHERE sequence = 3", "1 checkpoints"),
    "all events missing": ("DELETE FROM agent_events", "a gap"),
    "a context cut off": ("UPDATE agent_runs SET context_json = '{\"n\": '", "not a JSON object"),
    "a context with NaN": ("UPDATE agent_runs SET context_json = '{\"n\": NaN}'", "not a JSON"),
    "a context of another shape": ("UPDATE agent_runs SET context_json = 'null'", "not a JSON"),
    "an unknown status": ("UPDATE agent_runs SET status = 'paused'", "status 'paused'"),
    "no next action": ("UPDATE agent_runs SET next_action = NULL", "next action None"),
    "a next action too many": ("UPDATE agent_runs SET status = 'completed'", "next action 'look'"),
    "no ticket": ("UPDATE agent_runs SET ticket_id = ''", "ticket_id"),
}


@pytest.mark.parametrize("kind", CORRUPT)
def test_a_row_that_cannot_be_trusted_is_refused_and_stops_no_other_run(
    connection: AgentConnection, database: Path, kind: str
) -> None:
    bad, good = start(connection), start(connection, run_id="run-2")
    for _ in range(2):
        bad, good = save(connection, bad), save(connection, good)
    script, said = CORRUPT[kind]
    by_hand(database, script + (" AND" if "WHERE" in script else " WHERE") + " run_id = 'run-1'")
    before = rows(database)
    with pytest.raises(CorruptStateError, match=f"run-1.*{said}"):
        load_state(connection, "run-1")
    assert rows(database) == before
    assert load_state(connection, "run-2") == good
    assert "run-2" in unfinished_runs(connection)
    assert save(connection, good).version == 3


def test_what_was_found_corrupt_names_its_cure(connection: AgentConnection, database: Path) -> None:
    start(connection)
    by_hand(database, "UPDATE agent_runs SET version = 3")
    with pytest.raises(CorruptStateError, match="Restore the database from a backup"):
        load_state(connection, "run-1")


# The list of runs, and the end of a run.


def test_unfinished_runs_come_in_the_order_of_their_ids(connection: AgentConnection) -> None:
    assert unfinished_runs(connection) == []
    for run_id in ("run-3", "run-1", "run-2"):
        start(connection, run_id=run_id)
    save(connection, load_state(connection, "run-2"), next_action=None)
    assert unfinished_runs(connection) == ["run-1", "run-3"]


READS: dict[str, Callable[[AgentConnection], object]] = {
    "load_state": lambda c: load_state(c, "run-1"),
    "read_events": lambda c: read_events(c, "run-1"),
    "unfinished_runs": unfinished_runs,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_locks_nobody_out_and_leaves_nothing_open(
    connection: AgentConnection, database: Path, read: Callable[[AgentConnection], object]
) -> None:
    start(connection)
    start(connection, run_id="run-2")
    connection.execute("PRAGMA journal_mode = DELETE")  # where a reader locks writers out
    with closing(sqlite3.connect(database, autocommit=True, timeout=0)) as other:
        kept = read(connection)
        other.execute("DELETE FROM agent_events")
    assert kept


def test_a_completed_run_is_deleted_with_all_that_is_its_own(
    connection: AgentConnection, database: Path
) -> None:
    start(connection, run_id="run-2")
    before = rows(database)
    state = start(connection)
    old = ToolCall("run-1", "k", "t", None, lambda: "old")
    execute_once(connection, old, session="s1")
    save(connection, state, next_action=None)
    delete_run(connection, "run-1")
    assert rows(database) == before
    start(connection)
    new = dataclasses.replace(old, function=lambda: "new")
    assert execute_once(connection, new, session="s1").value == "new"


def test_an_unfinished_run_is_not_deleted(connection: AgentConnection, database: Path) -> None:
    start(connection)
    before = rows(database)
    with pytest.raises(InvalidStateError, match=r"run-1 is still running: let it finish"):
        delete_run(connection, "run-1")
    assert rows(database) == before


def test_a_run_is_deleted_whole_or_not_at_all(connection: AgentConnection, database: Path) -> None:
    save(connection, start(connection), next_action=None)
    connection.execute(
        "CREATE TRIGGER keep BEFORE DELETE ON agent_runs BEGIN SELECT RAISE(ABORT, 'kept'); END"
    )
    before = rows(database)
    with pytest.raises(InvalidStateError, match="run-1 is still needed: kept"):
        delete_run(connection, "run-1")
    assert rows(database) == before


def test_a_database_without_tables_says_what_to_call(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "new.db")) as connection:
        with pytest.raises(LessonError, match=r"no such table: agent_runs: .* create_schema first"):
            load_state(connection, "run-1")
        create_schema(connection)
        assert unfinished_runs(connection) == []
