"""Group commit: few commits in a storm, none that waits for long, and a refusal refuses one."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_parts import new_database, rows

from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    JSONValueError,
    LeaseLostError,
    RunCompletedError,
    StaleVersionError,
    StorageError,
    UnknownRunError,
)
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step
from lesson_lib.riders.batches import CheckpointBatch
from lesson_lib.riders.claims import Claimed, claim_run, create_claims
from lesson_lib.riders.outbox import PutCommand, commands, create_outbox
from lesson_lib.sqlite import AgentConnection, connect, load_state, read_events, start_run
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.store import Rider, Saving
from lesson_lib.sweep import run_session
from lesson_lib.sweep.hooks import Point, statements

START = HandClock.start
DELAY = timedelta(milliseconds=20)
STEP = Step("a", {}, "a")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def connection(database: Path, clock: HandClock) -> Iterator[AgentConnection]:
    with closing(connect(database, clock=clock)) as opened:
        create_claims(opened)
        yield opened


@pytest.fixture
def commits(connection: AgentConnection) -> list[str]:
    """Return a list that gets an entry for each commit."""
    found: list[str] = []
    connection.set_trace_callback(lambda sql: found.append(sql) if sql == "COMMIT" else None)
    return found


def start(connection: AgentConnection, *names: str) -> list[RunState]:
    return [
        start_run(connection, RunState.begin(name, "T", "a", {}), session="s") for name in names
    ]


def new_batch(
    connection: AgentConnection, limit: int = 100, delay: timedelta = DELAY
) -> CheckpointBatch:
    return CheckpointBatch(connection, "s", limit=limit, delay=delay)


def add(batch: CheckpointBatch, state: RunState) -> list[Any]:
    return batch.add(state, STEP)


def in_a_storm(connection: AgentConnection, limit: int = 100) -> CheckpointBatch:
    """Return a batch whose last commit was this very moment."""
    batch = new_batch(connection, limit)
    (state,) = start(connection, "first")
    assert add(batch, state) == [load_state(connection, "first")]
    return batch


def claimed(connection: AgentConnection, run_id: str, lease: timedelta) -> Claimed:
    claim = claim_run(connection, run_id, worker="worker-1", lease=lease)
    assert claim is not None
    return Claimed(claim)


def test_after_a_quiet_time_a_checkpoint_is_committed_at_once(
    connection: AgentConnection, clock: HandClock
) -> None:
    batch = new_batch(connection)
    (state,) = start(connection, "r")
    for version in range(1, 5):
        (state,) = add(batch, state)
        assert state == load_state(connection, "r")
        assert (state.version, len(batch), batch.due) == (version, 0, None)
        clock.move(0.02)


def test_in_a_storm_a_checkpoint_waits_until_the_delay_is_over(
    connection: AgentConnection, clock: HandClock, database: Path, commits: list[str]
) -> None:
    batch = in_a_storm(connection)
    states = start(connection, *"abcd")
    before, count = rows(database), len(commits)
    for state in states:
        clock.move(4.9 / 1000)
        assert add(batch, state) == batch.poll() == []
    assert (len(batch), batch.due) == (4, START + DELAY)
    assert rows(database) == before
    clock.move(0.4 / 1000)
    assert batch.poll() == [load_state(connection, name) for name in "abcd"]
    assert len(commits) == count + 1
    assert (len(batch), batch.due, batch.poll()) == (0, None, [])
    assert len(commits) == count + 1


def test_a_checkpoint_that_comes_when_the_delay_is_over_takes_the_others_along(
    connection: AgentConnection, clock: HandClock
) -> None:
    batch = in_a_storm(connection)
    early, late = start(connection, "early", "late")
    assert add(batch, early) == []
    clock.move(0.02)
    assert [state.run_id for state in add(batch, late)] == ["early", "late"]


def test_no_more_than_the_limit_ever_wait(connection: AgentConnection, commits: list[str]) -> None:
    batch = in_a_storm(connection, limit=3)
    states, count = start(connection, *"abcdefgh"), len(commits)
    waiting = [(len(add(batch, state)), len(batch)) for state in states]
    assert waiting == [(0, 1), (0, 2), (3, 0), (0, 1), (0, 2), (3, 0), (0, 1), (0, 2)]
    assert len(commits) == count + 2


def test_the_oldest_never_waits_longer_than_the_delay(
    connection: AgentConnection, clock: HandClock
) -> None:
    rng, came, waited = Random(7), dict[str, datetime](), list[timedelta]()
    batch = new_batch(connection, limit=5)

    def note(outcomes: list[Any]) -> None:
        waited.extend(clock.now - came[state.run_id] for state in outcomes)

    for number, state in enumerate(start(connection, *map(str, range(60)))):
        arrival = clock.now + timedelta(milliseconds=rng.expovariate(1 / rng.choice((2, 30))))
        while batch.due is not None and batch.due <= arrival:
            clock.now = batch.due
            note(batch.poll())
        clock.now = came[str(number)] = arrival
        note(add(batch, state))
    note(batch.flush())
    assert len(waited) == 60
    assert timedelta(0) < max(waited) <= DELAY
    assert waited.count(timedelta(0)) > 10


@pytest.mark.parametrize("milliseconds", [-1, -3_600_000])
def test_a_clock_that_is_set_back_lets_nobody_wait(
    connection: AgentConnection, clock: HandClock, milliseconds: int
) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    clock.move(milliseconds / 1000)
    assert [saved.version for saved in add(batch, state)] == [1]


def test_checkpoints_come_back_in_the_order_in_which_they_came(
    connection: AgentConnection,
) -> None:
    batch = in_a_storm(connection)
    states = {state.run_id: state for state in start(connection, *"abcde")}
    for name in "dbeac":
        batch.add(states[name], Step(f"did {name}", {"name": name}, "a"))
    outcomes = batch.flush()
    assert [(o.run_id, dict(o.context)) for o in outcomes if isinstance(o, RunState)] == [
        (name, {"name": name}) for name in "dbeac"
    ]
    assert [read_events(connection, name)[-1].action for name in "ab"] == ["did a", "did b"]


class Refusing(Rider):
    """Refuses a checkpoint when its row and its event are written already."""

    def write(self, connection: Any, saving: Saving) -> None:
        raise InvalidStateError("not this one")


def test_a_refusal_refuses_one_checkpoint_and_leaves_nothing_of_it(
    connection: AgentConnection, database: Path
) -> None:
    batch = in_a_storm(connection)
    good, stale, refused, also_refused, last = start(connection, *"abcde")
    new_batch(connection, limit=1).add(stale, STEP)
    before = rows(database)
    add(batch, good)
    add(batch, stale)
    batch.add(refused, STEP, [Refusing()])
    batch.add(also_refused, replace(STEP, riders=(Refusing(),)))
    batch.add(RunState("nobody", "T", "running", "a", "{}", 0), STEP)
    add(batch, last)
    outcomes = batch.flush()
    assert [type(outcome) for outcome in outcomes] == [
        RunState, StaleVersionError, InvalidStateError,
        InvalidStateError, UnknownRunError, RunState,
    ]  # fmt: skip
    after = rows(database)
    changed = {row[0] for table in after for row in set(after[table]) ^ set(before[table])}
    assert changed == {"a", "e"}
    assert len(batch) == 0


def test_two_checkpoints_of_one_version_are_a_race_that_the_first_wins(
    connection: AgentConnection,
) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    batch.add(state, Step("a", {"by": "first"}, "a"))
    batch.add(state, Step("a", {"by": "second"}, "a"))
    won, lost = batch.flush()
    assert isinstance(lost, StaleVersionError)
    assert won == load_state(connection, "r")
    assert dict(load_state(connection, "r").context) == {"by": "first"}


def test_a_claim_must_still_count_at_the_commit(
    connection: AgentConnection, clock: HandClock
) -> None:
    batch = in_a_storm(connection)
    mine, taken = start(connection, "mine", "taken")
    lease = timedelta(milliseconds=5)
    for state in (mine, taken):
        batch.add(state, STEP, [claimed(connection, state.run_id, lease)])
    clock.move(0.006)
    assert claim_run(connection, "taken", worker="worker-2", lease=lease)
    saved, refused = batch.flush()
    assert (saved, type(refused)) == (load_state(connection, "mine"), LeaseLostError)
    assert load_state(connection, "taken").version == 0


def test_a_step_is_copied_when_it_comes(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    found, more = {"steps": ["one"]}, ["x"]
    batch.add(state, Step("a", found, "a", appended={"list": more}))
    found["steps"].append("two")
    more.append("y")
    batch.flush()
    assert dict(load_state(connection, "r").context) == {"steps": ["one"], "list": ["x"]}


def test_what_no_commit_could_save_is_refused_when_it_comes(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    with pytest.raises(JSONValueError, match=r"context\.codes is a set"):
        batch.add(state, Step("a", {"codes": {7}}, "a"))
    with pytest.raises(RunCompletedError):
        batch.add(RunState("r", "T", "completed", None, "{}", 1), STEP)
    assert len(batch) == 0


def test_what_no_one_expected_refuses_one_checkpoint_and_holds_up_no_other(
    connection: AgentConnection,
) -> None:
    poisoned, healthy = start(connection, "r1", "r2")
    connection.execute(
        """CREATE TRIGGER guard BEFORE INSERT ON agent_events WHEN NEW.action = 'poison'
        BEGIN SELECT RAISE(ABORT, 'not this one'); END"""
    )
    batch = in_a_storm(connection)
    batch.add(poisoned, Step("poison", {}, "a"))
    batch.add(healthy, STEP)
    refused, saved = batch.flush()
    assert isinstance(refused, sqlite3.IntegrityError)
    assert isinstance(saved, RunState)
    assert len(batch) == 0
    assert [load_state(connection, name).version for name in ("r1", "r2")] == [0, 1]


def test_a_later_checkpoint_of_a_run_that_waits_is_refused(connection: AgentConnection) -> None:
    (state,) = start(connection, "r1")
    batch = in_a_storm(connection)
    batch.add(state, STEP)
    with pytest.raises(InvalidStateError, match="a checkpoint of r1 waits already: flush first"):
        batch.add(state.after(STEP), STEP)
    assert len(batch) == 1


def test_what_rides_is_copied_when_it_comes(connection: AgentConnection) -> None:
    create_outbox(connection)
    (state,) = start(connection, "r1")
    batch, request = in_a_storm(connection), {"to": "ann"}
    batch.add(state, STEP, riders=(PutCommand("k", "pay", request),))
    request["to"] = "bob"
    batch.flush()
    (command,) = commands(connection)
    assert command.request == {"to": "ann"}


def test_a_row_that_cannot_be_trusted_refuses_one(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    torn, whole = start(connection, "torn", "whole")
    connection.execute("UPDATE agent_runs SET version = 9 WHERE run_id = 'torn'")
    add(batch, torn)
    add(batch, whole)
    assert [type(o) for o in batch.flush()] == [CorruptStateError, RunState]


# Commits that fail.


def test_when_the_file_is_locked_all_wait_on(connection: AgentConnection, database: Path) -> None:
    connection.execute("PRAGMA busy_timeout = 0").fetchall()
    batch = in_a_storm(connection, limit=2)
    first, second = start(connection, "a", "b")
    add(batch, first)
    with closing(sqlite3.connect(database, autocommit=True)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="is locked"):
            add(batch, second)
        with pytest.raises(StorageError, match="is locked"):
            batch.flush()
    assert len(batch) == 2
    assert [state.version for state in batch.flush() if isinstance(state, RunState)] == [1, 1]


def test_when_the_disk_is_full_all_wait_on(connection: AgentConnection, database: Path) -> None:
    batch = in_a_storm(connection)
    small, large = start(connection, "small", "large")
    before = rows(database)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    add(batch, small)
    batch.add(large, Step("a", {"text": "x" * 100_000}, "a"))
    with pytest.raises(StorageError, match="disk is full"):
        batch.flush()
    assert (len(batch), rows(database)) == (2, before)
    connection.execute("PRAGMA max_page_count = 10000").fetchall()
    assert [state.version for state in batch.flush() if isinstance(state, RunState)] == [1, 1]


@pytest.mark.parametrize(("limit", "delay"), [(0, DELAY), (1, timedelta(seconds=-1))])
def test_a_batch_needs_a_limit_and_a_delay(
    connection: AgentConnection, limit: int, delay: timedelta
) -> None:
    with pytest.raises(InvalidStateError, match="choose a limit"):
        new_batch(connection, limit, delay)


def test_without_a_delay_each_is_committed_at_once(connection: AgentConnection) -> None:
    batch = new_batch(connection, delay=timedelta(0))
    assert [len(add(batch, state)) for state in start(connection, *"abc")] == [1, 1, 1]


# Deaths.


def save_six(folder: Path, session: str, point: Point) -> None:
    """Save a checkpoint of each of six runs through a batch, and tell a witness which are saved."""
    told = Ledger(folder / "told")
    with closing(connect(new_database(folder))) as connection:
        states = start(connection, *"abcdef")
        batch = new_batch(connection, limit=3, delay=timedelta(hours=1))
        with statements(AgentCursor, point):
            for state in states:
                saved = add(batch, state)
                point("before it is told")
                told.write("".join(new.run_id for new in saved if isinstance(new, RunState)))


@pytest.mark.parametrize("where", ["COMMIT|told", pytest.param("", marks=pytest.mark.prove)])
def test_a_death_at_any_step_loses_only_what_was_not_acknowledged(
    tmp_path: Path, where: str
) -> None:
    def saved(folder: Path) -> str:
        with closing(connect(folder / "agent.db")) as connection:
            return "".join(n for n in "abcdef" if load_state(connection, n).version)

    # The first is committed alone, then come three together; two wait for an hour.
    entry, whole = f"{__name__}:save_six", tmp_path / "whole"
    points = run_session(entry, whole, "session-1")
    assert (Ledger(whole / "told").lines(), saved(whole)) == (["a", "", "", "bcd", "", ""], "abcd")
    found = set()
    for point in filter(re.compile(where).search, points):
        folder = tmp_path / point.replace(" ", "-")
        run_session(entry, folder, "session-1", point)
        found.add(("".join(Ledger(folder / "told").lines()), saved(folder)))
    # What was told is saved, and a batch is saved whole: told or, at one step, not yet told.
    assert found == {("", ""), ("", "a"), ("a", "a"), ("a", "abcd"), ("abcd", "abcd")}


def test_a_claim_of_another_run_refuses_one(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    mine, other = start(connection, "a", "b")
    claim = claimed(connection, "a", timedelta(seconds=30))
    batch.add(mine, STEP, [claim])
    batch.add(other, STEP, [claim])
    saved, refused = batch.flush()
    assert saved == load_state(connection, "a")
    assert str(refused) == "a claim of a does not cover b"


def test_no_more_than_the_limit_wait_while_the_file_is_locked(
    connection: AgentConnection, database: Path
) -> None:
    states = start(connection, *"abcdefgh")
    batch = new_batch(connection, limit=3)
    connection.execute("PRAGMA busy_timeout = 0").fetchall()
    with closing(connect(database)) as other:
        other.execute("BEGIN IMMEDIATE")
        for state in states:
            with pytest.raises(StorageError, match="is locked"):
                add(batch, state)
        assert len(batch) == 3
        other.execute("ROLLBACK")
    assert [getattr(outcome, "run_id", outcome) for outcome in batch.flush()] == ["a", "b", "c"]
