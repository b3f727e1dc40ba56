"""Every pattern keeps the same promises; where they differ, the tables say what the runs did."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_bytes import parts
from store_parts import new_database

from lesson_lib.checkpoints.archive import keep, save_kept
from lesson_lib.checkpoints.codec import encode
from lesson_lib.checkpoints.retention import abandon, silent_runs
from lesson_lib.errors import (
    ChildError,
    InvalidStateError,
    NotKeptError,
    ReplayError,
    RunCompletedError,
    RunExistsError,
    SimulatedCrash,
    StaleVersionError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.patterns import costs, figures, intervals, maturity, memory, metering, trials
from lesson_lib.patterns.checkpointing import Checkpoint
from lesson_lib.patterns.ephemeral import Ephemeral
from lesson_lib.patterns.event_schema import LogEvent
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid
from lesson_lib.patterns.log import append, read_log
from lesson_lib.patterns.protocol import Pattern, Step, fork, load_or_start, work
from lesson_lib.patterns.trials import PATTERNS, RUN, read_pages
from lesson_lib.recovery.backups import back_up
from lesson_lib.recovery.recover import recover
from lesson_lib.stores.sqlite import AgentConnection, connect, delete_run, unfinished_runs
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

DURABLE = [name for name in PATTERNS if name != "ephemeral"]
KEYED = [name for name in DURABLE if name not in ("checkpoint", "event sourcing, no keys")]
LOGS = ["event sourcing", "hybrid"]
TICKET = find_ticket(read_tickets(), "T104")
ACTIONS = ("classify_priority", "lookup_runbook", "draft_reply", "finish")
POINTS = [f"{action}:{point}" for action in ACTIONS for point in ("before_save", "saved")]
PAGE = Step("read_page", {"cursors": {"page": 1}}, "the next in line", "read_page")
QUICK = settings(derandomize=True, deadline=None, max_examples=12, database=None)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[AgentConnection]:
    with closing(connect(new_database(tmp_path))) as opened:
        yield opened


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(read_runbooks(), Ledger(tmp_path / "ledger.txt"))


def finished(pattern: Pattern, tools: Tools) -> RunState:
    return work(pattern, load_or_start(pattern, TICKET), tools)


# The contract.


@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_saved_is_what_is_loaded(name: str, connection: AgentConnection) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    with pytest.raises(UnknownRunError):
        pattern.load(RUN)
    state = load_or_start(pattern, TICKET)
    assert pattern.load(RUN) == state == load_or_start(pattern, TICKET)
    assert (state.version, state.next_action) == (0, "classify_priority")
    first = pattern.save(
        state, Step("classify_priority", {"priority": "urgent"}, "a test", "lookup_runbook")
    )
    assert pattern.load(RUN) == first
    assert (first.version, first.next_action) == (1, "lookup_runbook")
    assert first.context == state.context | {"priority": "urgent"}
    last = pattern.save(first, Step("finish", {"reply": "Done."}, "a test", None))
    assert pattern.load(RUN) == last == pattern.at(RUN, 2)
    assert (last.version, last.status) == (2, "completed")


@pytest.mark.parametrize("name", PATTERNS)
def test_all_patterns_lead_to_the_same_state(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    state = finished(PATTERNS[name](connection, "session-1"), tools)
    assert state == finished(Ephemeral(), tools)
    assert tools.ledger.count(f"{RUN}:lookup_runbook") == 2


@pytest.mark.parametrize("name", PATTERNS)
def test_the_slower_of_two_sessions_changes_nothing(name: str, connection: AgentConnection) -> None:
    first, second = (PATTERNS[name](connection, session) for session in "AB")
    if name == "ephemeral":
        second = first
    state = read_pages(first, "run-T900", 1)
    saved = second.save(state, PAGE)
    before = connection.total_changes
    with pytest.raises(StaleVersionError):
        first.save(state, replace(PAGE, found={"cursors": {"page": 99}}))
    assert first.load("run-T900") == saved
    assert connection.total_changes == before


def test_memory_too_starts_a_run_once_and_saves_none_after_its_end(tools: Tools) -> None:
    pattern = Ephemeral()
    start = load_or_start(pattern, TICKET)
    with pytest.raises(RunExistsError):
        pattern.start(start)
    last = finished(pattern, tools)
    with pytest.raises(RunCompletedError):
        pattern.save(last, PAGE)


@pytest.mark.parametrize("name", DURABLE)
def test_a_run_is_started_once_and_not_saved_after_its_end(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    start = load_or_start(pattern, TICKET)
    with pytest.raises(RunExistsError):
        pattern.start(start)
    assert unfinished_runs(connection) == [RUN]
    last = finished(pattern, tools)
    with pytest.raises(RunCompletedError):
        pattern.save(last, PAGE)
    assert pattern.load(RUN) == last
    assert unfinished_runs(connection) == []


@pytest.mark.parametrize("name", DURABLE)
def test_a_finished_run_is_deleted_with_all_that_was_kept_of_it(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    finished(pattern, tools)
    delete_run(connection, RUN)
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    left = [t for (t,) in tables if connection.execute(f"SELECT 1 FROM {t}").fetchone()]
    assert left == []


@pytest.mark.parametrize("name", DURABLE)
@QUICK
@given(deaths=st.lists(st.sampled_from(POINTS), max_size=4))
def test_deaths_anywhere_change_nothing_in_the_end(name: str, deaths: list[str]) -> None:
    with TemporaryDirectory() as folder:
        tools = Tools(read_runbooks(), Ledger(Path(folder, "ledger.txt")))
        for die_at in [*deaths, None]:

            def passing(point: str, die_at: str | None = die_at) -> None:
                if point == die_at:
                    raise SimulatedCrash

            with closing(connect(new_database_once(Path(folder)))) as connection:
                pattern = PATTERNS[name](connection, "a session")
                state = load_or_start(pattern, TICKET)
                with suppress(SimulatedCrash):
                    state = work(pattern, state, tools, passing)
        assert state == finished(Ephemeral(), Tools(read_runbooks(), Ledger(Path(folder, "x"))))
        if name in KEYED:
            assert sorted(tools.ledger.lines()) == [f"{RUN}:draft_reply", f"{RUN}:lookup_runbook"]


def new_database_once(folder: Path) -> Path:
    database = folder / "agent.db"
    return database if database.exists() else new_database(folder)


@pytest.mark.parametrize("name", ["checkpoint + keys", *LOGS])
@pytest.mark.parametrize("die_at", ["lookup_runbook:before_save", "draft_reply:saved"])
def test_a_killed_child_loses_nothing_that_was_saved(
    name: str, die_at: str, tmp_path: Path
) -> None:
    row = trials.kill_and_resume(tmp_path, name, die_at)
    survived = "version 1" if die_at.startswith("lookup") else "version 3"
    assert row == {"pattern": name, "survived": survived, "tool calls": 2, "repeated": 0}


# The log.


def test_the_log_is_append_only_and_without_gap(connection: AgentConnection) -> None:
    pattern = EventSourcing(connection, "session-1")
    state = read_pages(pattern, "run-T900", 3)
    for sql, problem in (
        ("UPDATE run_log SET payload_json = '{}'", "append-only"),
        ("DELETE FROM run_log WHERE sequence = 4", "append-only"),
        ("INSERT INTO run_log VALUES ('run-T900', 6, 3, 'page_read', '{}')", "not the next"),
        ("INSERT INTO run_log VALUES ('run-T900', 4, 3, 'page_read', '{}')", "not the next"),
        ("INSERT INTO run_log VALUES ('run-T901', 1, 3, 'page_read', '{}')", "FOREIGN KEY"),
        ("INSERT INTO run_log VALUES ('run-T900', 5, 3, 'page_read', 'x')", "json_valid"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=problem):
            connection.execute(sql)
    with pytest.raises(sqlite3.OperationalError, match="no column named rowid"):
        connection.execute("REPLACE INTO run_log (rowid, sequence) VALUES (1, 5)")
    assert pattern.load("run-T900") == state


def test_an_event_that_tells_less_than_its_step_is_refused(connection: AgentConnection) -> None:
    pattern = EventSourcing(connection, "session-1")
    state = read_pages(pattern, "run-T900", 1)
    for step in (
        replace(PAGE, next_action=None),
        replace(PAGE, found=PAGE.found | {"confidence": {"page": 1}}),
    ):
        with pytest.raises(InvalidStateError, match="page_read does not tell all of the step"):
            pattern.save(state, step)
    assert pattern.load("run-T900") == state


def test_without_its_run_nothing_is_appended(connection: AgentConnection) -> None:
    pattern = EventSourcing(connection, "session-1")
    state = read_pages(pattern, "run-T900", 0)
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), connection:
        append(connection, LogEvent("run-T901", 1, "run_started", {}))
    assert pattern.load("run-T900") == state


def test_the_run_of_a_log_is_one_that_a_backup_can_check(
    connection: AgentConnection, tmp_path: Path
) -> None:
    read_pages(EventSourcing(connection, "session-1"), "run-T900", 2)
    back_up(connection, tmp_path / "backup.db")
    with closing(connect(tmp_path / "backup.db")) as backup:
        assert EventSourcing(backup, "session-2").load("run-T900").version == 2


@pytest.mark.parametrize("kind", [EventSourcing, Hybrid])
def test_what_works_on_checkpoints_leaves_a_log_alone(
    connection: AgentConnection, kind: type[EventSourcing]
) -> None:
    pattern = kind(connection, "session-1")
    state = read_pages(pattern, "run-T900", 3)
    before = list(connection.iterdump())
    for act in (
        lambda: recover(connection, "run-T900", "session-2"),
        lambda: abandon(connection, state, session="Ada", reason="nobody answers"),
    ):
        with pytest.raises(InvalidStateError, match="run-T900 is kept as a log"):
            act()
    assert list(connection.iterdump()) == before
    later = datetime.now(UTC) + timedelta(days=9)
    with closing(connect(connection.path, clock=lambda: later)) as other:
        assert silent_runs(other, timedelta(days=1)) == []


@pytest.mark.parametrize("payload", ["3", '"x"', "[1]", '{"cursors": 1e999}'])
def test_a_payload_that_is_no_object_is_refused(payload: str, connection: AgentConnection) -> None:
    pattern = EventSourcing(connection, "session-1")
    read_pages(pattern, "run-T900", 0)
    insert = "INSERT INTO run_log VALUES ('run-T900', 2, 3, 'page_read', ?)"
    connection.execute(insert, (payload,))
    for ask in (pattern.load, lambda run_id: pattern.why(run_id, 1)):
        with pytest.raises(ReplayError, match="event 2 of run-T900 holds no JSON object"):
            ask("run-T900")


def test_a_log_that_lost_the_end_of_its_run_is_found(
    connection: AgentConnection, tools: Tools
) -> None:
    pattern = EventSourcing(connection, "session-1")
    last = finished(pattern, tools)
    assert pattern.verify(RUN) == last
    connection.execute("DROP TRIGGER run_log_is_not_cut")
    connection.execute("DELETE FROM run_log WHERE sequence = 5")
    with pytest.raises(ReplayError, match="is completed, and its log ends at version 3"):
        pattern.verify(RUN)


def test_append_needs_a_transaction(connection: AgentConnection) -> None:
    EventSourcing(connection, "session-1")
    with pytest.raises(TransactionError):
        append(connection, LogEvent("run-T900", 1, "run_started", {}))


def test_the_log_is_read_in_parts(connection: AgentConnection) -> None:
    read_pages(EventSourcing(connection, "session-1"), "run-T900", 5)
    assert [e.sequence for e in read_log(connection, "run-T900", after=2, up_to=4)] == [3, 4]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_travels_in_time_and_knows_why(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    passed = [load_or_start(pattern, TICKET)]
    recording = _Recording(pattern, passed)
    work(recording, passed[0], tools)
    assert [pattern.at(RUN, version) for version in range(5)] == passed
    assert pattern.why(RUN, 1) == "a safety impact, out for 18 minutes"
    assert pattern.why(RUN, 3) == "priority urgent, area cold storage"
    for version in (0, 5):
        with pytest.raises(NotKeptError):
            pattern.why(RUN, version)
    for version in (-1, 5):
        with pytest.raises(NotKeptError):
            pattern.at(RUN, version)


class _Recording:
    """A pattern that also notes each state it returns."""

    def __init__(self, pattern: Pattern, states: list[RunState]) -> None:
        self._pattern, self._states = pattern, states

    def save(self, state: RunState, step: Step) -> RunState:
        self._states.append(self._pattern.save(state, step))
        return self._states[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("checkpoint + keys", [4]), ("checkpoint + keys + archive", [0, 1, 2, 3, 4])],
)
def test_a_checkpoint_knows_the_states_it_has_kept_and_no_reason(
    name: str, kept: list[int], connection: AgentConnection, tools: Tools
) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    finished(pattern, tools)
    found = []
    for version in range(6):
        with suppress(NotKeptError):
            assert pattern.at(RUN, version).version == version
            found.append(version)
    assert found == kept
    with pytest.raises(NotKeptError):
        pattern.why(RUN, 1)


# Snapshots.


@QUICK
@given(st.integers(0, 40), st.integers(1, 9))
def test_the_hybrid_loads_what_the_log_alone_loads(steps: int, every: int) -> None:
    with (
        TemporaryDirectory() as folder,
        closing(connect(new_database(Path(folder)))) as connection,
    ):
        hybrid = Hybrid(connection, "session-1", every=every)
        state = read_pages(hybrid, "run-T900", steps)
        with metering.Meter(connection) as meter:
            assert hybrid.load("run-T900") == state
        assert meter.rows_fetched <= every + 1
        assert EventSourcing(connection, "session-1").load("run-T900") == state
        asked = steps // 2
        assert hybrid.at("run-T900", asked).context.get("cursors", {"page": 0})["page"] == asked


@pytest.mark.parametrize("column", ["body", "sha256", "compression", "schema_version"])
def test_damaged_snapshots_are_passed_over(column: str, connection: AgentConnection) -> None:
    hybrid = Hybrid(connection, "session-1", every=3)
    state = read_pages(hybrid, "run-T900", 8)
    chance = random.Random(column)
    snapshots = connection.execute("SELECT version, body FROM run_snapshots").fetchall()
    assert len(snapshots) == 2
    for version, body in snapshots:
        flipped = bytearray(body)
        flipped[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        value = {"body": bytes(flipped), "schema_version": 99}.get(column, "x")
        connection.execute(
            f"UPDATE run_snapshots SET {column} = ? WHERE version = ?",
            (value, version),
        )
        assert hybrid.load("run-T900") == state
    with metering.Meter(connection) as meter:
        hybrid.load("run-T900")
    assert meter.rows_fetched == 2 + 9


def test_a_kept_state_that_sqlite_cannot_read_is_passed_over(tmp_path: Path) -> None:
    database = new_database(tmp_path)
    with closing(connect(database)) as connection:
        opened = Checkpoint(connection, "session-1", save=save_kept)
        state = read_pages(opened, "run-T900", 4)
        (place,) = connection.execute(
            "SELECT checkpoint_id FROM run_checkpoints WHERE version = 2"
        ).fetchone()
    stored = [p for p in parts(database, "run_checkpoints") if p.rowid == place]
    (compression,) = (p for p in stored if p.part == "compression")
    with database.open("r+b") as file:
        file.seek(compression.start)
        file.write(b"\xff")
    with closing(connect(database)) as connection:
        reopened = Checkpoint(connection, "session-2")
        assert reopened.load("run-T900") == state
        with pytest.raises(NotKeptError):
            reopened.at("run-T900", 2)


def test_where_sqlite_cannot_read_a_snapshot_the_log_is_replayed(tmp_path: Path) -> None:
    database = new_database(tmp_path)
    with closing(connect(database)) as connection:
        state = read_pages(Hybrid(connection, "session-1"), "run-T900", 4)
    whole = database.read_bytes()
    assert whole.count(b'none{"context"') == 2
    database.write_bytes(whole.replace(b'none{"context"', b'\xff\xff\xff\xff{"context"'))
    with closing(connect(database)) as connection:
        reopened = Hybrid(connection, "session-2")
        assert reopened.load("run-T900") == state
        assert reopened.at("run-T900", 2).version == 2


def test_a_snapshot_of_what_the_log_does_not_tell_is_not_used(connection: AgentConnection) -> None:
    hybrid = Hybrid(connection, "session-1", every=3)
    state = read_pages(hybrid, "run-T900", 2)
    with connection:
        hybrid._keep(encode(replace(state, version=3, next_action="finish")))
        keep(connection, replace(state, next_action="finish"))
    assert hybrid.load("run-T900") == state
    state = read_pages(hybrid, "run-T900", 1)
    with metering.Meter(connection) as meter:
        assert hybrid.load("run-T900") == state, "the log came there, and its own was kept"
    assert meter.rows_fetched == 1


def test_a_snapshot_and_its_event_are_one_write(connection: AgentConnection) -> None:
    hybrid = Hybrid(connection, "session-1", every=1)
    state = read_pages(hybrid, "run-T900", 1)
    connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON run_snapshots"
        " BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="no room"):
        hybrid.save(state, PAGE)
    assert hybrid.load("run-T900") == state


def test_what_fits_into_no_snapshot_goes_on_in_the_log(
    connection: AgentConnection, tools: Tools
) -> None:
    hybrid = Hybrid(connection, "session-1", every=1)
    state = read_pages(hybrid, "run-T900", 1)
    too_much = Step("read_page", {"cursors": {"page": "x" * 2_000_000}}, "a test", "read_page")
    saved = hybrid.save(state, too_much)
    assert hybrid.load("run-T900") == saved
    finished(hybrid, tools)
    unknown = fork(hybrid, RUN, 1, "run-fork", customer="vip")
    saved = work(hybrid, unknown, tools)
    assert hybrid.load("run-fork") == saved


def test_the_snapshot_of_a_newer_program_hides_no_event(connection: AgentConnection) -> None:
    hybrid = Hybrid(connection, "session-1", every=2)
    state = read_pages(hybrid, "run-T900", 3)
    connection.execute("INSERT INTO run_log VALUES ('run-T900', 5, 4, 'run_praised', '{}')")
    with connection:
        hybrid._keep(encode(replace(state, version=4)))
        connection.execute("UPDATE run_snapshots SET event_schema = 4 WHERE version = 4")
    with pytest.raises(ReplayError, match="schema version 4"):
        hybrid.load("run-T900")


def test_a_snapshot_lies_at_least_a_step_from_the_next(connection: AgentConnection) -> None:
    with pytest.raises(InvalidStateError, match="every 0 steps"):
        Hybrid(connection, "session-1", every=0)


# Forks.


@pytest.mark.parametrize("name", ["checkpoint + keys + archive", *LOGS])
def test_a_fork_has_keys_of_its_own(name: str, connection: AgentConnection, tools: Tools) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    before = finished(pattern, tools)
    begun = fork(pattern, RUN, 1, "run-fork", priority="normal")
    assert (begun.run_id, begun.version, begun.next_action) == ("run-fork", 0, "lookup_runbook")
    last = work(pattern, begun, tools)
    assert str(last.context["reply"]).startswith("Priority: normal.")
    assert pattern.load("run-fork") == last
    assert pattern.load(RUN) == before
    assert tools.ledger.lines()[2:] == ["run-fork:lookup_runbook", "run-fork:draft_reply"]


@pytest.mark.parametrize("name", ["checkpoint + keys", *LOGS])
def test_a_finished_state_is_not_forked(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    pattern = PATTERNS[name](connection, "session-1")
    finished(pattern, tools)
    with pytest.raises(RunCompletedError):
        fork(pattern, RUN, 4, "run-fork")
    with pytest.raises(UnknownRunError):
        pattern.load("run-fork")


def test_what_is_not_kept_cannot_be_forked(connection: AgentConnection, tools: Tools) -> None:
    pattern = PATTERNS["checkpoint + keys"](connection, "session-1")
    finished(pattern, tools)
    with pytest.raises(NotKeptError):
        fork(pattern, RUN, 1, "run-fork")
    with pytest.raises(UnknownRunError):
        pattern.load("run-fork")


# The tables of the lesson.


def test_the_abilities_are_those_that_the_trials_show(tmp_path: Path) -> None:
    times = figures.times_at(10_000)
    for name, abilities in list(maturity.LADDER.items())[:-1]:
        killed = trials.kill_and_resume(tmp_path, name, "draft_reply:before_save")
        shown = maturity.measured(killed, trials.audit(tmp_path, name), times)
        assert shown == abilities, name


def test_quickly_is_far_quicker_than_the_whole_replay() -> None:
    killed = {"pattern": "hybrid", "survived": "nothing", "repeated": 1}
    asked = {"why that priority": "-"}
    for time, shown in ((9.0, {maturity.SHORT}), (10.0, set())):
        times = {"hybrid": time, "event sourcing": 1000.0}
        assert maturity.measured(killed, asked, times) == shown


def test_the_answers_of_an_audit_follow_from_the_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials.session(tmp_path / "hybrid.db", "hybrid", "session-1")
    assert trials.audit(tmp_path, "hybrid")["why that priority"] == (
        "a safety impact, out for 18 minutes"
    )
    monkeypatch.setattr(Hybrid, "why", Ephemeral.why)
    assert trials.audit(tmp_path, "hybrid")["why that priority"] == "-"


def test_the_price_follows_from_what_a_pattern_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    every_second = metering.price("hybrid")
    assert metering.price("ephemeral") == {
        "pattern": "ephemeral",
        "commits": 0,
        "rows written": 0,
        "bytes of SQL": 0,
    }
    monkeypatch.setitem(PATTERNS, "hybrid", lambda c, s: Hybrid(c, s, every=1))
    each = metering.price("hybrid")
    assert each["rows written"] == every_second["rows written"] + 2  # type: ignore[operator]
    assert each["commits"] == every_second["commits"]


def test_steps_of_a_log_stay_small_while_the_state_grows() -> None:
    log, whole = (
        metering.bytes_per_step(name, 20, "x" * 400) for name in ("event sourcing", "checkpoint")
    )
    assert max(log) - min(log) < 10
    assert whole[-1] > 10 * log[-1]


def test_a_resume_reads_the_snapshot_and_the_tail() -> None:
    rows = metering.rows_to_resume([10, 70], every=64)
    assert list(rows.values()) == [[1, 1], [11, 7], [11, 71]]
    shown = figures.work_to_resume(rows, [10, 70])
    assert "at 10, 70 steps: checkpoint: 1, 1;" in shown.alt
    assert "event sourcing: 11, 71." in shown.alt
    assert "at 100, 1,000, 10,000 steps: checkpoint: 1," in shown.alt
    assert shown.svg == figures.work_to_resume(rows, [10, 70]).svg


def test_a_checkpoint_fetches_one_row_and_sqlite_reads_all_events(
    connection: AgentConnection,
) -> None:
    steps = dict.fromkeys(("checkpoint + keys", "hybrid"), 0)
    work = {name: [] for name in steps}  # type: dict[str, list[int]]

    def step(name: str) -> None:
        steps[name] += 1

    for name in steps:
        pattern = PATTERNS[name](connection, "session-1")
        for _ in range(2):
            read_pages(pattern, f"run of {name}", 300)
            steps[name] = 0
            connection.set_progress_handler(lambda name=name: step(name), 1)  # type: ignore[misc]
            pattern.load(f"run of {name}")
            connection.set_progress_handler(None, 1)
            work[name].append(steps[name])
    assert work["checkpoint + keys"][1] > 1.9 * work["checkpoint + keys"][0]
    assert work["hybrid"][1] < 1.1 * work["hybrid"][0]


def test_the_recorded_times_are_multiples_of_one_resume(tmp_path: Path) -> None:
    measured = costs.relative_times(tmp_path, lengths=(5, 9), rounds=1)
    recorded = figures.read_times()
    assert measured[0]["relative_time"] == recorded[0]["relative_time"] == "1"
    assert [row["pattern"] for row in measured[::2]] == [row["pattern"] for row in recorded[::3]]
    assert set(recorded[0]) == set(costs.COLUMNS)


@pytest.mark.parametrize("case", maturity.CASES.values(), ids=lambda case: case.words)
def test_each_case_has_a_simplest_pattern_of_its_own(case: maturity.Case) -> None:
    chosen = maturity.choose(case.needs)
    simpler = list(maturity.LADDER)[: list(maturity.LADDER).index(chosen)]
    assert maturity.lacking(chosen, case.needs) == []
    assert all(maturity.lacking(name, case.needs) for name in simpler)
    others = [each for each in maturity.CASES.values() if each != case]
    assert chosen not in map(maturity.choose, (each.needs for each in others))


def test_the_exercise_tells_of_the_cases_that_its_check_knows() -> None:
    path = Path(__file__).parents[1] / "notebooks" / "solutions" / "11_four_patterns.ipynb"
    told = path.read_text(encoding="utf-8")
    missing = [n for n, case in maturity.CASES.items() if f"- `{n}`: {case.words}." not in told]
    assert missing == []


def test_a_child_that_never_came_to_its_death_is_no_trial(tmp_path: Path) -> None:
    trials.kill_and_resume(tmp_path, "hybrid", "draft_reply:before_save")
    with pytest.raises(ChildError, match="never came to draft_reply:before_save"):
        trials.kill_and_resume(tmp_path, "hybrid", "draft_reply:before_save")


# How often to save.


@pytest.mark.parametrize("every", [1, 4, 12])
def test_a_death_undoes_what_was_done_since_the_last_save(every: int) -> None:
    interval = intervals.measure(12, every)
    assert interval.commits == 12 // every
    assert (interval.mean_redone, interval.worst_redone) == ((every + 1) / 2, every)


def test_the_end_of_a_run_is_saved_too() -> None:
    assert intervals.measure(7, 5) == intervals.Interval(5, 2, (1 + 2 + 3 + 4 + 5 + 1 + 2) / 7, 5)


def test_the_cheapest_interval_weighs_commits_against_work() -> None:
    saves = [intervals.Interval(1, 12, 1, 1), intervals.Interval(6, 2, 3.5, 6)]
    assert saves[0].cost(commit=0.5, deaths=2) == 12 * 0.5 + 2 * 1
    assert intervals.cheapest(saves, commit=0.1, deaths=1) == 1
    assert intervals.cheapest(saves, commit=5, deaths=1) == 6
    assert intervals.young(2, 100) == 20
    shown = figures.lost_work(saves, 12)
    assert "saved every 6: 2 commits, 3.5 on average, 6 at worst." in shown.alt


# Memory.


def test_a_fact_outlives_the_run_in_which_it_was_found(
    connection: AgentConnection, tools: Tools
) -> None:
    memory.create_memory(connection)
    memory.create_memory(connection)
    finished(PATTERNS["checkpoint + keys"](connection, "session-1"), tools)
    memory.remember(connection, "gateway", "broken")
    memory.remember(connection, "gateway", {"replaced": 2026})
    delete_run(connection, RUN)
    assert memory.recall(connection, "gateway") == {"replaced": 2026}
    assert memory.recall(connection, "belt") is None


MAKERS: list[Callable[[AgentConnection, str], EventSourcing]] = [EventSourcing, Hybrid]


@pytest.mark.parametrize("make", MAKERS)
def test_a_newer_event_stops_the_load(
    make: Callable[[AgentConnection, str], EventSourcing], connection: AgentConnection
) -> None:
    pattern = make(connection, "session-1")
    read_pages(pattern, "run-T900", 2)
    connection.execute("INSERT INTO run_log VALUES ('run-T900', 4, 99, 'page_read', '{}')")
    with pytest.raises(ReplayError, match="99"):
        pattern.load("run-T900")
