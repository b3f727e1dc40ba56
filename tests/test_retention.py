"""What expires and what never does, in small transactions, with the space given back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from remote_parts import Clock
from sqlite_bytes import parts
from store_parts import rows

from lesson_lib.agent import resume, start
from lesson_lib.checkpoints import history, retention, scenes
from lesson_lib.checkpoints.archive import read_archive, save_kept
from lesson_lib.checkpoints.codec import decode, encode
from lesson_lib.checkpoints.privacy import found_in_files
from lesson_lib.checkpoints.retention import (
    Expired,
    abandon,
    create_retention,
    expire,
    give_back,
    silent_runs,
    why_kept,
)
from lesson_lib.crash import run_python
from lesson_lib.errors import (
    InvalidStateError,
    RunCompletedError,
    RunExistsError,
    StaleVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    claim_run,
    connect,
    create_claims,
    create_schema,
    delete_run,
    execute_once,
    load_state,
    read_events,
    save_checkpoint,
    start_run,
)
from lesson_lib.stores.sqlite.intents import confirm, create_intents, find_intent, intend
from lesson_lib.stores.sqlite.outbox import (
    claim_command,
    create_outbox,
    mark_delivered,
    put_command,
)
from lesson_lib.stores.sqlite.questions import answer, ask
from lesson_lib.tickets import read_tickets

DAY = timedelta(hours=24)
T105 = read_tickets()[4]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Path, clock: Clock) -> Iterator[AgentConnection]:
    with closing(connect(database, clock=clock)) as opened:
        scenes.create_tables(opened)
        yield opened


def finished(connection: AgentConnection, run_id: str) -> RunState:
    """Return a run of one checkpoint, which completed it."""
    return save_kept(connection, begun(connection, run_id), **step(None))


def begun(connection: AgentConnection, run_id: str) -> RunState:
    return start_run(
        connection,
        run_id=run_id,
        ticket_id="T105",
        session="s1",
        first_action="look",
        context=context(),
    )


def context() -> dict[str, Any]:
    return {
        "ticket": {
            "area": "dispatch",
            "issue": T105.issue,
            "outage_minutes": 1,
            "safety_impact": False,
        }
    }


def step(next_action: str | None = "look") -> dict[str, Any]:
    return dict(session="s1", action="look", next_action=next_action, context=context())


def long_run(connection: AgentConnection, run_id: str, saves: int) -> RunState:
    run = begun(connection, run_id)
    for _ in range(saves):
        run = save_kept(connection, run, **step())
    return run


def run_ids(database: Path) -> list[str]:
    return [row[0] for row in rows(database)["agent_runs"]]


def kept_versions(connection: AgentConnection, run_id: str) -> list[int]:
    return [stored.version for stored in read_archive(connection, run_id)]


# Which runs expire


@pytest.mark.parametrize("ttl", [24, 48, 72])
def test_a_finished_run_expires_at_its_ttl_and_not_before(
    store: AgentConnection, database: Path, clock: Clock, ttl: int
) -> None:
    finished(store, "run-1")
    clock.move(hours=ttl, microseconds=-1)
    assert expire(store, ttl=timedelta(hours=ttl)) == Expired(0, (), ())
    clock.move(microseconds=1)
    assert expire(store, ttl=timedelta(hours=ttl)) == Expired(0, ("run-1",), ())
    left = rows(database)
    assert left.pop("expired_runs") == [("run-1", left_at(clock))]
    assert {name: kept for name, kept in left.items() if kept} == {}


def left_at(clock: Clock) -> str:
    return clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize("hours", [-24, 0, 23.999, 72.001, 10_000])
def test_another_ttl_is_refused(
    store: AgentConnection, database: Path, clock: Clock, hours: float
) -> None:
    finished(store, "run-1")
    long_run(store, "run-2", 9)
    clock.move(days=365)
    before, ttl = rows(database), timedelta(hours=hours)
    for refused in (
        lambda: expire(store, ttl=ttl),
        lambda: silent_runs(store, ttl),
        lambda: why_kept(store, "run-1", ttl),
    ):
        with pytest.raises(InvalidStateError, match=r"a TTL of .* hours is not between 24 and 72"):
            refused()
    assert rows(database) == before


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"batch": 0}], ids=str)
def test_nothing_to_keep_or_to_do_is_refused(store: AgentConnection, wrong: Any) -> None:
    long_run(store, "run-1", 9)
    with pytest.raises(InvalidStateError, match="must be at least 1"):
        expire(store, ttl=DAY, **wrong)
    assert len(kept_versions(store, "run-1")) == 10


def test_a_running_run_never_expires(store: AgentConnection, database: Path, clock: Clock) -> None:
    begun(store, "run-1")
    long_run(store, "run-2", 2)
    before = rows(database)
    for _ in range(3):
        clock.move(days=3650)
        assert expire(store, ttl=DAY) == Expired(0, (), ())
        assert why_kept(store, "run-2", DAY) == "it is running"
    assert rows(database) == before
    resume(store, "run-2", "s2")


def test_open_business_keeps_even_a_completed_run(store: AgentConnection, clock: Clock) -> None:
    create_intents(store)
    create_outbox(store)
    create_claims(store)
    for run_id in ("asks", "intends", "sends"):
        finished(store, run_id)
    with store:
        ask(store, run_id="asks", session="s1", question_id="q", question="Paid?", choices=["yes"])
        put_command(store, run_id="sends", key="sends:1", tool_name="pay", request={})
    intend(store, run_id="intends", session="s1", key="intends:1", tool_name="pay", request={})
    begun(store, "claimed")
    clock.move(days=30)
    claim_run(store, "claimed", worker="w1", lease=timedelta(minutes=1))
    why = {
        run_id: why_kept(store, run_id, DAY) for run_id in ("asks", "intends", "sends", "claimed")
    }
    assert why == {
        "asks": "a question of it waits for its answer",
        "intends": "what became of an intent is not known",
        "sends": "a command of it is not delivered",
        "claimed": "w1 has claimed it",
    }
    assert expire(store, ttl=DAY) == Expired(0, (), ())
    assert silent_runs(store, DAY) == []

    answer(store, "q", "yes", person="Ada")
    intent = find_intent(store, "intends:1")
    assert intent is not None
    confirm(store, intent, session="s1", answer={})
    command = claim_command(store, claim=DAY, max_attempts=3, key_lives=DAY * 99, session="s1")
    assert command is not None
    mark_delivered(store, command, session="s1", answer={})
    # Each of these left an event: the TTL counts from there.
    assert expire(store, ttl=DAY) == Expired(0, (), ())
    clock.move(days=1)
    assert expire(store, ttl=DAY).runs == ("asks", "intends", "sends")


def test_a_waiting_run_never_expires(store: AgentConnection, clock: Clock) -> None:
    runs = scenes.four_runs(store)
    clock.move(days=365)
    assert why_kept(store, runs[3], DAY) == "a question of it waits for its answer"
    assert runs[3] not in silent_runs(store, DAY)
    assert runs[3] not in expire(store, ttl=DAY).runs
    answer(store, f"{runs[3]}:paid", "yes", person="Ada")
    resume(store, runs[3], "s2")


def test_saved_results_are_there_for_whoever_repeats_within_the_ttl(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    scenes.finished_run(store, T105)
    for _ in range(5):
        clock.move(hours=23)
        assert expire(store, ttl=DAY).runs == ()
        assert scenes.ask_again(store, "run-T105").reused
    ledger = database.with_suffix(".ledger.txt").read_text("utf-8").splitlines()
    assert sorted(ledger) == ["run-T105:draft_reply", "run-T105:lookup_runbook"]
    clock.move(hours=24)
    assert expire(store, ttl=DAY).runs == ("run-T105",)


def test_an_expired_id_is_never_used_again(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    run = finished(store, "run-1")
    clock.move(days=1)
    expire(store, ttl=DAY)
    with pytest.raises(RunExistsError, match="a run of this id has expired"):
        begun(store, "run-1")
    with pytest.raises(UnknownRunError):
        execute_once(
            store,
            lambda: pytest.fail("the tool was called"),
            run_id=run.run_id,
            session="s2",
            key="run-1:look",
            tool_name="look",
            tool_input={},
        )
    assert run_ids(database) == []
    begun(store, "run-2")


def test_an_event_from_the_future_keeps_its_run(store: AgentConnection, clock: Clock) -> None:
    clock.move(days=400)
    finished(store, "run-1")
    clock.move(days=-400)
    assert why_kept(store, "run-1", DAY) == "its latest event lies in the future"
    clock.move(days=399)
    assert expire(store, ttl=DAY).runs == ()


def test_a_clock_that_was_wrong_at_the_last_event_expires_nothing_early(
    store: AgentConnection, clock: Clock
) -> None:
    run = begun(store, "run-1")
    clock.move(days=-400)
    save_kept(store, run, **step(None))
    clock.move(days=400, hours=23)
    assert expire(store, ttl=DAY).runs == ()
    clock.move(hours=1)
    assert expire(store, ttl=DAY).runs == ("run-1",)


def test_a_time_that_cannot_be_read_keeps_its_run_and_no_other(
    store: AgentConnection, clock: Clock
) -> None:
    for run_id in ("run-1", "run-2"):
        finished(store, run_id)
    store.execute(
        "UPDATE agent_events SET created_at_utc = '2026-99-99T00Z' WHERE run_id = 'run-1'"
    )
    clock.move(days=9)
    assert why_kept(store, "run-1", DAY) == "the time of its latest event cannot be read"
    assert expire(store, ttl=DAY).runs == ("run-2",)


def test_a_naive_clock_is_refused_before_anything_is_deleted(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    long_run(store, "run-1", 9)
    finished(store, "run-2")
    before = rows(database)
    store.clock = lambda: datetime(2030, 1, 1)  # noqa: DTZ001
    for refused in (lambda: expire(store, ttl=DAY), lambda: silent_runs(store, DAY)):
        with pytest.raises(InvalidStateError, match="naive"):
            refused()
    assert rows(database) == before


def test_an_unknown_run_has_no_reason(store: AgentConnection) -> None:
    with pytest.raises(UnknownRunError):
        why_kept(store, "run-9", DAY)


def test_a_run_that_another_table_needs_stops_no_other(
    store: AgentConnection, clock: Clock
) -> None:
    for run_id in ("run-1", "run-2"):
        finished(store, run_id)
    store.execute("CREATE TABLE bills (run_id TEXT REFERENCES agent_runs (run_id))")
    store.execute("INSERT INTO bills VALUES ('run-1')")
    clock.move(days=1)
    assert expire(store, ttl=DAY) == Expired(
        0, ("run-2",), ("run-1: FOREIGN KEY constraint failed",)
    )
    assert load_state(store, "run-1").version == 1


def test_a_result_asked_for_between_look_and_delete_keeps_its_run(
    store: AgentConnection, database: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes.finished_run(store, T105)
    clock.move(days=1)
    looks: list[bool] = []
    real = why_kept

    def why_kept_and_be_overtaken(
        connection: AgentConnection, run_id: str, ttl: timedelta
    ) -> str | None:
        looks.append(connection.in_transaction)
        found = real(connection, run_id, ttl)
        if not connection.in_transaction:
            with closing(connect(database, clock=clock)) as other:
                assert scenes.ask_again(other, run_id).reused
        return found

    monkeypatch.setattr(retention, "why_kept", why_kept_and_be_overtaken)
    assert expire(store, ttl=DAY).runs == ()
    assert looks == [False, True]


def test_the_history_of_a_run_goes_with_it(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    history.create_history(store)
    finished(store, "run-1")
    with store:
        history.append(store, "run-1", [{"role": "user", "text": "hello"}])
    clock.move(days=1)
    assert expire(store, ttl=DAY).runs == ("run-1",)
    assert rows(database)["run_history"] == []


# Runs that nobody goes on with


def test_an_abandoned_run_ends_with_an_event_and_expires_after_its_ttl(
    store: AgentConnection, clock: Clock
) -> None:
    run = long_run(store, "run-1", 1)
    clock.move(days=1)
    assert silent_runs(store, DAY) == ["run-1"]
    ended = abandon(store, run, session="Ada", reason="nobody answers")
    assert ended == load_state(store, "run-1")
    assert (ended.status, ended.context) == ("completed", run.context)
    last = [(e.session, e.event_type, e.detail) for e in read_events(store, "run-1")][-2:]
    assert last == [
        ("Ada", "checkpoint_saved", '{"version": 2}'),
        ("Ada", "run_abandoned", '{"reason": "nobody answers"}'),
    ]
    assert silent_runs(store, DAY) == []
    assert expire(store, ttl=DAY).runs == ()
    clock.move(days=1)
    assert expire(store, ttl=DAY).runs == ("run-1",)


def test_a_run_is_silent_only_when_its_last_event_is_old(
    store: AgentConnection, clock: Clock
) -> None:
    begun(store, "run-1")
    clock.move(hours=23)
    assert silent_runs(store, DAY) == []
    resume(store, "run-1", "s2")
    clock.move(hours=23)
    assert silent_runs(store, DAY) == []
    clock.move(hours=1)
    assert silent_runs(store, DAY) == ["run-1"]


def test_a_run_of_a_file_without_an_archive_can_be_abandoned_and_expires(
    database: Path, clock: Clock
) -> None:
    with closing(connect(database, clock=clock)) as plain:
        create_schema(plain)
        run = begun(plain, "run-1")
        clock.move(days=1)
        assert abandon(plain, run, session="Ada", reason="nobody").status == "completed"
        create_retention(plain)
        clock.move(days=1)
        assert expire(plain, ttl=DAY).runs == ("run-1",)


def test_a_file_without_an_archive_expires(database: Path, clock: Clock) -> None:
    with closing(connect(database, clock=clock)) as plain:
        create_schema(plain)
        create_retention(plain)
        assert expire(plain, ttl=DAY) == Expired(0, (), ())


def test_a_session_that_goes_on_with_an_abandoned_run_cannot_save(
    store: AgentConnection, clock: Clock
) -> None:
    run = begun(store, "run-1")
    clock.move(days=1)
    abandon(store, run, session="Ada", reason="nobody answers")
    with pytest.raises(StaleVersionError):
        save_kept(store, run, **step())
    with pytest.raises(RunCompletedError):
        resume(store, "run-1", "s2")


def test_a_run_that_somebody_resumed_meanwhile_is_not_abandoned(
    store: AgentConnection, clock: Clock
) -> None:
    run = begun(store, "run-1")
    clock.move(days=1)
    assert silent_runs(store, DAY) == ["run-1"]
    resume(store, "run-1", "s2")
    with pytest.raises(InvalidStateError, match="less than 24 hours ago"):
        abandon(store, run, session="Ada", reason="nobody answers")
    assert load_state(store, "run-1") == run


def test_an_abandoned_run_keeps_its_last_state_in_the_archive(
    store: AgentConnection, clock: Clock
) -> None:
    run = long_run(store, "run-1", 1)
    clock.move(days=1)
    ended = abandon(store, run, session="Ada", reason="nobody answers")
    assert decode(read_archive(store, "run-1")[0]) == ended


def test_a_run_that_moved_on_meanwhile_is_not_abandoned(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    seen = begun(store, "run-1")
    save_kept(store, seen, **step())
    clock.move(days=1)
    before = rows(database)
    with pytest.raises(StaleVersionError):
        abandon(store, seen, session="Ada", reason="nobody answers")
    assert rows(database) == before


def test_a_run_with_open_business_is_not_abandoned(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    runs = scenes.four_runs(store)
    create_claims(store)
    claim_run(store, runs[2], worker="w1", lease=timedelta(minutes=1))
    before = rows(database)
    for run_id, reason in ((runs[2], "w1 has claimed it"), (runs[3], "waits for its answer")):
        with pytest.raises(InvalidStateError, match=reason):
            abandon(store, load_state(store, run_id), session="Ada", reason="tired")
    late = begun(store, "run-late")
    clock.move(days=1)
    before = rows(database)
    with pytest.raises(InvalidStateError, match="reason must be non-empty text"):
        abandon(store, late, session="Ada", reason="")
    assert rows(database) == before


# Old checkpoints


@pytest.mark.parametrize(("saves", "keep", "left"), [(9, 3, 3), (9, 1, 1), (9, 10, 10), (1, 3, 2)])
def test_an_unfinished_run_keeps_its_newest_checkpoints(
    store: AgentConnection, saves: int, keep: int, left: int
) -> None:
    run = long_run(store, "run-1", saves)
    assert expire(store, ttl=DAY, keep=keep).checkpoints == saves + 1 - left
    assert kept_versions(store, "run-1") == list(range(saves, saves - left, -1))
    assert decode(read_archive(store, "run-1")[0]) == run
    assert expire(store, ttl=DAY, keep=keep).checkpoints == 0


def test_what_cannot_be_trusted_does_not_count(store: AgentConnection) -> None:
    long_run(store, "run-1", 9)
    store.execute("UPDATE run_checkpoints SET body = x'00' WHERE version IN (9, 7, 6)")
    assert expire(store, ttl=DAY, keep=2).checkpoints == 5
    assert kept_versions(store, "run-1") == [9, 8, 7, 6, 5]


def test_a_checksum_that_is_damaged_in_its_row_alone_does_not_count(
    database: Path, clock: Clock
) -> None:
    with closing(connect(database, clock=clock)) as opened:
        scenes.create_tables(opened)
        long_run(opened, "run-1", 4)
    newest = max(
        (p for p in parts(database, "run_checkpoints") if p.part == "sha256"),
        key=lambda p: p.rowid,
    )
    data = bytearray(database.read_bytes())
    data[newest.start] ^= 1  # the index still has the right one
    database.write_bytes(data)
    with closing(connect(database, clock=clock)) as opened:
        assert expire(opened, ttl=DAY, keep=1).checkpoints == 3
        assert kept_versions(opened, "run-1") == [4, 3]


def test_the_last_checkpoint_that_can_be_trusted_stays(store: AgentConnection) -> None:
    long_run(store, "run-1", 9)
    store.execute("UPDATE run_checkpoints SET body = x'00' WHERE version > 0")
    assert expire(store, ttl=DAY, keep=1).checkpoints == 0
    assert kept_versions(store, "run-1")[-1] == 0


def test_a_version_that_is_claimed_twice_does_not_count(store: AgentConnection) -> None:
    long_run(store, "run-1", 4)
    (kept,) = read_archive(store, "run-1", version=2)
    rival = encode(replace(decode(kept), next_action="other"))
    store.execute(
        """INSERT INTO run_checkpoints
        (run_id, version, schema_version, compression, body, sha256)
        VALUES (:run_id, :version, :schema_version, :compression, :body, :sha256)""",
        vars(rival),
    )
    assert expire(store, ttl=DAY, keep=3).checkpoints == 1
    assert kept_versions(store, "run-1") == [4, 3, 2, 2, 1]


def test_a_version_that_the_run_has_not_reached_does_not_count(store: AgentConnection) -> None:
    long_run(store, "run-1", 4)
    store.execute("UPDATE agent_runs SET version = 2")
    assert expire(store, ttl=DAY, keep=1).checkpoints == 2
    assert kept_versions(store, "run-1") == [4, 3, 2]


# Small transactions


def test_between_two_batches_another_connection_can_save(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    for run_id in ("run-1", "run-2"):
        finished(store, run_id)
    long_run(store, "run-3", 24)
    clock.move(days=1)
    passed, left = [], []
    with closing(connect(database, timeout=0, clock=clock)) as other:
        live = [begun(other, "run-live")]

        def save(point: str) -> None:
            assert not store.in_transaction
            live.append(save_checkpoint(other, live[-1], **step()))
            passed.append(point)
            left.append(len(kept_versions(other, "run-3")))

        assert expire(store, ttl=DAY, batch=10, passing=save) == Expired(22, ("run-1", "run-2"), ())
    assert passed == ["run-1: whole", "run-2: whole", *["run-3: checkpoints"] * 3]
    assert left == [25, 25, 15, 5, 3]
    assert load_state(store, "run-live").version == 5


KILLED = """
import sys
from datetime import UTC, datetime, timedelta
from lesson_lib.checkpoints.retention import expire
from lesson_lib.crash import die
from lesson_lib.stores.sqlite import connect

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


