"""Group commit: few commits in a storm, none that waits for long, and a refusal refuses one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_parts import rows

from lesson_lib.crash import run_python
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
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    CheckpointBatch,
    claim_run,
    connect,
    create_claims,
    load_state,
    read_events,
    start_run,
)
from lesson_lib.workers.trials import Clock

START = Clock.start
DELAY = timedelta(milliseconds=20)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(database: Path, clock: Clock) -> Iterator[AgentConnection]:
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
        start_run(connection, run_id=n, ticket_id="T", session="s", first_action="a", context={})
        for n in names
    ]


def add(batch: CheckpointBatch, state: RunState, **changed: Any) -> list[Any]:
    checkpoint = dict(session="s", action="a", next_action="a", context={})
    return batch.add(state, **(checkpoint | changed))


def in_a_storm(connection: AgentConnection, limit: int = 100) -> CheckpointBatch:
    """Return a batch whose last commit was this very moment."""
    batch = CheckpointBatch(connection, limit=limit, delay=DELAY)
    (state,) = start(connection, "first")
    assert add(batch, state) == [load_state(connection, "first")]
    return batch


def test_after_a_quiet_time_a_checkpoint_is_committed_at_once(
    connection: AgentConnection, clock: Clock
) -> None:
    batch = CheckpointBatch(connection, limit=100, delay=DELAY)
    (state,) = start(connection, "r")
    for version in range(1, 5):
        (state,) = add(batch, state)
        assert state == load_state(connection, "r")
        assert (state.version, len(batch), batch.due) == (version, 0, None)
        clock.move(0.02)


def test_in_a_storm_a_checkpoint_waits_until_the_delay_is_over(
    connection: AgentConnection, clock: Clock, database: Path, commits: list[str]
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
    connection: AgentConnection, clock: Clock
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
    connection: AgentConnection, clock: Clock
) -> None:
    rng, came, waited = Random(7), dict[str, datetime](), list[timedelta]()
    batch = CheckpointBatch(connection, limit=5, delay=DELAY)

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
    connection: AgentConnection, clock: Clock, milliseconds: int
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
        add(batch, states[name], context={"name": name}, action=f"did {name}")
    outcomes = batch.flush()
    assert [(o.run_id, dict(o.context)) for o in outcomes if isinstance(o, RunState)] == [
        (name, {"name": name}) for name in "dbeac"
    ]
    assert [read_events(connection, name)[-1].action for name in "ab"] == ["did a", "did b"]


def test_a_refusal_refuses_one_checkpoint_and_leaves_nothing_of_it(
    connection: AgentConnection, database: Path
) -> None:
    batch = in_a_storm(connection)
    good, stale, _, unnamed, _, last = start(connection, *"abcdef")
    for name, next_action in (("b", "a"), ("c", None)):
        CheckpointBatch(connection, limit=1, delay=DELAY).add(
            load_state(connection, name),
            session="s", action="a", next_action=next_action, context={},
        )  # fmt: skip
    before = rows(database)
    add(batch, good)
    add(batch, stale)
    add(batch, load_state(connection, "c"))
    add(batch, unnamed, session="")  # refused after the row of the run was written
    add(batch, RunState("nobody", "T", "running", "a", "{}", 0))
    add(batch, last)
    outcomes = batch.flush()
    assert [type(outcome) for outcome in outcomes] == [
        RunState, StaleVersionError, RunCompletedError,
        InvalidStateError, UnknownRunError, RunState,
    ]  # fmt: skip
    after = rows(database)
    changed = {row[0] for table in after for row in set(after[table]) ^ set(before[table])}
    assert changed == {"a", "f"}
    assert len(batch) == 0


def test_two_checkpoints_of_one_version_are_a_race_that_the_first_wins(
    connection: AgentConnection,
) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    add(batch, state, context={"by": "first"})
    add(batch, state, context={"by": "second"})
    won, lost = batch.flush()
    assert isinstance(lost, StaleVersionError)
    assert won == load_state(connection, "r")
    assert dict(load_state(connection, "r").context) == {"by": "first"}


def test_a_claim_must_still_count_at_the_commit(connection: AgentConnection, clock: Clock) -> None:
    batch = in_a_storm(connection)
    mine, taken = start(connection, "mine", "taken")
    lease = timedelta(milliseconds=5)
    for state in (mine, taken):
        claim = claim_run(connection, state.run_id, worker="worker-1", lease=lease)
        add(batch, state, claim=claim)
    clock.move(0.006)
    assert claim_run(connection, "taken", worker="worker-2", lease=lease)
    saved, refused = batch.flush()
    assert (saved, type(refused)) == (load_state(connection, "mine"), LeaseLostError)
    assert load_state(connection, "taken").version == 0


def test_a_context_is_copied_when_it_comes(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    context = {"steps": ["one"]}
    add(batch, state, context=context)
    context["steps"].append("two")
    batch.flush()
    assert dict(load_state(connection, "r").context) == {"steps": ["one"]}


def test_a_context_that_is_not_json_is_refused_when_it_comes(connection: AgentConnection) -> None:
    batch = in_a_storm(connection)
    (state,) = start(connection, "r")
    with pytest.raises(JSONValueError, match=r"context\.codes is a set"):
        add(batch, state, context={"codes": {7}})
    assert len(batch) == 0


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
    add(batch, large, context={"text": "x" * 100_000})
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
        CheckpointBatch(connection, limit=limit, delay=delay)


def test_without_a_delay_each_is_committed_at_once(connection: AgentConnection) -> None:
    batch = CheckpointBatch(connection, limit=100, delay=timedelta(0))
    assert [len(add(batch, state)) for state in start(connection, *"abc")] == [1, 1, 1]


# Deaths.

DIES_AT_STEP = """
import sys
from datetime import timedelta
from itertools import count
from lesson_lib.crash import die
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite import CheckpointBatch, connect, load_state, unfinished_runs
told, last, steps = Ledger(sys.argv[2]), int(sys.argv[3]), count(1)

