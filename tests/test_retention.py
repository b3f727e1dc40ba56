"""What expires and what never does, in small transactions, with the space given back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from store_parts import rows

from lesson_lib.checkpoints import history, retention
from lesson_lib.checkpoints.archive import Keep, put, read_archive
from lesson_lib.checkpoints.codec import decode, encode
from lesson_lib.checkpoints.retention import (
    Expired,
    abandon,
    create_retention,
    expire,
    give_back,
    silent_runs,
    why_kept,
)
from lesson_lib.errors import (
    InvalidStateError,
    RunCompletedError,
    RunExistsError,
    StaleVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.labs.checkpoint_format import example_runs
from lesson_lib.labs.checkpoint_format.searching import found_in_files
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import run_python
from lesson_lib.riders.claims import claim_run, create_claims
from lesson_lib.riders.intents import confirm, create_intents, intend
from lesson_lib.riders.outbox import PutCommand, claim_command, create_outbox, mark_delivered
from lesson_lib.riders.questions import Ask, answer
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    create_schema,
    execute_once,
    load_state,
    read_events,
    save_checkpoint,
)
from lesson_lib.tickets import new_run, read_tickets, ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

HOUR, DAY = 3600, 24 * 3600
A_DAY = timedelta(hours=24)
T105 = read_tickets()[4]
LOOK, FINISH = Step("look", {}, "look"), Step("look", {}, None)
KEEP = Keep(TICKET_SCHEMA)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(database: Path, clock: HandClock) -> Iterator[SQLiteStore]:
    with closing(connect(database, clock=clock)) as opened:
        example_runs.create_tables(opened)
        yield SQLiteStore(opened, "s1", (KEEP,))


def begun(store: SQLiteStore, run_id: str) -> RunState:
    return store.start_run(RunState.begin(run_id, "T105", "look", new_run(T105).context))


def finished(store: SQLiteStore, run_id: str) -> RunState:
    """Return a run of one checkpoint, which completed it."""
    return store.save_checkpoint(begun(store, run_id), FINISH)


def long_run(store: SQLiteStore, run_id: str, saves: int) -> RunState:
    run = begun(store, run_id)
    for _ in range(saves):
        run = store.save_checkpoint(run, LOOK)
    return run


def run_ids(database: Path) -> list[str]:
    return [row[0] for row in rows(database)["agent_runs"]]


def kept_versions(store: SQLiteStore, run_id: str) -> list[int]:
    return [stored.version for stored in read_archive(store.connection, run_id)]


# Which runs expire


@pytest.mark.parametrize("hours", [24, 48, 72])
def test_a_finished_run_expires_at_its_ttl_and_not_before(
    store: SQLiteStore, database: Path, clock: HandClock, hours: int
) -> None:
    finished(store, "run-1")
    ttl = timedelta(hours=hours)
    clock.move(hours * HOUR - 0.001)
    assert expire(store.connection, ttl=ttl) == Expired(0, ())
    clock.move(0.001)
    assert expire(store.connection, ttl=ttl) == Expired(0, ("run-1",))
    left = rows(database)
    assert left.pop("expired_runs") == [("run-1", f"{clock():%Y-%m-%dT%H:%M:%S.%fZ}")]
    assert {name: kept for name, kept in left.items() if kept} == {}


@pytest.mark.parametrize("hours", [-24, 0, 23.999, 72.001, 10_000])
def test_another_ttl_is_refused(
    store: SQLiteStore, database: Path, clock: HandClock, hours: float
) -> None:
    finished(store, "run-1")
    long_run(store, "run-2", 9)
    clock.move(365 * DAY)
    before, ttl, connection = rows(database), timedelta(hours=hours), store.connection
    for refused in (
        lambda: expire(connection, ttl=ttl),
        lambda: silent_runs(connection, ttl),
        lambda: why_kept(connection, "run-1", ttl),
    ):
        with pytest.raises(InvalidStateError, match=r"a TTL of .* hours is not between 24 and 72"):
            refused()
    assert rows(database) == before


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"batch": 0}], ids=str)
def test_nothing_to_keep_or_to_do_is_refused(store: SQLiteStore, wrong: Any) -> None:
    long_run(store, "run-1", 9)
    with pytest.raises(InvalidStateError, match="must be at least 1"):
        expire(store.connection, ttl=A_DAY, **wrong)
    assert len(kept_versions(store, "run-1")) == 10


def test_a_running_run_never_expires(store: SQLiteStore, database: Path, clock: HandClock) -> None:
    begun(store, "run-1")
    long_run(store, "run-2", 2)
    before = rows(database)
    for _ in range(3):
        clock.move(3650 * DAY)
        assert expire(store.connection, ttl=A_DAY) == Expired(0, ())
        assert why_kept(store.connection, "run-2", A_DAY) == "it is running"
    assert rows(database) == before
    ticket_agent.resume(store, "run-2")


def test_open_business_keeps_even_a_completed_run(store: SQLiteStore, clock: HandClock) -> None:
    connection = store.connection
    for create in (create_claims, create_intents, create_outbox):
        create(connection)
    asks, sends = Ask("q", "Paid?", ["yes"]), PutCommand("sends:1", "pay", {})
    store.save_checkpoint(begun(store, "asks"), replace(FINISH, riders=(asks,)))
    store.save_checkpoint(begun(store, "sends"), replace(FINISH, riders=(sends,)))
    finished(store, "intends")
    call: dict[str, Any] = {"key": "intends:1", "tool_name": "pay", "request": {}}
    intent = intend(connection, run_id="intends", session="s1", **call)
    begun(store, "claimed")
    clock.move(30 * DAY)
    claim_run(connection, "claimed", worker="w1", lease=timedelta(minutes=1))
    runs = ("asks", "intends", "sends", "claimed")
    assert {run_id: why_kept(connection, run_id, A_DAY) for run_id in runs} == {
        "asks": "a question of it waits for its answer",
        "intends": "what became of an intent is not known",
        "sends": "a command of it is not delivered",
        "claimed": "a worker has claimed it",
    }
    assert expire(connection, ttl=A_DAY) == Expired(0, ())
    assert silent_runs(connection, A_DAY) == []

    answer(connection, "q", "yes", person="Ada")
    confirm(connection, intent, session="s1", answer={})
    limits: dict[str, Any] = {"max_attempts": 3, "key_lives": 99 * A_DAY}
    command = claim_command(connection, claim=A_DAY, session="s1", **limits)
    assert command is not None
    mark_delivered(connection, command, session="s1", answer={})
    # Each of these left an event: the TTL counts from there.
    assert expire(connection, ttl=A_DAY) == Expired(0, ())
    clock.move(DAY)
    assert expire(connection, ttl=A_DAY).runs == ("asks", "intends", "sends")
    assert silent_runs(connection, A_DAY) == ["claimed"]


def test_a_run_that_is_kept_as_a_log_is_not_silent(store: SQLiteStore, clock: HandClock) -> None:
    store.connection.execute("CREATE TABLE run_log (run_id TEXT)")
    run = begun(store, "run-1")
    store.connection.execute("INSERT INTO run_log VALUES ('run-1')")
    clock.move(DAY)
    assert silent_runs(store.connection, A_DAY) == []
    with pytest.raises(InvalidStateError, match="it is kept as a log: only its own store"):
        abandon(store.connection, run, session="Ada", reason="nobody answers")
    store.save_checkpoint(run, FINISH)
    clock.move(DAY)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-1",)


def test_a_waiting_run_never_expires(store: SQLiteStore, clock: HandClock) -> None:
    *_, waiting = example_runs.four_runs(store)
    clock.move(365 * DAY)
    reason = "a question of it waits for its answer"
    assert why_kept(store.connection, waiting, A_DAY) == reason
    assert waiting not in silent_runs(store.connection, A_DAY)
    assert waiting not in expire(store.connection, ttl=A_DAY).runs
    answer(store.connection, f"{waiting}:paid", "yes", person="Ada")
    ticket_agent.resume(store, waiting)


def test_saved_results_are_there_for_whoever_repeats_within_the_ttl(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    example_runs.finished_run(store, T105)
    for _ in range(5):
        clock.move(23 * HOUR)
        assert expire(store.connection, ttl=A_DAY).runs == ()
        assert example_runs.ask_again(store.connection, "run-T105").reused
    ledger = database.with_suffix(".ledger.txt").read_text("utf-8").splitlines()
    assert sorted(ledger) == ["run-T105:draft_reply", "run-T105:lookup_runbook"]
    clock.move(DAY)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-T105",)


def test_an_expired_id_is_never_used_again(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    finished(store, "run-1")
    clock.move(DAY)
    expire(store.connection, ttl=A_DAY)
    with pytest.raises(RunExistsError, match="a run of this id has expired"):
        begun(store, "run-1")

    def never() -> None:
        pytest.fail("the tool was called")

    call = ToolCall("run-1", "run-1:look", "look", {}, never)
    with pytest.raises(UnknownRunError):
        execute_once(store.connection, call, session="s2")
    assert run_ids(database) == []
    begun(store, "run-2")


@pytest.mark.parametrize("latest", ["2027-01-01T00:00:00.000000Z", "2026-99-99T00Z"])
def test_a_time_from_the_future_or_from_no_calendar_keeps_its_run_and_no_other(
    store: SQLiteStore, clock: HandClock, latest: str
) -> None:
    for run_id in ("run-1", "run-2"):
        finished(store, run_id)
    store.connection.execute(
        "UPDATE agent_events SET created_at_utc = ? WHERE run_id = 'run-1' AND sequence = 1",
        (latest,),
    )
    clock.move(9 * DAY)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-2",)


def test_a_clock_that_was_wrong_at_the_last_event_expires_nothing_early(
    store: SQLiteStore, clock: HandClock
) -> None:
    run = begun(store, "run-1")
    clock.move(-400 * DAY)
    store.save_checkpoint(run, FINISH)
    clock.move(400 * DAY + 23 * HOUR)
    assert expire(store.connection, ttl=A_DAY).runs == ()
    clock.move(HOUR)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-1",)


def test_a_naive_clock_is_refused(store: SQLiteStore, database: Path) -> None:
    finished(store, "run-1")
    before = rows(database)
    store.connection.clock = lambda: datetime(2030, 1, 1)  # noqa: DTZ001
    with pytest.raises(InvalidStateError, match="naive"):
        expire(store.connection, ttl=A_DAY)
    assert rows(database) == before


def test_an_unknown_run_has_no_reason(store: SQLiteStore) -> None:
    with pytest.raises(UnknownRunError):
        why_kept(store.connection, "run-9", A_DAY)


def test_the_look_and_the_deletion_are_one_transaction(
    store: SQLiteStore, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store, "run-1")
    clock.move(DAY)
    looks: list[bool] = []

    def watched(connection: AgentConnection, run_id: str, ttl: timedelta) -> str | None:
        looks.append(connection.in_transaction)
        return why_kept(connection, run_id, ttl)

    monkeypatch.setattr(retention, "why_kept", watched)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-1",)
    assert looks == [True]


def test_the_history_of_a_run_goes_with_it(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    history.create_history(store.connection)
    finished(store, "run-1")
    with store.connection:
        history.append(store.connection, "run-1", [{"role": "user", "text": "hello"}])
    clock.move(DAY)
    assert expire(store.connection, ttl=A_DAY).runs == ("run-1",)
    assert rows(database)["run_history"] == []


# Runs that nobody goes on with


def test_an_abandoned_run_ends_with_an_event_and_expires_after_its_ttl(
    store: SQLiteStore, clock: HandClock
) -> None:
    connection = store.connection
    run = long_run(store, "run-1", 1)
    clock.move(DAY)
    assert silent_runs(connection, A_DAY) == ["run-1"]
    about: dict[str, Any] = {"session": "Ada", "reason": "nobody answers"}
    ended = abandon(connection, run, **about, riders=store.riders)
    assert ended == load_state(connection, "run-1")
    assert ended == decode(read_archive(connection, "run-1")[0], TICKET_SCHEMA)
    assert (ended.status, ended.context) == ("completed", run.context)
    last = [(e.session, e.event_type, e.detail) for e in read_events(connection, "run-1")][-2:]
    assert last == [
        ("Ada", "checkpoint_saved", '{"version": 2}'),
        ("Ada", "run_abandoned", '{"reason": "nobody answers"}'),
    ]
    assert silent_runs(connection, A_DAY) == []
    assert expire(connection, ttl=A_DAY).runs == ()
    clock.move(DAY)
    with pytest.raises(RunCompletedError):
        abandon(connection, ended, **about)
    assert expire(connection, ttl=A_DAY).runs == ("run-1",)


def test_a_run_is_silent_only_when_its_last_event_is_old(
    store: SQLiteStore, clock: HandClock
) -> None:
    begun(store, "run-1")
    clock.move(23 * HOUR)
    assert silent_runs(store.connection, A_DAY) == []
    ticket_agent.resume(store, "run-1")
    clock.move(23 * HOUR)
    assert silent_runs(store.connection, A_DAY) == []
    clock.move(HOUR)
    assert silent_runs(store.connection, A_DAY) == ["run-1"]


def test_a_run_of_a_file_without_an_archive_can_be_abandoned_and_expires(
    database: Path, clock: HandClock
) -> None:
    with closing(connect(database, clock=clock)) as plain:
        run = begun(SQLiteStore(plain, "s1"), "run-1")
        clock.move(DAY)
        assert abandon(plain, run, session="Ada", reason="nobody").status == "completed"
        create_retention(plain)
        clock.move(DAY)
        assert expire(plain, ttl=A_DAY).runs == ("run-1",)
        assert expire(plain, ttl=A_DAY) == Expired(0, ())


def test_a_session_that_goes_on_with_an_abandoned_run_cannot_save(
    store: SQLiteStore, clock: HandClock
) -> None:
    run = begun(store, "run-1")
    clock.move(DAY)
    abandon(store.connection, run, session="Ada", reason="nobody answers")
    with pytest.raises(StaleVersionError):
        store.save_checkpoint(run, LOOK)
    with pytest.raises(RunCompletedError):
        ticket_agent.resume(store, "run-1")


def test_a_run_that_somebody_resumed_meanwhile_is_not_abandoned(
    store: SQLiteStore, clock: HandClock
) -> None:
    run = begun(store, "run-1")
    clock.move(DAY)
    assert silent_runs(store.connection, A_DAY) == ["run-1"]
    ticket_agent.resume(store, "run-1")
    with pytest.raises(InvalidStateError, match="run-1 is not abandoned"):
        abandon(store.connection, run, session="Ada", reason="nobody answers")
    assert load_state(store.connection, "run-1") == run


def test_a_run_that_moved_on_or_has_open_business_is_not_abandoned(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    runs = example_runs.four_runs(store)
    seen = begun(store, "run-1")
    store.save_checkpoint(seen, LOOK)
    clock.move(DAY)
    create_claims(store.connection)
    claim_run(store.connection, runs[2], worker="w1", lease=timedelta(minutes=1))
    before = rows(database)
    for run_id, reason in ((runs[2], "has claimed it"), (runs[3], "waits for its answer")):
        with pytest.raises(InvalidStateError, match=reason):
            state = load_state(store.connection, run_id)
            abandon(store.connection, state, session="Ada", reason="tired")
    with pytest.raises(StaleVersionError):
        abandon(store.connection, seen, session="Ada", reason="nobody answers")
    assert rows(database) == before


# Old checkpoints


@pytest.mark.parametrize(("saves", "keep", "left"), [(9, 3, 3), (9, 1, 1), (9, 10, 10), (1, 3, 2)])
def test_an_unfinished_run_keeps_its_newest_checkpoints(
    store: SQLiteStore, saves: int, keep: int, left: int
) -> None:
    run = long_run(store, "run-1", saves)
    assert expire(store.connection, ttl=A_DAY, keep=keep).checkpoints == saves + 1 - left
    assert kept_versions(store, "run-1") == list(range(saves, saves - left, -1))
    assert decode(read_archive(store.connection, "run-1")[0], TICKET_SCHEMA) == run
    assert expire(store.connection, ttl=A_DAY, keep=keep).checkpoints == 0


def test_what_cannot_be_trusted_does_not_count(store: SQLiteStore) -> None:
    connection = store.connection
    long_run(store, "run-1", 9)
    connection.execute("UPDATE run_checkpoints SET body = x'00' WHERE version IN (9, 7, 6)")
    assert expire(connection, ttl=A_DAY, keep=2).checkpoints == 5
    assert kept_versions(store, "run-1") == [9, 8, 7, 6, 5]
    connection.execute("UPDATE run_checkpoints SET body = x'00' WHERE version > 5")
    assert expire(connection, ttl=A_DAY, keep=1).checkpoints == 0


def test_a_version_that_is_claimed_twice_counts_once(store: SQLiteStore) -> None:
    long_run(store, "run-1", 4)
    (kept,) = read_archive(store.connection, "run-1", version=2)
    rival = replace(decode(kept, TICKET_SCHEMA), next_action="other")
    put(store.connection, encode(rival, TICKET_SCHEMA))
    assert expire(store.connection, ttl=A_DAY, keep=3).checkpoints == 2
    assert kept_versions(store, "run-1") == [4, 3, 2, 2]


def test_a_version_that_the_run_has_not_reached_does_not_count(store: SQLiteStore) -> None:
    long_run(store, "run-1", 4)
    store.connection.execute("UPDATE agent_runs SET version = 2")
    assert expire(store.connection, ttl=A_DAY, keep=1).checkpoints == 2
    assert kept_versions(store, "run-1") == [4, 3, 2]


# Small transactions


def test_between_two_batches_another_connection_can_save(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    for run_id in ("run-1", "run-2"):
        finished(store, run_id)
    long_run(store, "run-3", 24)
    clock.move(DAY)
    passed, left = [], []
    with closing(connect(database, timeout=0, clock=clock)) as other:
        live = [begun(SQLiteStore(other, "s2"), "run-live")]

        def save(point: str) -> None:
            assert not store.connection.in_transaction
            live.append(save_checkpoint(other, live[-1], LOOK, session="s2"))
            passed.append(point)
            left.append(len(kept_versions(store, "run-3")))

        expired = expire(store.connection, ttl=A_DAY, batch=10, passing=save)
    assert expired == Expired(22, ("run-1", "run-2"))
    assert passed == ["run-1: whole", "run-2: whole", *["run-3: checkpoints"] * 3]
    assert left == [25, 25, 15, 5, 3]
    assert load_state(store.connection, "run-live").version == 5


KILLED = """
import sys
from datetime import datetime, timedelta
from lesson_lib.checkpoints.retention import expire
from lesson_lib.processes import die
from lesson_lib.sqlite import connect

