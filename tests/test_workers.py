"""Several workers on one file: each run ends once, each key runs once, whoever dies or sleeps."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_parts import new_database, rows

from lesson_lib.agent import Action, Agent, Context
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import (
    InvalidStateError,
    LeaseLostError,
    LessonError,
    RunCompletedError,
    StorageError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.labs.several_workers.overlap import most_at_once
from lesson_lib.labs.several_workers.worker_process import command
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.processes import Child, ChildEnd, together
from lesson_lib.riders.claims import Claim, Claimed, claim_run, create_claims, read_claims
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    effects,
    load_state,
    read_events,
    unfinished_runs,
)
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.store import Rider, Saving
from lesson_lib.sweep import Target, kill_and_resume, run_undisturbed
from lesson_lib.sweep.hooks import Point, statements
from lesson_lib.tickets import Tools, new_run, read_runbooks, read_tickets, ticket_agent
from lesson_lib.workers import heartbeat, retry_locked, work

LEASE = timedelta(seconds=30)
SHORT = timedelta(seconds=0.2)
MOMENT = timedelta(microseconds=1)  # over before anybody can look
TICKETS = {ticket.ticket_id: ticket for ticket in read_tickets()}
TOOLS = ("lookup_runbook", "draft_reply")


@pytest.fixture
def connection(database: Path) -> Iterator[AgentConnection]:
    with closing(connect(database, timeout=30)) as opened:
        create_claims(opened)
        yield opened


@pytest.fixture
def ledger(tools: Tools) -> Ledger:
    return tools.ledger


def start(connection: AgentConnection, *numbers: int) -> list[str]:
    """Start a run of each ticket for each number; return the ids of the runs."""
    store = SQLiteStore(connection, "session-1")
    return [
        store.start_run(new_run(replace(ticket, ticket_id=f"{name}-{number}"))).run_id
        for name, ticket in TICKETS.items()
        for number in numbers
    ]


def start_t104(connection: AgentConnection) -> str:
    return ticket_agent.start(SQLiteStore(connection, "session-1"), "run-T104").run_id


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JSONObject]:
    """Return the last context of a run of each ticket that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    tools = Tools(read_runbooks(), Ledger(folder / "ledger"))
    with closing(connect(new_database(folder))) as opened:
        store = SQLiteStore(opened, "s")
        states = {name: ticket_agent.start(store, f"run-{name}") for name in TICKETS}
        return {
            name: dict(ticket_agent.run_to_end(store, state, tools).context)
            for name, state in states.items()
        }


def check_all_ended(
    connection: AgentConnection, run_ids: list[str], undisturbed: dict[str, JSONObject]
) -> None:
    """Hold each run against one that nobody disturbed. `load_state` refuses a gap."""
    assert unfinished_runs(connection) == []
    for run_id in run_ids:
        state = load_state(connection, run_id)
        assert (state.status, state.version) == ("completed", 4)
        assert dict(state.context) == undisturbed[state.ticket_id.partition("-")[0]]
        executed = [e.action for e in read_events(connection, run_id) if "executed" in e.event_type]
        assert executed == list(TOOLS)


def keys(run_ids: list[str]) -> Counter[str]:
    return Counter(f"{run_id}:{tool}" for run_id in run_ids for tool in TOOLS)


# Retries.


def locked_for(times: int) -> Callable[[], str]:
    """Return a transaction that finds the file locked this many times."""
    left = [times]

    def transaction() -> str:
        left[0] -= 1
        if left[0] < 0:
            return "done"
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        raise StorageError("agent.db is locked by another process") from busy

    return transaction


def test_a_locked_file_is_tried_again_after_growing_random_pauses() -> None:
    slept: list[float] = []
    for number in range(200):
        retry_locked(locked_for(4), rng=Random(number), sleep=slept.append)
    for attempt in range(4):
        pauses = slept[attempt::4]
        longest = 0.05 * 2**attempt
        assert 0 <= min(pauses) < longest / 10
        assert longest * 0.9 < max(pauses) <= longest
        assert len(set(pauses)) > 190


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_file_that_stays_locked_is_given_up(attempts: int) -> None:
    slept: list[float] = []
    retry = partial(retry_locked, rng=Random(1), attempts=attempts, sleep=slept.append)
    assert retry(locked_for(attempts - 1)) == "done"
    slept.clear()
    with pytest.raises(StorageError, match="is locked"):
        retry(locked_for(attempts))
    assert len(slept) == attempts - 1


