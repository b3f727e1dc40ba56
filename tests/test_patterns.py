"""Every pattern keeps the same promises; where they differ, the tables say what the runs did."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import new_database, rows

from lesson_lib.checkpoints.archive import create_archive, put
from lesson_lib.checkpoints.codec import encode
from lesson_lib.checkpoints.redaction import Redact
from lesson_lib.checkpoints.retention import abandon
from lesson_lib.errors import (
    ChildError,
    CorruptStateError,
    InvalidStateError,
    NotKeptError,
    ReplayError,
    RunCompletedError,
    SimulatedCrash,
    TransactionError,
)
from lesson_lib.labs.four_patterns import (
    choosing,
    contest,
    figures,
    intervals,
    memory,
    metering,
    stores,
)
from lesson_lib.labs.four_patterns.contest import RUN
from lesson_lib.labs.four_patterns.long_runs import LONG_RUN, lab_agent, read_pages
from lesson_lib.labs.four_patterns.stores import PATTERNS, open_store
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step
from lesson_lib.patterns.ephemeral import Ephemeral
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid, create_snapshots
from lesson_lib.patterns.log import LogEvent, append, create_log
from lesson_lib.patterns.projection import fork
from lesson_lib.recovery.recover import recover
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, delete_run
from lesson_lib.store import Rider, Saving, StateStore
from lesson_lib.tickets import DATA, Tools, read_runbooks, ticket_agent
from lesson_lib.tickets.log_schema import UPCASTERS

DURABLE = [name for name in PATTERNS if name != "ephemeral"]
KEYED = [name for name in DURABLE if name not in ("checkpoint", "event sourcing, no keys")]
LOGS = ["event sourcing", "hybrid"]
ACTIONS = ("classify_priority", "lookup_runbook", "draft_reply", "finish")
POINTS = [f"{a}:{point}" for a in ACTIONS for point in ("before_checkpoint", "checkpoint_saved")]
PAGE = Step("read_page", {"cursors": {"page": 1}}, "read_page", "the next in line")
QUICK = settings(derandomize=True, deadline=None, max_examples=12, database=None)


def finished(store: StateStore, tools: Tools) -> RunState:
    return lab_agent.run_to_end(store, lab_agent.resume_or_start(store, RUN), tools)


def hybrid(connection: AgentConnection, every: int = 2) -> Hybrid:
    create_snapshots(connection)
    return Hybrid(connection, "session-1", agent=lab_agent, upcasters=UPCASTERS, every=every)


def event_sourcing(connection: AgentConnection) -> EventSourcing:
    create_snapshots(connection)
    return EventSourcing(connection, "session-1", agent=lab_agent, upcasters=UPCASTERS)


# The promises of a store are in test_conformance.py; these are of the stores side by side.


@pytest.mark.parametrize("name", PATTERNS)
def test_all_patterns_lead_to_the_same_state(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    store = open_store(connection, name, "session-1")
    state = finished(store, tools)
    assert state == store.load_state(RUN) == store.at(RUN, 4) == finished(Ephemeral("s"), tools)
    assert tools.ledger.count(f"{RUN}:lookup_runbook") == 2


@pytest.mark.parametrize("name", DURABLE)
def test_a_finished_run_is_deleted_with_all_that_was_kept_of_it(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    finished(open_store(connection, name, "session-1"), tools)
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
        database = new_database(Path(folder))
        for die_at in [*deaths, None]:

            def passing(point: str, die_at: str | None = die_at) -> None:
                if point == die_at:
                    raise SimulatedCrash

            with closing(connect(database)) as connection:
                store = open_store(connection, name, "a session")
                state = lab_agent.resume_or_start(store, RUN)
                with suppress(SimulatedCrash):
                    state = lab_agent.run_to_end(store, state, tools, passing=passing)
        other = Tools(read_runbooks(), Ledger(Path(folder, "other.txt")))
        assert state == finished(Ephemeral("s"), other)
        if name in KEYED:
            assert sorted(tools.ledger.lines()) == [f"{RUN}:draft_reply", f"{RUN}:lookup_runbook"]


@pytest.mark.parametrize(
    ("name", "die_at", "survived"),
    [
        ("checkpoint + keys", "lookup_runbook:before_checkpoint", "version 1"),
        ("hybrid", "draft_reply:checkpoint_saved", "version 3"),
    ],
)
def test_a_killed_child_loses_nothing_that_was_saved(
    name: str, die_at: str, survived: str, tmp_path: Path
) -> None:
    row = contest.kill_and_resume(tmp_path, name, die_at)
    assert row == {"pattern": name, "survived": survived, "tool calls": 2, "repeated": 0}


class Riding(Rider):
    """Notes what it sees; may change the state."""

    def __init__(self, changed: bool = False) -> None:
        self.changed = changed
        self.seen: list[Any] = []

    def prepare(self, saving: Saving) -> Saving:
        other = replace(saving.after, context_json="{}")
        return replace(saving, after=other) if self.changed else saving

    def check(self, connection: Any, saving: Saving) -> None:
        self.seen.append(("check", saving.after, self.events(connection)))

    def write(self, connection: Any, saving: Saving) -> None:
        self.seen.append(("write", saving.after, self.events(connection)))

    def events(self, connection: Any) -> int:
        (count,) = connection.execute("SELECT count(*) FROM run_log").fetchone()
        return int(count)


def test_what_rides_with_a_checkpoint_rides_with_an_event(connection: AgentConnection) -> None:
    always, once = Riding(), Riding()
    store = replace(event_sourcing(connection), riders=(always,))
    begun = store.start_run(RunState.begin(LONG_RUN, "T900", "read_page", {}))
    saved = store.save_checkpoint(begun, replace(PAGE, riders=(once,)))
    later = [("check", saved, 1), ("write", saved, 2)]
    assert once.seen == later
    assert always.seen == [("check", begun, 0), ("write", begun, 0), *later]
    with pytest.raises(InvalidStateError, match="page_read does not tell all of read_page"):
        store.save_checkpoint(saved, replace(PAGE, riders=(Riding(changed=True),)))
    assert store.load_state(LONG_RUN) == saved


def test_nothing_rides_in_memory() -> None:
    store = Ephemeral("session-1")
    state = read_pages(store, steps=1)
    with pytest.raises(InvalidStateError, match="read_page has a rider"):
        store.save_checkpoint(state, replace(PAGE, riders=(Riding(),)))
    assert store.load_state(LONG_RUN) == state


# The log.


def test_the_log_is_append_only_and_without_gap(connection: AgentConnection) -> None:
    store = event_sourcing(connection)
    state = read_pages(store, steps=3)
    for sql, problem in (
        ("UPDATE run_log SET payload_json = '{}'", "append-only"),
        ("DELETE FROM run_log WHERE sequence = 4", "append-only"),
        ("INSERT INTO run_log VALUES ('run-T900', 6, 3, 'page_read', '{}')", "not the next"),
        ("INSERT INTO run_log VALUES ('run-T900', 4, 3, 'page_read', '{}')", "not the next"),
        ("INSERT INTO run_log VALUES ('run-T901', 1, 3, 'page_read', '{}')", "FOREIGN KEY"),
        ("INSERT INTO run_log VALUES ('run-T900', 5, 3, 'page_read', 'x')", "json_valid"),
        ("REPLACE INTO agent_runs SELECT * FROM agent_runs", "stored already"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=problem):
            connection.execute(sql)
    with pytest.raises(sqlite3.OperationalError, match="no column named rowid"):
        connection.execute("REPLACE INTO run_log (rowid, sequence) VALUES (1, 5)")
    assert store.load_state(LONG_RUN) == state


def test_the_row_of_a_log_holds_no_state(connection: AgentConnection, tools: Tools) -> None:
    store = event_sourcing(connection)
    read_pages(store, steps=2)
    finished(store, tools)
    rows = [tuple(row) for row in connection.execute("SELECT * FROM agent_runs ORDER BY run_id")]
    assert rows == [
        (RUN, "T104", "completed", None, "{}", 0),
        (LONG_RUN, "T900", "running", "read_page", "{}", 0),
    ]


def test_without_its_run_nothing_is_appended(connection: AgentConnection) -> None:
    store = event_sourcing(connection)
    state = read_pages(store, steps=0)
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), connection:
        append(connection, LogEvent("run-T901", 1, "run_started", {}), 3)
    assert store.load_state(LONG_RUN) == state


@pytest.mark.parametrize("payload", ["3", '"x"', "[1]", '{"cursors": 1e999}'])
def test_a_payload_that_is_no_object_is_refused(payload: str, connection: AgentConnection) -> None:
    store = event_sourcing(connection)
    read_pages(store, steps=0)
    insert = "INSERT INTO run_log VALUES ('run-T900', 2, 3, 'page_read', ?)"
    connection.execute(insert, (payload,))
    for ask in (store.load_state, partial(store.why, version=1)):
        with pytest.raises(
            ReplayError, match="event 2 of run-T900 is no page_read of schema version 3"
        ):
            ask(LONG_RUN)


@pytest.mark.parametrize("make", [event_sourcing, hybrid])
def test_what_works_on_checkpoints_leaves_a_log_alone(
    make: Callable[[AgentConnection], EventSourcing], connection: AgentConnection
) -> None:
    store = make(connection)
    state = read_pages(store, steps=3)
    before = list(connection.iterdump())
    for act in (
        lambda: recover(connection, LONG_RUN, "session-2", lab_agent),
        lambda: abandon(connection, state, session="Ada", reason="nobody answers"),
    ):
        with pytest.raises(InvalidStateError, match="is kept as a log"):
            act()
    with pytest.raises(CorruptStateError, match="is at version 0, its events tell of 3"):
        SQLiteStore(connection, "session-2").load_state(LONG_RUN)
    assert list(connection.iterdump()) == before


@pytest.mark.parametrize("make", [event_sourcing, hybrid])
def test_a_newer_event_stops_the_load(
    make: Callable[[AgentConnection], EventSourcing], connection: AgentConnection
) -> None:
    store = make(connection)
    read_pages(store, steps=2)
    connection.execute("INSERT INTO run_log VALUES ('run-T900', 4, 99, 'page_read', '{}')")
    with pytest.raises(ReplayError, match="99"):
        store.load_state(LONG_RUN)


def test_append_needs_a_transaction(connection: AgentConnection) -> None:
    event_sourcing(connection)
    with pytest.raises(TransactionError):
        append(connection, LogEvent(LONG_RUN, 1, "run_started", {}), 3)


def test_the_log_is_read_in_parts(connection: AgentConnection) -> None:
    store = event_sourcing(connection)
    read_pages(store, steps=5)
    part = store.read_log(LONG_RUN, after=2, up_to=4)
    assert [event.sequence for event in part] == [3, 4]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_travels_in_time_and_knows_why(
    name: str, connection: AgentConnection, tools: Tools
) -> None:
    store = open_store(connection, name, "session-1")
    passed = [lab_agent.start(store, RUN)]
    while passed[-1].next_action:
        passed.append(lab_agent.run_next_action(store, passed[-1], tools))
    assert [store.at(RUN, version) for version in range(5)] == passed
    assert store.why(RUN, 1) == "a safety impact, out for 18 minutes"
    assert store.why(RUN, 3) == "priority urgent, area cold storage"
    for version in (0, 5):
        with pytest.raises(NotKeptError):
            store.why(RUN, version)
    for version in (-1, 5):
        with pytest.raises(NotKeptError):
            store.at(RUN, version)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ephemeral", [4]),
        ("checkpoint + keys", [4]),
        ("checkpoint + keys + archive", [0, 1, 2, 3, 4]),
    ],
)
def test_a_checkpoint_knows_the_states_it_has_kept_and_no_reason(
    name: str, kept: list[int], connection: AgentConnection, tools: Tools
) -> None:
    store = open_store(connection, name, "session-1")
    finished(store, tools)
    found = []
    for version in range(6):
        with suppress(NotKeptError):
            assert store.at(RUN, version).version == version
            found.append(version)
    assert found == kept
    with pytest.raises(NotKeptError):
        store.why(RUN, 1)


# Snapshots.


@QUICK
@given(st.integers(0, 40), st.integers(1, 9))
def test_the_hybrid_loads_what_the_log_alone_loads(steps: int, every: int) -> None:
    with (
        TemporaryDirectory() as folder,
        closing(connect(new_database(Path(folder)))) as connection,
    ):
        store = hybrid(connection, every)
        state = read_pages(store, steps=steps)
        with metering.meter(connection) as counts:
            assert store.load_state(LONG_RUN) == state
        assert counts.rows_fetched <= every + 1
        assert event_sourcing(connection).load_state(LONG_RUN) == state
        asked = steps // 2
        assert store.at(LONG_RUN, asked).context.get("cursors", {"page": 0})["page"] == asked


@pytest.mark.parametrize("column", ["body", "sha256", "compression", "schema_version"])
def test_damaged_snapshots_are_passed_over(column: str, connection: AgentConnection) -> None:
    store = hybrid(connection, every=3)
    state = read_pages(store, steps=8)
    chance = random.Random(column)
    snapshots = connection.execute("SELECT version, body FROM run_snapshots").fetchall()
    assert len(snapshots) == 2
    for version, body in snapshots:
        flipped = bytearray(body)
        flipped[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        value = {"body": bytes(flipped), "schema_version": 99}.get(column, "x")
        connection.execute(
            f"UPDATE run_snapshots SET {column} = ? WHERE version = ?", (value, version)
        )
        assert store.load_state(LONG_RUN) == state
    with metering.meter(connection) as counts:
        store.load_state(LONG_RUN)
    assert counts.rows_fetched == 2 + 9


def test_where_sqlite_cannot_read_a_snapshot_the_log_is_replayed(tmp_path: Path) -> None:
    database = new_database(tmp_path)
    with closing(connect(database)) as connection:
        state = read_pages(hybrid(connection), steps=4)
    whole = database.read_bytes()
    assert whole.count(b'none{"context"') == 2
    database.write_bytes(whole.replace(b'none{"context"', b'\xff\xff\xff\xff{"context"'))
    with closing(connect(database)) as connection:
        reopened = hybrid(connection)
        assert reopened.load_state(LONG_RUN) == state
        assert reopened.at(LONG_RUN, 2).version == 2


def test_a_snapshot_of_what_the_log_does_not_tell_is_not_used(connection: AgentConnection) -> None:
    create_archive(connection)
    store = hybrid(connection, every=3)
    state = read_pages(store, steps=2)
    other = replace(state, next_action="finish")
    with connection:
        store._keep(encode(replace(other, version=3), lab_agent.schema))
        put(connection, encode(other, lab_agent.schema))
    assert store.load_state(LONG_RUN) == state
    state = read_pages(store, steps=1)
    with metering.meter(connection) as counts:
        assert store.load_state(LONG_RUN) == state, "the log came there, and its own was kept"
    assert counts.rows_fetched == 1


def test_a_snapshot_and_its_event_are_one_write(connection: AgentConnection) -> None:
    store = hybrid(connection, every=1)
    state = read_pages(store, steps=1)
    connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON run_snapshots"
        " BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="no room"):
        store.save_checkpoint(state, PAGE)
    assert store.load_state(LONG_RUN) == state


def test_what_fits_into_no_snapshot_goes_on_in_the_log(
    connection: AgentConnection, tools: Tools
) -> None:
    store = hybrid(connection, every=1)
    state = read_pages(store, steps=1)
    saved = store.save_checkpoint(
        state, replace(PAGE, found={"cursors": {"page": "x" * 2_000_000}})
    )
    assert store.load_state(LONG_RUN) == saved
    finished(store, tools)
    unknown = store.start_run(fork(store.at(RUN, 1), "run-fork", customer="vip"))
    saved = lab_agent.run_to_end(store, unknown, tools)
    assert store.load_state("run-fork") == saved


def test_the_snapshot_of_a_newer_program_hides_no_event(connection: AgentConnection) -> None:
    store = hybrid(connection)
    state = read_pages(store, steps=3)
    connection.execute("INSERT INTO run_log VALUES ('run-T900', 5, 4, 'run_praised', '{}')")
    with connection:
        store._keep(encode(replace(state, version=4), lab_agent.schema))
        connection.execute("UPDATE run_snapshots SET event_schema = 4 WHERE version = 4")
    with pytest.raises(ReplayError, match="schema version 4"):
        store.load_state(LONG_RUN)


def test_a_snapshot_lies_at_least_a_step_from_the_next(connection: AgentConnection) -> None:
    with pytest.raises(InvalidStateError, match="every 0 steps"):
        hybrid(connection, every=0)


# Forks.


@pytest.mark.parametrize("name", ["checkpoint + keys + archive", *LOGS])
def test_a_fork_has_keys_of_its_own(name: str, connection: AgentConnection, tools: Tools) -> None:
    store = open_store(connection, name, "session-1")
    before = finished(store, tools)
    begun = store.start_run(fork(store.at(RUN, 1), "run-fork", priority="normal"))
    assert (begun.run_id, begun.version, begun.next_action) == ("run-fork", 0, "lookup_runbook")
    last = lab_agent.run_to_end(store, begun, tools)
    assert str(last.context["reply"]).startswith("Priority: normal.")
    assert store.load_state("run-fork") == last
    assert store.load_state(RUN) == before
    assert tools.ledger.lines()[2:] == ["run-fork:lookup_runbook", "run-fork:draft_reply"]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("checkpoint + keys", 4, RunCompletedError),
        ("hybrid", 4, RunCompletedError),
        ("checkpoint + keys", 1, NotKeptError),
    ],
)
def test_a_state_that_is_finished_or_not_kept_is_not_forked(
    name: str, version: int, error: type[Exception], connection: AgentConnection, tools: Tools
) -> None:
    store = open_store(connection, name, "session-1")
    finished(store, tools)
    with pytest.raises(error):
        fork(store.at(RUN, version), "run-fork")


# The tables of the lesson.


@pytest.mark.prove
def test_the_abilities_are_those_that_the_contest_shows(tmp_path: Path) -> None:
    times = figures.recorded()[10_000]
    for name, abilities in list(choosing.LADDER.items())[:-1]:
        killed = contest.kill_and_resume(tmp_path, name, "draft_reply:before_checkpoint")
        shown = choosing.measured(killed, contest.audit(tmp_path, name), times)
        assert shown == abilities, name


def test_quickly_is_far_quicker_than_the_whole_replay() -> None:
    killed = {"pattern": "hybrid", "survived": "nothing", "repeated": 1}
    asked = {"why that priority": "-"}
    for time, shown in ((9.0, {choosing.SHORT}), (10.0, set())):
        times = {"hybrid": time, "event sourcing": 1000.0}
        assert choosing.measured(killed, asked, times) == shown


def test_the_answers_of_an_audit_follow_from_the_pattern(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(connect(tmp_path / "hybrid.db")) as connection:
        finished(open_store(connection, "hybrid", "session-1"), tools)
    why = "a safety impact, out for 18 minutes"
    assert contest.audit(tmp_path, "hybrid")["why that priority"] == why
    monkeypatch.setattr(Hybrid, "why", Ephemeral.why)
    assert contest.audit(tmp_path, "hybrid")["why that priority"] == "-"


def test_the_price_follows_from_what_a_pattern_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    every_second = metering.price("hybrid")
    assert metering.price("ephemeral") == {
        "pattern": "ephemeral",
        "commits": 0,
        "rows written": 0,
        "bytes of SQL": 0,
    }
    kept, plain = (metering.price(f"checkpoint + keys{more}") for more in (" + archive", ""))
    assert kept["bytes of SQL"] > plain["bytes of SQL"]  # type: ignore[operator]
    monkeypatch.setitem(PATTERNS, "hybrid", stores.hybrid(every=1))
    each = metering.price("hybrid")
    assert each["rows written"] == every_second["rows written"] + 2  # type: ignore[operator]
    assert each["commits"] == every_second["commits"]


def test_steps_of_a_log_stay_small_while_the_state_grows() -> None:
    log, whole = (metering.bytes_per_step(name, 20) for name in ("event sourcing", "checkpoint"))
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
    for name, grows in (("checkpoint + keys", True), ("hybrid", False)):
        store, steps = open_store(connection, name, "session-1"), [0, 0]
        for time in range(2):
            read_pages(store, f"run of {name}", steps=100)

            def step(time: int = time, steps: list[int] = steps) -> None:
                steps[time] += 1

            connection.set_progress_handler(step, 1)
            store.load_state(f"run of {name}")
            connection.set_progress_handler(None, 1)
        assert (steps[1] > 1.5 * steps[0]) == grows


def test_the_recorded_times_are_multiples_of_one_resume() -> None:
    measured = metering.relative_times(lengths=(5, 9), rounds=1)
    recorded = figures.recorded()
    assert measured[0] == {"pattern": "checkpoint", "steps": "5", "relative_time": "1"}
    assert recorded[100]["checkpoint"] == 1
    assert [row["pattern"] for row in measured[::2]] == [*recorded[100]]
    header = (DATA / "patterns.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == ",".join(measured[0])


def test_each_case_has_a_simplest_pattern_of_its_own() -> None:
    ladder = choosing.LADDER
    assert [choosing.choose(needs) for needs in choosing.CASES.values()] == [*ladder]
    for number, needs in enumerate(choosing.CASES.values()):
        assert [needs <= has for has in ladder.values()][: number + 1] == [False] * number + [True]


def test_the_exercise_tells_of_the_cases_that_its_check_knows() -> None:
    path = Path(__file__).parents[1] / "notebooks" / "solutions" / "11_four_patterns.ipynb"
    told = path.read_text(encoding="utf-8")
    assert [name for name in choosing.CASES if f"- `{name}`: " not in told] == []


def test_a_child_that_never_came_to_its_death_is_no_trial(tmp_path: Path) -> None:
    contest.session(tmp_path / "hybrid.db", "hybrid", "session-1")
    with pytest.raises(ChildError, match="never came to draft_reply:before_checkpoint"):
        contest.kill_and_resume(tmp_path, "hybrid", "draft_reply:before_checkpoint")


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
    finished(open_store(connection, "checkpoint + keys", "session-1"), tools)
    memory.remember(connection, "gateway", "broken")
    memory.remember(connection, "gateway", {"replaced": 2026})
    delete_run(connection, RUN)
    assert memory.recall(connection, "gateway") == {"replaced": 2026}
    assert memory.recall(connection, "belt") is None


def test_a_log_is_as_clean_as_its_state(connection: AgentConnection) -> None:
    create_log(connection)
    store = EventSourcing(connection, "s", (Redact(),), agent=ticket_agent, upcasters=UPCASTERS)
    state = ticket_agent.start(store, RUN)
    secret = "Bearer 8f3kQ2xLmZ9tW4"
    found = {"priority": secret}
    saved = store.save_checkpoint(state, Step("classify_priority", found, "lookup_runbook", secret))
    assert saved.context["priority"] == "[token removed]"
    assert store.load_state(RUN) == saved
    assert secret not in str(rows(connection.path))