points = int(sys.argv[2])
def passing(point):
    global points
    points -= 1
    if points == 0:
        die("kill")

now = datetime.fromisoformat(sys.argv[3])
connection = connect(sys.argv[1], clock=lambda: now)
expire(connection, ttl=timedelta(hours=24), batch=4, passing=passing)
"""


@pytest.mark.parametrize(
    "points", [2, *(pytest.param(n, marks=pytest.mark.prove) for n in (1, 3, 4))]
)
def test_a_death_between_two_batches_leaves_a_whole_store(
    store: SQLiteStore, database: Path, clock: HandClock, points: int
) -> None:
    connection = store.connection
    example_runs.finished_run(store, T105)
    long_run(store, "run-a", 9)
    clock.move(DAY)
    end = run_python(KILLED, database, str(points), clock().isoformat())
    assert end.ended == "died without cleanup"
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    for run_id in run_ids(database):
        state = load_state(connection, run_id)
        assert decode(read_archive(connection, run_id)[0], TICKET_SCHEMA) == state
    gone = [row[0] for row in rows(database)["expired_runs"]]
    assert sorted(gone + run_ids(database)) == ["run-T105", "run-a"]
    expire(connection, ttl=A_DAY, batch=4)
    assert run_ids(database) == ["run-a"]
    assert kept_versions(store, "run-a") == [9, 8, 7]
    assert store.save_checkpoint(load_state(connection, "run-a"), LOOK).version == 10


def test_expiry_inside_a_transaction_is_refused(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    finished(store, "run-1")
    clock.move(DAY)
    with pytest.raises(TransactionError), store.connection:
        expire(store.connection, ttl=A_DAY)
    assert run_ids(database) == ["run-1"]


def test_two_clean_ups_at_once_do_the_work_once(
    store: SQLiteStore, database: Path, clock: HandClock
) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        finished(store, run_id)
    long_run(store, "run-0", 9)
    clock.move(DAY)
    results: list[Expired] = []
    with closing(connect(database, clock=clock)) as other:

        def overtake(point: str) -> None:
            if not results:
                results.append(expire(other, ttl=A_DAY, batch=2))

        results.append(expire(store.connection, ttl=A_DAY, batch=2, passing=overtake))
    assert sorted(results[0].runs + results[1].runs) == ["run-1", "run-2", "run-3"]
    assert results[0].checkpoints + results[1].checkpoints == 7


# Space


def fill(connection: AgentConnection) -> None:
    connection.execute("CREATE TABLE bulk (body BLOB)")
    with connection:
        connection.executemany("INSERT INTO bulk VALUES (?)", [[bytes(50_000)]] * 40)
    with connection:
        connection.execute("DELETE FROM bulk")


def test_space_is_given_back_in_small_steps(store: SQLiteStore, database: Path) -> None:
    connection = store.connection
    fill(connection)
    said: list[str] = []
    connection.set_trace_callback(said.append)
    lost = give_back(connection)
    connection.set_trace_callback(None)
    steps = [sql for sql in said if "incremental_vacuum" in sql]
    assert lost > 400  # pages
    assert len(steps) == -(-lost // 100)
    assert database.stat().st_size < 200_000
    assert give_back(connection) == 0


def test_a_file_that_was_not_prepared_gives_nothing_back(connection: AgentConnection) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    fill(connection)
    assert give_back(connection) == 0


def test_a_reader_is_not_waited_for(store: SQLiteStore, database: Path) -> None:
    connection = store.connection
    fill(connection)
    with closing(sqlite3.connect(database, autocommit=True)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM bulk").fetchone() == (0,)
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        assert give_back(connection) > 400
        connection.set_trace_callback(None)
        reader.execute("COMMIT")
    assert statements[-1] == "PRAGMA wal_checkpoint(PASSIVE)"  # the others wait
    give_back(connection)
    assert database.stat().st_size < 200_000


def test_preparing_twice_does_nothing(store: SQLiteStore, database: Path) -> None:
    finished(store, "run-1")
    before = store.connection.total_changes
    statements: list[str] = []
    store.connection.set_trace_callback(statements.append)
    create_retention(store.connection)
    store.connection.set_trace_callback(None)
    assert "VACUUM" not in statements
    assert store.connection.total_changes == before
    assert run_ids(database) == ["run-1"]


def test_preparing_a_file_with_rows_keeps_them(connection: AgentConnection, database: Path) -> None:
    ticket_agent.start(SQLiteStore(connection, "s1"), "run-T105")
    before = rows(database)
    create_retention(connection)
    assert rows(database) == before | {"expired_runs": [], "run_checkpoints": []}
    fill(connection)
    assert give_back(connection) > 400


def test_preparing_waits_for_a_writer_and_says_so_in_the_end(database: Path) -> None:
    with (
        closing(connect(database, timeout=0.05)) as late,
        closing(connect(database)) as writer,
        writer,
        pytest.raises(StorageError, match="locked by another process"),
    ):
        create_retention(late)


def test_a_deleted_text_is_overwritten(tmp_path: Path, clock: HandClock) -> None:
    told = replace(T105, issue="the secret word is nightingale")
    path = tmp_path / "new.db"
    with closing(connect(path, clock=clock)) as connection:
        create_schema(connection)
        example_runs.create_tables(connection)
        example_runs.finished_run(SQLiteStore(connection, "s1", (KEEP,)), told)
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert found_in_files(path, "nightingale") == ["new.db"]
        clock.move(DAY)
        expire(connection, ttl=A_DAY)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert found_in_files(path, "nightingale") == []