@pytest.mark.parametrize("points", [1, 2, 3, 4])
def test_a_death_between_two_batches_leaves_a_whole_store(
    store: AgentConnection, database: Path, clock: Clock, points: int
) -> None:
    scenes.finished_run(store, T105)
    long_run(store, "run-a", 9)
    clock.move(days=1)
    end = run_python(KILLED, database, points, clock().isoformat())  # type: ignore[arg-type]
    assert end.ended == "died without cleanup"
    assert store.execute("PRAGMA foreign_key_check").fetchall() == []
    assert store.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    for run_id in run_ids(database):
        state = load_state(store, run_id)
        assert decode(read_archive(store, run_id)[0]) == state
    gone = [row[0] for row in rows(database)["expired_runs"]]
    assert sorted(gone + run_ids(database)) == ["run-T105", "run-a"]
    assert gone == ([] if points == 1 else ["run-T105"])
    expire(store, ttl=DAY, batch=4)
    assert run_ids(database) == ["run-a"]
    assert kept_versions(store, "run-a") == [9, 8, 7]
    assert save_kept(store, load_state(store, "run-a"), **step()).version == 10


def test_expiry_inside_a_transaction_is_refused(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    finished(store, "run-1")
    clock.move(days=1)
    with pytest.raises(TransactionError), store:
        expire(store, ttl=DAY)
    assert run_ids(database) == ["run-1"]


def test_two_clean_ups_at_once_do_the_work_once(
    store: AgentConnection, database: Path, clock: Clock
) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        finished(store, run_id)
    long_run(store, "run-0", 9)
    clock.move(days=1)
    results: list[Expired] = []
    with closing(connect(database, clock=clock)) as other:

        def overtake(point: str) -> None:
            if not results:
                results.append(expire(other, ttl=DAY, batch=2))

        results.append(expire(store, ttl=DAY, batch=2, passing=overtake))
    assert sorted(results[0].runs + results[1].runs) == ["run-1", "run-2", "run-3"]
    assert results[0].checkpoints + results[1].checkpoints == 7


# Space


def fill(connection: AgentConnection) -> None:
    connection.execute("CREATE TABLE bulk (body BLOB)")
    with connection:
        connection.executemany("INSERT INTO bulk VALUES (?)", [[bytes(50_000)]] * 40)
    with connection:
        connection.execute("DELETE FROM bulk")


def test_space_is_given_back_in_small_steps(store: AgentConnection, database: Path) -> None:
    fill(store)
    steps: list[str] = []
    store.set_trace_callback(lambda sql: steps.append(sql) if "incremental_vacuum" in sql else None)
    lost = give_back(store, pages=50)
    store.set_trace_callback(None)
    assert lost > 1_900_000
    assert set(steps) == {"PRAGMA incremental_vacuum(50)"}
    assert len(steps) == -(-lost // 4096 // 50)
    assert database.stat().st_size < 200_000
    assert database.with_name("agent.db-wal").stat().st_size == 0
    assert give_back(store) == 0
    assert store.execute("PRAGMA busy_timeout").fetchone()[0] == store.timeout * 1000


def test_a_file_that_was_not_prepared_gives_nothing_back(connection: AgentConnection) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    fill(connection)
    assert give_back(connection) == 0


def test_a_reader_is_not_waited_for(store: AgentConnection, database: Path) -> None:
    fill(store)
    with closing(sqlite3.connect(database, autocommit=True)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM bulk").fetchone() == (0,)
        statements: list[str] = []
        store.set_trace_callback(statements.append)
        assert give_back(store) > 1_900_000
        store.set_trace_callback(None)
        reader.execute("COMMIT")
    assert statements[-3:] == [
        "PRAGMA busy_timeout = 0",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA busy_timeout = 5000",
    ]
    give_back(store)
    assert database.with_name("agent.db-wal").stat().st_size == 0


def test_preparing_twice_does_nothing(store: AgentConnection, database: Path) -> None:
    finished(store, "run-1")
    before = store.total_changes
    statements: list[str] = []
    store.set_trace_callback(statements.append)
    create_retention(store)
    store.set_trace_callback(None)
    assert "VACUUM" not in statements
    assert store.total_changes == before
    assert run_ids(database) == ["run-1"]


def test_preparing_a_file_with_rows_keeps_them(connection: AgentConnection, database: Path) -> None:
    start(connection, T105, "s1")
    before = rows(database)
    create_retention(connection)
    after = rows(database)
    assert after == before | {"expired_runs": [], "run_checkpoints": []}
    fill(connection)
    assert give_back(connection) > 1_900_000


def test_preparing_waits_for_a_writer_and_says_so_in_the_end(database: Path) -> None:
    with (
        closing(connect(database, timeout=0.05)) as late,
        closing(connect(database)) as writer,
        writer,
        pytest.raises(StorageError, match="locked by another process"),
    ):
        create_retention(late)


def test_a_deleted_text_is_overwritten(tmp_path: Path, clock: Clock) -> None:
    told = replace(T105, issue="the secret word is nightingale")
    path = tmp_path / "agent.db"
    with closing(connect(path, clock=clock)) as connection:
        create_schema(connection)
        scenes.create_tables(connection)
        scenes.finished_run(connection, told)
        connection.execute("PRAGMA secure_delete = OFF")
        give_back(connection)
        assert found_in_files(path, "nightingale") == ["agent.db"]
        clock.move(days=1)
        expire(connection, ttl=DAY)
        give_back(connection)
        assert found_in_files(path, "nightingale") == []
        with pytest.raises(UnknownRunError):
            delete_run(connection, "run-T105")
        assert clock() == datetime(2026, 1, 6, 9, tzinfo=UTC)