def test_nothing_but_a_locked_file_is_tried_again() -> None:
    calls: list[str] = []

    def full() -> None:
        calls.append("called")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise StorageError("the disk is full") from error

    with pytest.raises(StorageError, match="the disk is full"):
        retry_locked(full, rng=Random(1), sleep=lambda seconds: calls.append("slept"))
    assert calls == ["called"]


# The heartbeat.


def claimed(connection: AgentConnection, run_id: str, lease: timedelta = LEASE) -> Claim:
    claim = claim_run(connection, run_id, worker="worker-1", lease=lease)
    assert claim is not None
    return claim


@contextmanager
def within(seconds: float) -> Iterator[Callable[[bool], bool]]:
    """Give a function for the condition of a `while not` loop that fails when it never ends."""
    end = time.monotonic() + seconds

    def happened(condition: bool) -> bool:
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
        return condition

    yield happened


def test_a_heartbeat_renews_until_its_block_ends(connection: AgentConnection) -> None:
    claim = claimed(connection, start(connection, 1)[0], SHORT)
    with heartbeat(connection, claim), within(30) as happened:
        ends = {claim.expires_at}
        while not happened(len(ends) == 4):
            ends.add(read_claims(connection)[0].expires_at)
    last = read_claims(connection)
    time.sleep(SHORT.total_seconds())
    assert read_claims(connection) == last


