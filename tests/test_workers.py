"""Several workers on one file: each run ends once, each key runs once, whoever dies or sleeps."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
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

from lesson_lib import agent
from lesson_lib.children import Child, together
from lesson_lib.crash import ChildEnd
from lesson_lib.errors import (
    ChildError,
    LeaseLostError,
    LessonError,
    RunCompletedError,
    StorageError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    Claim,
    claim_run,
    connect,
    create_claims,
    effects,
    load_state,
    read_claims,
    read_events,
    save_claimed,
    unfinished_runs,
)
from lesson_lib.tickets import Tools, read_runbooks, read_tickets
from lesson_lib.workers.spans import SlowTools, most_at_once, watch_writes
from lesson_lib.workers.worker import command, heartbeat, retry_locked, work

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
    return [
        agent.start(connection, replace(ticket, ticket_id=f"{name}-{number}"), "session-1").run_id
        for name, ticket in TICKETS.items()
        for number in numbers
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JSONObject]:
    """Return the last context of a run of each ticket that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    tools = Tools(read_runbooks(), Ledger(folder / "ledger"))
    with closing(connect(new_database(folder))) as opened:
        states = {name: agent.start(opened, ticket, "s") for name, ticket in TICKETS.items()}
        return {
            name: dict(agent.run_to_end(opened, state, "s", tools).context)
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


def test_no_attempt_is_no_call() -> None:
    with pytest.raises(ValueError, match="attempts must be 1 or more"):
        retry_locked(locked_for(0), rng=Random(1), attempts=0)


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
    with heartbeat(connection, claim, threading.Lock()), within(30) as happened:
        ends = {claim.expires_at}
        while not happened(len(ends) == 4):
            ends.add(read_claims(connection)[0].expires_at)
    last = read_claims(connection)
    time.sleep(SHORT.total_seconds())
    assert read_claims(connection) == last


def test_a_heartbeat_stops_with_the_process(connection: AgentConnection) -> None:
    run_id = start(connection, 1)[0]
    claim, awake = claimed(connection, run_id, SHORT), threading.Lock()
    with heartbeat(connection, claim, awake):
        with awake, within(30) as happened:
            while not happened(claim_run(connection, run_id, worker="2", lease=LEASE) is not None):
                pass
        time.sleep(SHORT.total_seconds())  # awake again, it finds its claim lost
    assert [(held.worker, held.lease) for held in read_claims(connection)] == [("2", LEASE)]


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

    monkeypatch.setattr("lesson_lib.workers.worker.connect", connect_once_locked)
    with heartbeat(connection, claim, threading.Lock()), within(30) as happened:
        while not happened(read_claims(connection) != [claim]):
            pass
    assert len(tried) > 1


def test_a_heartbeat_goes_by_the_clock_of_the_holder(connection: AgentConnection) -> None:
    ahead = timedelta(days=400)
    connection.clock = lambda: datetime.now(UTC) + ahead
    claim = claimed(connection, start(connection, 1)[0], SHORT)
    with heartbeat(connection, claim, threading.Lock()), within(30) as happened:
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

    work(connection, "worker-1", tools, lease=LEASE, passing=locked_twice)
    assert failures == []
    assert f"completed {run_ids[0]}" in capsys.readouterr().out
    assert unfinished_runs(connection) == []


def busy() -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


def test_a_worker_whose_parent_dies_before_it_says_go_does_nothing(
    connection: AgentConnection, tmp_path: Path
) -> None:
    run_ids = start(connection, 1)
    with Child(*command(connection.path, tmp_path / "ledger", "w", lease=LEASE)) as worker:
        assert worker.read() == "ready"
        assert worker.end().printed == ""
    assert unfinished_runs(connection) == run_ids


def test_a_worker_ends_all_runs_and_gives_each_back(
    connection: AgentConnection,
    tools: Tools,
    undisturbed: dict[str, JSONObject],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_ids = start(connection, 1)
    work(connection, "worker-1", tools, lease=LEASE)
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
    work(connection, "worker-1", tools, lease=LEASE, patience=0.1)
    assert capsys.readouterr().out.splitlines() == [f"completed {run_id}" for run_id in others]
    assert unfinished_runs(connection) == [first]
    assert read_claims(connection) == [claim]
    after = rows(connection.path)["agent_events"]
    assert [row for row in after if row[0] == first] == [row for row in before if row[0] == first]


def test_a_worker_waits_for_a_run_whose_holder_died(
    connection: AgentConnection, tools: Tools, undisturbed: dict[str, JSONObject]
) -> None:
    run_ids = start(connection, 1)
    claim_run(connection, run_ids[-1], worker="worker-2", lease=timedelta(seconds=1))
    work(connection, "worker-1", tools, lease=LEASE)
    check_all_ended(connection, run_ids, undisturbed)


def test_a_run_that_fails_keeps_a_worker_from_no_other(
    connection: AgentConnection,
    tools: Tools,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain_resume, resumed = agent.resume, list[str]()

    def resume_once(connection: AgentConnection, run_id: str, session: str) -> RunState:
        if run_id in resumed:
            pytest.fail(f"{run_id} was tried again")
        resumed.append(run_id)
        return plain_resume(connection, run_id, session)

    monkeypatch.setattr(agent, "resume", resume_once)
    torn, unknown, no_book, *good = start(connection, 1)
    connection.execute("UPDATE agent_runs SET version = 9 WHERE run_id = ?", (torn,))
    connection.execute("UPDATE agent_runs SET next_action = 'x' WHERE run_id = ?", (unknown,))
    code = next(iter(code for code in tools.runbooks if code.startswith("sorting-urgent")))
    without = {name: book for name, book in tools.runbooks.items() if name != code}
    work(connection, "worker-1", replace(tools, runbooks=without), lease=LEASE)
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
    work(connection, "worker-1", Unsteady(tools.runbooks, tools.ledger), lease=LEASE)
    assert "left run-T103-1: ConnectionError" in capsys.readouterr().out.splitlines()
    assert unfinished_runs(connection) == ["run-T103-1"]
    work(connection, "worker-2", tools, lease=LEASE)
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

    work(connection, "worker-1", tools, lease=LEASE, passing=taken_over)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"left {first}: LeaseLostError"
    assert f"completed {first}" in said[2:]  # after the lease of worker-2
    assert unfinished_runs(connection) == []


# Another worker takes over at any moment of the first.


@dataclass(frozen=True)
class Story:
    """What became of a run whose first worker lost it at one of its moments."""

    refused: LessonError | None
    taken_over: bool


def run_with_takeover(database: Path, tools: Tools, at: int, in_tool: Callable[[], bool]) -> Story:
    """Work on T104, and let another worker end the run at the `at`-th moment of the first.

    A moment lies before each statement outside of a transaction and at each crash point.
    """
    took, second, passed = threading.Event(), list[threading.Thread](), count(1)

    def take_over() -> None:
        with closing(connect(database)) as other:
            try:
                claim = claim_run(other, "run-T104", worker="worker-2", lease=LEASE)
            except RunCompletedError:
                claim = None
            took.set()
            if claim is not None:
                state = agent.resume(other, "run-T104", "worker-2")
                save = partial(save_claimed, claim=claim)
                agent.run_to_end(other, state, "worker-2", tools, save=save)

    def moment(_: str) -> None:
        if not first.in_transaction and next(passed) == at:
            second.append(threading.Thread(target=take_over))
            second[0].start()
            took.wait()
            if not in_tool():  # there it holds the lock that the second waits for
                second[0].join()

    refused = None
    with closing(connect(database)) as first:
        claim = claimed(first, "run-T104", MOMENT)
        save = partial(save_claimed, claim=claim)
        first.set_trace_callback(moment)
        try:
            state = agent.resume(first, "run-T104", "worker-1")
            agent.run_to_end(first, state, "worker-1", tools, passing=moment, save=save)
        except LessonError as error:
            refused = error
        first.set_trace_callback(None)
    for thread in second:
        thread.join()
    return Story(refused, bool(second))


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
    stories: list[Story] = []
    while not stories or stories[-1].taken_over:
        folder = tmp_path / str(len(stories))
        folder.mkdir()
        database, tools = new_database(folder), Tools(read_runbooks(), Ledger(folder / "ledger"))
        with closing(connect(database)) as connection:
            create_claims(connection)
            agent.start(connection, TICKETS["T104"], "session-1")
            try:
                stories.append(
                    run_with_takeover(
                        database,
                        tools,
                        at=len(stories) + 1,
                        in_tool=lambda: threading.get_ident() in in_tool,
                    )
                )
                check_all_ended(connection, ["run-T104"], undisturbed)
                assert Counter(tools.ledger.lines()) == keys(["run-T104"])
                events = read_events(connection, "run-T104")
                savers = [e.session for e in events if e.event_type == "checkpoint_saved"]
                assert savers == sorted(savers), "worker-1 saved after worker-2"
            except BaseException as error:
                error.add_note(f"worker-2 took over at moment {len(stories)} of worker-1")
                raise
    # After the last checkpoint nothing is left to refuse; before the first, resuming is.
    refused = [type(story.refused) for story in stories]
    assert refused == [RunCompletedError, *[LeaseLostError] * (len(stories) - 3), *[type(None)] * 2]
    assert len(stories) > 20
    print(f"{len(stories) - 1} moments")


# Processes that race.

RACER = """
import os, sys
from datetime import timedelta
from pathlib import Path
from lesson_lib import agent
from lesson_lib.errors import LessonError
from lesson_lib.ledger import Ledger
from lesson_lib.workers.spans import SlowTools
from lesson_lib.stores.sqlite import *
from lesson_lib.tickets import read_runbooks

database, ledger, name = sys.argv[1:]
lease, moment = timedelta(seconds=30), timedelta(microseconds=1)
connection = connect(database, timeout=30)
tools = SlowTools(read_runbooks(), Ledger(Path(ledger)), 0.001, Ledger(Path(os.devnull)))
checkpoint = dict(session=name, action="a", next_action="lookup_runbook", context={"by": name})

def step(run_id):
    state = load_state(connection, run_id)
    yield
    agent.run_next_action(connection, state, name, tools)
    yield "saved"

def claim(run_id):
    yield
    yield str(claim_run(connection, run_id, worker=name, lease=lease) is not None)

def late(run_id):
    state = load_state(connection, run_id)
    held = claim_run(connection, run_id, worker=name, lease=moment)
    yield
    save_claimed(connection, state, claim=held, **checkpoint)
    yield "saved"

def rightful(run_id):
    yield
    held = claim_run(connection, run_id, worker=name, lease=lease)
    state = load_state(connection, run_id)
    save_claimed(connection, state, claim=held, **checkpoint)
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


def test_a_race_repeated_a_hundred_times_never_doubles_an_effect(
    connection: AgentConnection, racers: tuple[Child, Child], tools: Tools
) -> None:
    run_ids = start(connection, *range(17))[:100]
    for run_id in run_ids:
        state = load_state(connection, run_id)
        agent.run_next_action(connection, state, "session-1", tools)
        answers = race(racers, run_id, "step", "step")
        assert sorted(answers) == ["StaleVersionError", "saved"], run_id
        assert load_state(connection, run_id).version == 2
        assert tools.ledger.count(f"{run_id}:lookup_runbook") == 1, run_id
    assert len(tools.ledger.lines()) == len(run_ids) == 100


def test_one_of_two_who_claim_at_once_gets_the_run(
    connection: AgentConnection, racers: tuple[Child, Child]
) -> None:
    for run_id in start(connection, *range(17))[:100]:
        assert sorted(race(racers, run_id, "claim", "claim")) == ["False", "True"], run_id


def test_whoever_took_over_is_never_stopped_by_one_who_is_late(
    connection: AgentConnection, racers: tuple[Child, Child]
) -> None:
    late = Counter[str]()
    for run_id in start(connection, *range(17))[:100]:
        answer, rightful = race(racers, run_id, "late", "rightful")
        assert rightful == "saved", run_id
        late[answer] += 1
        assert load_state(connection, run_id).context["by"] == "worker-2"
        assert load_state(connection, run_id).version == 1 + (answer == "saved")
    assert set(late) <= {"saved", "LeaseLostError"}
    assert late["LeaseLostError"]


# Worker processes.


def test_a_paused_worker_finds_its_run_in_other_hands(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject]
) -> None:
    run_id = agent.start(connection, TICKETS["T104"], "session-1").run_id
    files = connection.path, ledger.path
    pause = command(*files, "worker-1", lease=SHORT, pause_at="lookup_runbook:before_checkpoint")
    with Child(*pause) as paused:
        assert paused.read() == "ready"
        paused.tell()
        assert paused.read() == "paused"
        end = together([command(*files, "worker-2", lease=LEASE)])
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
    run_id = agent.start(connection, TICKETS["T104"], "session-1").run_id
    files = connection.path, ledger.path
    pause = command(*files, "worker-1", lease=SHORT, pause_at="lookup_runbook:tool_ran")
    with Child(*pause) as paused, Child(*command(*files, "worker-2", lease=LEASE)) as other:
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
    run_ids, spans = start(connection, 1, 2), Ledger(tmp_path / "spans")
    files = connection.path, ledger.path
    names = [f"worker-{number}" for number in range(1, 5)]
    together([command(*files, n, lease=LEASE, takes=0.1, spans=spans.path) for n in names])
    assert Counter(ledger.lines()) == keys(run_ids)
    assert 1 < most_at_once(spans, "tool") <= 4
    assert most_at_once(spans, "write") == 1
    assert spans.count("write begin") == spans.count("write end") >= 8 * len(run_ids)


def test_workers_that_die_at_their_own_crash_points_leave_no_run_behind(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject]
) -> None:
    run_ids, files = start(connection, 1, 2), (connection.path, ledger.path)
    # A run passes twelve points at which a worker may be told to die.
    dying = [command(*files, f"dies-{n}", lease=SHORT, die_at=n) for n in range(1, 13)]
    assert {end.ended for end in together(dying)} == {"died without cleanup"}
    living = [command(*files, f"lives-{n}", lease=SHORT) for n in (1, 2, 3)]
    assert {end.ended for end in together(living)} == {"finished"}
    # None of these deaths lies between a tool's work and its saved result.
    assert Counter(ledger.lines()) == keys(run_ids)
    check_all_ended(connection, run_ids, undisturbed)


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_are_killed_at_any_moment_leave_no_run_behind(
    connection: AgentConnection, ledger: Ledger, undisturbed: dict[str, JSONObject], seed: int
) -> None:
    rng, kills = Random(seed), 0
    run_ids, files = start(connection, 1, 2, 3), (connection.path, ledger.path)
    with ExitStack() as stack:
        crew: list[Child] = []
        for number in range(12):
            flags = command(*files, f"worker-{number}", lease=SHORT, takes=0.02)
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
    print(f"{kills} killed, {calls.total() - len(calls)} calls repeated")


# The parts.


def test_nested_and_parallel_spans_are_counted_by_the_order_of_their_lines(tmp_path: Path) -> None:
    spans = Ledger(tmp_path / "spans")
    assert most_at_once(spans, "tool") == 0
    for line in ("tool begin", "write begin", "tool begin", "tool end", "write end", "tool end"):
        spans.write(line)
    assert (most_at_once(spans, "tool"), most_at_once(spans, "write")) == (2, 1)


def test_a_tool_that_fails_ends_its_span(tmp_path: Path) -> None:
    spans = Ledger(tmp_path / "spans")
    tools = SlowTools({}, Ledger(tmp_path / "ledger"), 0, spans)
    with pytest.raises(LessonError):
        tools.lookup_runbook("key", "code")
    assert spans.lines() == ["tool begin", "tool end"]


def test_writes_are_told_while_the_lock_is_held(connection: AgentConnection) -> None:
    class Spans(Ledger):
        def write(self, line: str) -> None:
            with closing(sqlite3.connect(connection.path, timeout=0)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    line += f", {error}"
            super().write(line)

    spans = Spans(connection.path.with_name("spans"))
    run_id = start(connection, 1)[0]
    watch_writes(connection, spans)
    connection.execute("SELECT 1").fetchall()
    with connection:
        pass
    claim = claimed(connection, run_id)
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute("SELECT 1").fetchall()
        raise ZeroDivisionError
    connection.set_trace_callback(None)
    assert claim
    steps = ["write begin, database is locked", "write end, database is locked"]
    assert spans.lines() == steps * 2


def test_a_child_that_fails_says_why() -> None:
    code = "raise LookupError('no such\\nthing')"
    with Child("-c", code) as child, pytest.raises(ChildError, match="process failed: thing"):
        child.end()
    with pytest.raises(ChildError, match="the child process failed: LookupError: thing"):
        together([["-c", "print('ready'); input(); raise LookupError('thing')"]])


def test_a_child_that_does_not_get_ready_is_not_let_go() -> None:
    with pytest.raises(ChildError, match="did not get ready: it finished"):
        together([["-c", "print('steady')"]])


def test_a_child_that_died_can_still_be_told_something() -> None:
    with Child("-c", "from lesson_lib.crash import die; print('last', flush=True); die()") as child:
        assert child.read() == "last"
        assert child.read() == ""
        child.tell()
        assert child.end() == ChildEnd("died without cleanup", "")


def test_no_child_outlives_its_block(tmp_path: Path) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.readline(); open(sys.argv[1], 'w')"
    with Child("-c", code, tmp_path / "alive") as child:
        assert child.read() == "ready"
    assert list(tmp_path.iterdir()) == []
    assert child._process.returncode is not None


def test_a_worker_module_in_the_learners_folder_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlite3.py").write_text("raise SystemExit('mine')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ends = together([command(tmp_path / "agent.db", tmp_path / "ledger", "worker-1", lease=LEASE)])
    assert ends == [ChildEnd("finished", "")]
    assert os.listdir(tmp_path).count("agent.db") == 1  # noqa: PTH208


def test_a_child_may_complain_at_length() -> None:
    code = "import sys; sys.stderr.write('x' * 300_000); print('done')"
    with Child("-c", code) as child:
        assert child.end() == ChildEnd("finished", "done\n")