def step(_):
    if next(steps) == last:
        die("kill")

connection = connect(sys.argv[1])
states = [load_state(connection, run_id) for run_id in unfinished_runs(connection)]
connection.set_trace_callback(step)
batch = CheckpointBatch(connection, limit=3, delay=timedelta(hours=1))
for state in states:
    saved = batch.add(state, session="s", action="a", next_action="b", context={})
    step("before it is told")
    told.write(" ".join(new.run_id for new in saved))
connection.set_trace_callback(None)
print(next(steps) - 1, len(batch))
"""


def test_a_death_at_any_step_loses_only_what_was_not_acknowledged(
    database: Path, tmp_path: Path
) -> None:
    with closing(connect(database)) as connection:
        start(connection, *"abcdef")
    fresh, told = database.read_bytes(), Ledger(tmp_path / "told")

    def saved() -> str:
        with closing(connect(database)) as connection:
            return "".join(n for n in "abcdef" if load_state(connection, n).version)

    # The first is committed alone, then come three together; two wait for an hour.
    whole = run_python(DIES_AT_STEP, database, told.path, "0")
    steps, waiting = map(int, whole.printed.split())
    assert (waiting, told.lines(), saved()) == (2, ["a", "", "", "b c d", "", ""], "abcd")
    found = set()
    for last in range(1, steps + 1):
        for path in (*tmp_path.glob("agent.db-*"), told.path):
            path.unlink(missing_ok=True)
        database.write_bytes(fresh)
        end = run_python(DIES_AT_STEP, database, told.path, str(last))
        assert end.ended == "died without cleanup"
        found.add(("".join(told.lines()).replace(" ", ""), saved()))
    # What was told is saved, and a batch is saved whole: told or, at one step, not yet told.
    assert found == {("", ""), ("", "a"), ("a", "a"), ("a", "abcd"), ("abcd", "abcd")}


def test_a_claim_of_another_run_is_refused_before_it_waits(connection: AgentConnection) -> None:
    mine, other = start(connection, "a", "b")
    claim = claim_run(connection, "a", worker="w", lease=timedelta(seconds=30))
    batch = CheckpointBatch(connection, limit=9, delay=DELAY)
    about: dict[str, Any] = dict(session="s", action="a", next_action="b", context={})
    with pytest.raises(InvalidStateError, match="a claim of a does not cover b"):
        batch.add(other, claim=claim, **about)
    with pytest.raises(InvalidStateError, match="follows a RunState, not None"):
        batch.add(None, **about)  # type: ignore[arg-type]
    assert len(batch) == 0
    assert [
        getattr(outcome, "run_id", outcome) for outcome in batch.add(mine, claim=claim, **about)
    ] == ["a"]


def test_no_more_than_the_limit_wait_while_the_file_is_locked(
    connection: AgentConnection, database: Path
) -> None:
    states = start(connection, *"abcdefgh")
    about: dict[str, Any] = dict(session="s", action="a", next_action="b", context={})
    batch = CheckpointBatch(connection, limit=3, delay=DELAY)
    connection.execute("PRAGMA busy_timeout = 0").fetchall()
    with closing(connect(database)) as other:
        other.execute("BEGIN IMMEDIATE")
        for state in states:
            with pytest.raises(StorageError, match="is locked"):
                batch.add(state, **about)
        assert len(batch) == 3
        other.execute("ROLLBACK")
    assert [getattr(outcome, "run_id", outcome) for outcome in batch.flush()] == ["a", "b", "c"]