def test_a_heartbeat_comes_at_each_third_of_the_lease(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            waits.append(timeout)
            return super().wait(0.01)

    claim = claimed(connection, start(connection, 1)[0])
    monkeypatch.setattr(threading, "Event", Watched)
    with heartbeat(connection, claim), within(30) as happened:
        while not happened(len(waits) > 2):
            pass
    assert set(waits) == {LEASE.total_seconds() / 3}


def test_a_heartbeat_ends_when_the_claim_is_lost(connection: AgentConnection) -> None:
    run_id = start(connection, 1)[0]
    claim = claimed(connection, run_id, SHORT)
    threads = threading.active_count()
    with heartbeat(connection, claim), within(30) as happened:
        connection.execute("DELETE FROM run_claims")
        taken = claim_run(connection, run_id, worker="2", lease=LEASE)
        while not happened(threading.active_count() == threads):
            pass
        assert read_claims(connection) == [taken]


def test_a_heartbeat_survives_a_locked_file(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(connection, start(connection, 1)[0], SHORT)
    tried: list[Any] = []

    def connect_once_locked(path: Path, **options: Any) -> AgentConnection:
        tried.append(path)
        if len(tried) == 1:
            raise StorageError("is locked")
        return connect(path, **options)

    monkeypatch.setattr("lesson_lib.workers.connect", connect_once_locked)
    with heartbeat(connection, claim), within(30) as happened:
        while not happened(read_claims(connection) != [claim]):
            pass
    assert len(tried) > 1


def test_a_heartbeat_goes_by_the_clock_of_the_holder(connection: AgentConnection) -> None:
    ahead = timedelta(days=400)
    connection.clock = lambda: datetime.now(UTC) + ahead
    claim = claimed(connection, start(connection, 1)[0], SHORT)
    with heartbeat(connection, claim), within(30) as happened:
        while not happened(read_claims(connection) != [claim]):
            pass
    assert read_claims(connection)[0].expires_at > claim.expires_at


# One worker.


def test_a_worker_takes_up_a_run_again_that_it_lost_to_a_locked_file(
    connection: AgentConnection, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ids = start(connection, 1)
    failures = [1, 2]

    def locked_twice(point: str) -> None:
        if point == "finish:begin" and failures:
            failures.pop()
            raise StorageError("is locked") from busy()

    work(connection, "worker-1", ticket_agent, tools, lease=LEASE, passing=locked_twice)
    assert failures == []
    assert f"completed {run_ids[0]}" in capsys.readouterr().out
    assert unfinished_runs(connection) == []


def busy() -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


def test_a_worker_ends_all_runs_and_gives_each_back(
    connection: AgentConnection,
    tools: Tools,
    undisturbed: dict[str, JSONObject],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_ids = start(connection, 1)
    work(connection, "worker-1", ticket_agent, tools, lease=LEASE)
    assert capsys.readouterr().out.splitlines() == [f"completed {run_id}" for run_id in run_ids]
    assert read_claims(connection) == []
    assert Counter(tools.ledger.lines()) == keys(run_ids)
    check_all_ended(connection, run_ids, undisturbed)


def test_a_worker_leaves_a_run_in_living_hands_alone(
    connection: AgentConnection, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = start(connection, 1)
    claim = claim_run(connection, first, worker="worker-2", lease=LEASE)
    before = rows(connection.path)["agent_events"]
    work(connection, "worker-1", ticket_agent, tools, lease=LEASE, patience=0.1)
    assert capsys.readouterr().out.splitlines() == [f"completed {run_id}" for run_id in others]
    assert unfinished_runs(connection) == [first]
    assert read_claims(connection) == [claim]
    after = rows(connection.path)["agent_events"]
    assert [row for row in after if row[0] == first] == [row for row in before if row[0] == first]


def test_a_worker_waits_for_a_run_whose_holder_died(
    connection: AgentConnection, tools: Tools, undisturbed: dict[str, JSONObject]
) -> None:
    run_ids = start(connection, 1)
    claim_run(connection, run_ids[-1], worker="worker-2", lease=timedelta(seconds=0.3))
    work(connection, "worker-1", ticket_agent, tools, lease=LEASE)
    check_all_ended(connection, run_ids, undisturbed)


def test_a_run_that_fails_keeps_a_worker_from_no_other(
    connection: AgentConnection,
    tools: Tools,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain_resume, resumed = Agent.resume, list[str]()

    def resume_once(agent: Agent, store: SQLiteStore, run_id: str) -> RunState:
        if run_id in resumed:
            pytest.fail(f"{run_id} was tried again")
        resumed.append(run_id)
        return plain_resume(agent, store, run_id)

    monkeypatch.setattr(Agent, "resume", resume_once)
    torn, unknown, no_book, *good = start(connection, 1)
    connection.execute("UPDATE agent_runs SET version = 9 WHERE run_id = ?", (torn,))
    connection.execute("UPDATE agent_runs SET next_action = 'x' WHERE run_id = ?", (unknown,))
    code = next(iter(code for code in tools.runbooks if code.startswith("sorting-urgent")))
    without = {name: book for name, book in tools.runbooks.items() if name != code}
    work(connection, "worker-1", ticket_agent, replace(tools, runbooks=without), lease=LEASE)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        *(f"completed {run_id}" for run_id in good),
        f"left {torn}: CorruptStateError",
        f"left {unknown}: UnknownActionError",
        f"left {no_book}: UnknownRunbookError",
    ]
    assert read_claims(connection) == []
    assert unfinished_runs(connection) == [torn, unknown, no_book]


def test_a_tool_that_fails_ends_no_worker(
    connection: AgentConnection, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    class Unsteady(Tools):
        def draft_reply(self, key: str, priority: str, step: str) -> str:
            if "T103" in key:
                calls.append(key)
                if len(calls) > 1:
                    pytest.fail("it was called again")
                raise ConnectionError("no answer")
            return super().draft_reply(key, priority, step)

    run_ids = start(connection, 1)
    unsteady = Unsteady(tools.runbooks, tools.ledger)
    work(connection, "worker-1", ticket_agent, unsteady, lease=LEASE)
    assert "left run-T103-1: ConnectionError" in capsys.readouterr().out.splitlines()
    assert unfinished_runs(connection) == ["run-T103-1"]
    work(connection, "worker-2", ticket_agent, tools, lease=LEASE)
    assert Counter(tools.ledger.lines()) == keys(run_ids)


def test_a_worker_that_is_late_leaves_the_run_and_takes_the_next(
    connection: AgentConnection, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start(connection, 1)[0]
    taken: list[Claim | None] = []

    def taken_over(point: str) -> None:
        if point == "draft_reply:begin" and not taken:
            connection.execute("DELETE FROM run_claims")  # as if the lease had ended
            taken.append(claim_run(connection, first, worker="worker-2", lease=SHORT))

    work(connection, "worker-1", ticket_agent, tools, lease=LEASE, passing=taken_over)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"left {first}: LeaseLostError"
    assert f"completed {first}" in said[2:]  # after the lease of worker-2
    assert unfinished_runs(connection) == []


def test_a_run_that_waits_is_left_until_the_next_worker_asks(
    connection: AgentConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str] = []

    def wait_for_an_answer(context: Context, call_tool: object) -> JSONObject | None:
        return {"answer": answers[0]} if answers else None

    ask = Action(wait_for_an_answer, "answer", "answered", None)
    schema = ContextSchema({"answer": str}, (), {}, ())
    agent = Agent({"ask": ask}, lambda run_id: RunState.begin(run_id, "T", "ask", {}), schema)
    for run_id in ("a", "b"):
        agent.start(SQLiteStore(connection, "session-1"), run_id)
    for worker in ("worker-1", "worker-2"):
        work(connection, worker, agent, None, lease=LEASE)
        answers.append("yes")
    said = capsys.readouterr().out.splitlines()
    assert said == ["left a: waits", "left b: waits", "completed a", "completed b"]
    assert read_claims(connection) == []


def test_the_riders_of_a_worker_ride_beside_the_claim(
    connection: AgentConnection, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    class NotTheThird(Rider):
        def check(self, connection: Any, saving: Saving) -> None:
            if saving.after.version == 3:
                raise InvalidStateError("not the third")

    run_ids = start(connection, 1)
    work(connection, "w", ticket_agent, tools, lease=LEASE, riders=(NotTheThird(),))
    said = capsys.readouterr().out.splitlines()
    assert said == [f"left {run_id}: InvalidStateError" for run_id in run_ids]
    assert {load_state(connection, run_id).version for run_id in run_ids} == {2}


# Another worker takes over at any moment of the first.


@dataclass(frozen=True)
class Takeover:
    """What became of a run whose first worker lost it at one of its moments."""

    refused: LessonError | None
    happened: bool


def run_with_takeover(
    database: Path, tools: Tools, at: int, in_tool: Callable[[], bool]
) -> Takeover:
    """Work on T104, and let another worker end the run at the `at`-th moment of the first.

    A moment lies before each statement outside of a transaction and at each crash point.
    """
    took, second, passed = threading.Event(), list[threading.Thread](), count(1)
    first_thread = threading.get_ident()

    def take_over() -> None:
        with closing(connect(database)) as other:
            try:
                claim = claim_run(other, "run-T104", worker="worker-2", lease=LEASE)
            except RunCompletedError:
                claim = None
            took.set()
            if claim is not None:
                store = SQLiteStore(other, "worker-2", (Claimed(claim),))
                ticket_agent.run_to_end(store, ticket_agent.resume(store, "run-T104"), tools)

    def moment(point: str) -> None:
        elsewhere = threading.get_ident() != first_thread or first.in_transaction
        if elsewhere or point.startswith("after") or next(passed) != at:
            return
        second.append(threading.Thread(target=take_over))
        second[0].start()
        took.wait()
        if not in_tool():  # there it holds the lock that the second waits for
            second[0].join()

    refused = None
    with closing(connect(database)) as first:
        store = SQLiteStore(first, "worker-1", (Claimed(claimed(first, "run-T104", MOMENT)),))
        with statements(AgentCursor, moment):
            try:
                state = ticket_agent.resume(store, "run-T104")
                ticket_agent.run_to_end(store, state, tools, passing=moment)
            except LessonError as error:
                refused = error
    for thread in second:
        thread.join()
    return Takeover(refused, bool(second))


def test_a_takeover_at_any_moment_doubles_nothing(
    tmp_path: Path, undisturbed: dict[str, JSONObject], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tool, plain_lock = list[int](), effects._only_caller

    @contextmanager
    def noted_lock(*arguments: Any) -> Iterator[None]:
        with plain_lock(*arguments):
            in_tool.append(threading.get_ident())
            yield
            in_tool.remove(threading.get_ident())

    monkeypatch.setattr(effects, "_only_caller", noted_lock)
    takeovers: list[Takeover] = []
    while not takeovers or takeovers[-1].happened:
        folder = tmp_path / str(len(takeovers))
        folder.mkdir()
        database, tools = new_database(folder), Tools(read_runbooks(), Ledger(folder / "ledger"))
        with closing(connect(database)) as connection:
            create_claims(connection)
            start_t104(connection)
            try:
                takeovers.append(
                    run_with_takeover(
                        database,
                        tools,
                        at=len(takeovers) + 1,
                        in_tool=lambda: threading.get_ident() in in_tool,
                    )
                )
                check_all_ended(connection, ["run-T104"], undisturbed)
                assert Counter(tools.ledger.lines()) == keys(["run-T104"])
                events = read_events(connection, "run-T104")
                savers = [e.session for e in events if e.event_type == "checkpoint_saved"]
                assert savers == sorted(savers), "worker-1 saved after worker-2"
            except BaseException as error:
                error.add_note(f"worker-2 took over at moment {len(takeovers)} of worker-1")
                raise
    # After the last checkpoint nothing is left to refuse; before the first, resuming is.
    refused = [type(takeover.refused) for takeover in takeovers]
    middle = [LeaseLostError] * (len(takeovers) - 3)
    assert refused == [RunCompletedError, *middle, *[type(None)] * 2]
    assert len(takeovers) > 20


# A worker that is killed at any statement or crash point, and the one that comes after it.


def work_on_t104(folder: Path, session: str, point: Point) -> None:
    """Be a worker on a run that is there; each session lives an hour after the one before."""
    now = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=int(session.removeprefix("session-")))
    with closing(connect(folder / "agent.db", clock=lambda: now)) as connection:
        if session == "session-1":
            new_database(folder)
            create_claims(connection)
            start_t104(connection)
        tools = Tools(read_runbooks(), Ledger(folder / "ledger"))
        with statements(AgentCursor, point):
            work(connection, session, ticket_agent, tools, lease=LEASE, passing=point)


def found_end(folder: Path) -> object:
    with closing(connect(folder / "agent.db")) as connection:
        effects = [row[0] for row in rows(folder / "agent.db")["tool_effects"]]
        return load_state(connection, "run-T104"), effects


WORKER = Target(
    f"{__name__}:work_on_t104",
    look=lambda folder: {},
    end=found_end,
    calls=lambda folder: Ledger(folder / "ledger").lines(),
)


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.prove)])
def test_what_a_worker_leaves_that_died_anywhere_is_finished_by_the_next(
    tmp_path: Path, every: int
) -> None:
    whole = run_undisturbed(WORKER, tmp_path / "whole")
    outcomes = [kill_and_resume(whole, point) for point in whole.points[::every]]
    assert [outcome.point for outcome in outcomes if not outcome.same_end] == []
    # A tool runs again after a death between its work and the commit of its result.
    points = whole.points
    begins = [points.index(f"{tool}:tool_ran") for tool in TOOLS]
    windows = [
        points[begin : points.index(next(p for p in points[begin:] if "before COMMIT" in p)) + 1]
        for begin in begins
    ]
    killed = {outcome.point for outcome in outcomes}
    repeating = {outcome.point for outcome in outcomes if outcome.repeated}
    assert repeating == killed & {point for window in windows for point in window}


# Processes that race.

RACER = """
import sys, time
from datetime import timedelta
from pathlib import Path
from lesson_lib.errors import LessonError
from lesson_lib.ledger import Ledger
from lesson_lib.model import Step
from lesson_lib.riders.claims import Claimed, claim_run
from lesson_lib.sqlite import SQLiteStore, connect, load_state
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

database, ledger, name = sys.argv[1:]
lease, moment = timedelta(seconds=30), timedelta(microseconds=1)
connection = connect(database, timeout=30)

class SlowTools(Tools):
    def lookup_runbook(self, key, code):
        time.sleep(0.001)
        return super().lookup_runbook(key, code)

tools = SlowTools(read_runbooks(), Ledger(Path(ledger)))

def save(state, claim):
    store = SQLiteStore(connection, name, (Claimed(claim),))
    store.save_checkpoint(state, Step("a", {"by": name}, "lookup_runbook"))

def step(run_id):
    state = load_state(connection, run_id)
    yield
    ticket_agent.run_next_action(SQLiteStore(connection, name), state, tools)
    yield "saved"

def claim(run_id):
    yield
    yield str(claim_run(connection, run_id, worker=name, lease=lease) is not None)

def late(run_id):
    state = load_state(connection, run_id)
    held = claim_run(connection, run_id, worker=name, lease=moment)
    yield
    save(state, held)
    yield "saved"

def rightful(run_id):
    yield
    held = claim_run(connection, run_id, worker=name, lease=lease)
    save(load_state(connection, run_id), held)
    yield "saved"

print("ready", flush=True)
while line := sys.stdin.readline():
    what, run_id = line.split()
    act = globals()[what](run_id)
    next(act)
    print("at the line", flush=True)
    sys.stdin.readline()
    try:
        print(next(act), flush=True)
    except LessonError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def racers(connection: AgentConnection, ledger: Ledger) -> Iterator[tuple[Child, Child]]:
    """Start two processes that are warm before they race."""
    with ExitStack() as stack:
        both = [
            stack.enter_context(Child("-c", RACER, connection.path, ledger.path, name))
            for name in ("worker-1", "worker-2")
        ]
        assert [racer.read() for racer in both] == ["ready", "ready"]
        yield both[0], both[1]


def race(racers: tuple[Child, Child], run_id: str, *acts: str) -> list[str]:
    for racer, act in zip(racers, acts, strict=True):
        racer.tell(f"{act} {run_id}")
        assert racer.read() == "at the line"
    order = racers if int(run_id[-1]) % 2 else racers[::-1]
    for racer in order:
        racer.tell()
    return [racer.read() for racer in racers]


RACES = pytest.mark.parametrize("races", [15, pytest.param(100, marks=pytest.mark.prove)])


@RACES
def test_a_race_repeated_many_times_never_doubles_an_effect(
    connection: AgentConnection, racers: tuple[Child, Child], tools: Tools, races: int
) -> None:
    run_ids = start(connection, *range(17))[:races]
    for run_id in run_ids:
        state = load_state(connection, run_id)
        ticket_agent.run_next_action(SQLiteStore(connection, "session-1"), state, tools)
        answers = race(racers, run_id, "step", "step")
        assert sorted(answers) == ["StaleVersionError", "saved"], run_id
        assert load_state(connection, run_id).version == 2
        assert tools.ledger.count(f"{run_id}:lookup_runbook") == 1, run_id
    assert len(tools.ledger.lines()) == len(run_ids) == races


@RACES
def test_one_of_two_who_claim_at_once_gets_the_run(
    connection: AgentConnection, racers: tuple[Child, Child], races: int
) -> None:
    for run_id in start(connection, *range(17))[:races]:
        assert sorted(race(racers, run_id, "claim", "claim")) == ["False", "True"], run_id


@RACES
def test_whoever_took_over_is_never_stopped_by_one_who_is_late(
    connection: AgentConnection, racers: tuple[Child, Child], races: int
) -> None:
    late = Counter[str]()
    for run_id in start(connection, *range(17))[:races]:
        answer, rightful = race(racers, run_id, "late", "rightful")
        assert rightful == "saved", run_id
        late[answer] += 1
        assert load_state(connection, run_id).context["by"] == "worker-2"
        assert load_state(connection, run_id).version == 1 + (answer == "saved")
    assert set(late) <= {"saved", "LeaseLostError"}
    assert races < 100 or late["LeaseLostError"]


# Worker processes.


def test_a_paused_worker_finds_its_run_in_other_hands(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject]
) -> None:
    run_id = start_t104(connection)
    files = connection.path, ledger.path
    pause = command(*files, "worker-1", lease=0.2, pause_at="lookup_runbook:before_checkpoint")
    with Child(*pause) as paused:
        assert paused.read() == "ready"
        paused.tell()
        assert paused.read() == "paused"
        end = together([command(*files, "worker-2")])
        assert end == [ChildEnd("finished", f"completed {run_id}\n")]
        paused.tell()
        assert paused.end() == ChildEnd("finished", f"left {run_id}: LeaseLostError\n")
    assert Counter(ledger.lines()) == keys([run_id])
    check_all_ended(connection, [run_id], undisturbed)
    savers = [e.session for e in read_events(connection, run_id) if "saved" in e.event_type]
    assert savers == ["worker-1", "worker-2", "worker-2", "worker-2"]


def test_a_worker_that_waits_for_a_paused_ones_tool_gets_its_result(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject]
) -> None:
    run_id = start_t104(connection)
    files = connection.path, ledger.path
    pause = command(*files, "worker-1", lease=0.2, pause_at="lookup_runbook:tool_ran")
    with Child(*pause) as paused, Child(*command(*files, "worker-2")) as other:
        for child in (paused, other):
            assert child.read() == "ready"
        paused.tell()
        assert paused.read() == "paused"
        other.tell()
        with within(30) as happened:
            while not happened("worker-2" in [e.session for e in read_events(connection, run_id)]):
                pass
        paused.tell()
        assert other.end() == ChildEnd("finished", f"completed {run_id}\n")
        assert paused.end().printed == f"left {run_id}: LeaseLostError\n"
    assert Counter(ledger.lines()) == keys([run_id])
    check_all_ended(connection, [run_id], undisturbed)


def test_four_workers_call_tools_together_and_write_one_by_one(
    connection: AgentConnection, ledger: Ledger, tmp_path: Path
) -> None:
    run_ids, spans = start(connection, 1), tmp_path / "spans"
    files = connection.path, ledger.path
    names = [f"worker-{number}" for number in range(1, 5)]
    together([command(*files, name, takes=0.1, spans=spans) for name in names])
    assert Counter(ledger.lines()) == keys(run_ids)
    assert 1 < most_at_once(spans, "tool") <= 4
    assert most_at_once(spans, "write") == 1
    told = Counter(Ledger(spans).lines())
    assert told["write begin"] == told["write end"] >= 8 * len(run_ids)


# A run passes twelve points at which a worker may be told to die.
@pytest.mark.parametrize(
    "points", [(4, 7, 12), pytest.param(range(1, 13), marks=pytest.mark.prove)], ids=["few", "all"]
)
def test_workers_that_die_at_their_own_crash_points_leave_no_run_behind(
    connection: AgentConnection,
    ledger: Ledger,
    undisturbed: dict[str, JSONObject],
    points: Iterable[int],
) -> None:
    run_ids, files = start(connection, 1, 2), (connection.path, ledger.path)
    dying = [command(*files, f"dies-{n}", lease=0.2, die_at=n) for n in points]
    assert {end.ended for end in together(dying)} == {"died without cleanup"}
    living = [command(*files, f"lives-{n}", lease=0.2) for n in (1, 2)]
    assert {end.ended for end in together(living)} == {"finished"}
    # None of these deaths lies between a tool's work and its saved result.
    assert Counter(ledger.lines()) == keys(run_ids)
    check_all_ended(connection, run_ids, undisturbed)


@pytest.mark.prove
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_are_killed_at_any_moment_leave_no_run_behind(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject], seed: int
) -> None:
    rng, kills = Random(seed), 0
    run_ids, files = start(connection, 1, 2, 3), (connection.path, ledger.path)
    with ExitStack() as stack:
        crew: list[Child] = []
        for number in range(12):
            flags = command(*files, f"worker-{number}", lease=0.2, takes=0.02)
            crew.append(stack.enter_context(Child(*flags)))
            crew[-1].tell()
            if number >= 2:
                time.sleep(rng.uniform(0.02, 0.3))
                victim = crew.pop(rng.randrange(len(crew)))
                victim.kill()
                kills += victim.end().ended == "died without cleanup"
        for child in crew:
            assert child.end().ended == "finished"
    check_all_ended(connection, run_ids, undisturbed)
    # A process calls one tool at a time, so each death opens at most one window.
    calls = Counter(ledger.lines())
    assert calls >= keys(run_ids)
    assert set(calls) == set(keys(run_ids))
    assert calls.total() - len(calls) <= kills
