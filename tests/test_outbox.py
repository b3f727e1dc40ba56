"""Commands leave with their checkpoint, in order, a bounded number of times; the bank counts."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from remote_parts import HOUR, MINUTE, START, begin, client, fee, served
from store_parts import rows

from lesson_lib.clock import utc_text
from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    KeyBusyError,
    RemoteError,
    SimulatedCrash,
    StaleVersionError,
    TransactionError,
)
from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.labs.remote_effects.client import Payments
from lesson_lib.labs.remote_effects.service import PaymentServer
from lesson_lib.model import Step
from lesson_lib.riders.delivery import RetryPolicy, deliver_due, deliver_next
from lesson_lib.riders.outbox import (
    Command,
    PutCommand,
    claim_command,
    commands,
    create_outbox,
    decide_dead_letter,
    mark_delivered,
    mark_failed,
    put_command,
)
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    delete_run,
    load_state,
    read_events,
    save_checkpoint,
)
from lesson_lib.store import Rider, Saving

A_MINUTE = timedelta(minutes=1)
POLICY = RetryPolicy(max_attempts=3, base=timedelta(seconds=10), cap=A_MINUTE, claim=A_MINUTE)
TOO_MUCH = 100_001


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ready(connection: AgentConnection, clock: HandClock) -> AgentConnection:
    connection.clock = clock
    create_outbox(connection)
    for run_id in ("run-1", "run-2"):
        begin(connection, run_id)
    return connection


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaymentServer]:
    with served(tmp_path) as server:
        yield server


def put(connection: AgentConnection, key: str, cents: int = 12_000, /, **changed: Any) -> None:
    """Put a command with a key such as `run-1:a`."""
    run_id = key.partition(":")[0]
    usual = {"run_id": run_id, "key": key, "tool_name": "pay", "request": fee(run_id, cents)}
    with connection:
        put_command(connection, **{**usual, **changed})


def claim(connection: AgentConnection, max_attempts: int = 3, **changed: Any) -> Command | None:
    how = {"claim": A_MINUTE, "key_lives": timedelta(hours=23), "session": "w1"}
    return claim_command(connection, **{**how, "max_attempts": max_attempts, **changed})


def claimed(connection: AgentConnection) -> Command:
    command = claim(connection)
    assert command is not None
    return command


def deliver(connection: AgentConnection, service: Payments, **changed: Any) -> list[str]:
    usual = {"session": "w1", "policy": POLICY, "chance": random.Random(1)}
    return deliver_due(connection, service, **{**usual, **changed})


def seen(connection: AgentConnection) -> dict[str, tuple[str, int]]:
    return {c.idempotency_key: (c.status, c.attempts) for c in commands(connection)}


def kinds(connection: AgentConnection, run_id: str = "run-1") -> list[tuple[str, str]]:
    return [(e.session, e.event_type) for e in read_events(connection, run_id)][1:]


def bank(server: PaymentServer) -> list[str]:
    return [line.split()[1] for line in server.accounts.bank.lines()]


# Putting a command, together with the checkpoint.


class Dies(Rider):
    """The process "dies" as the rider is called."""

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        raise SimulatedCrash


COMMAND = PutCommand("k", "pay", fee("run-1"))


def finishing(*riders: Rider) -> Step:
    return Step("pay", {}, None, riders=riders)


def test_a_command_rides_with_its_checkpoint(ready: AgentConnection) -> None:
    save_checkpoint(ready, load_state(ready, "run-1"), finishing(COMMAND), session="s1")
    assert load_state(ready, "run-1").version == 1
    (command,) = commands(ready)
    text, now = to_json(fee("run-1")), utc_text(START)
    assert command == Command("k", "run-1", "pay", text, "waiting", None, 1, now)
    assert (command.request, command.answer) == (fee("run-1"), None)


@pytest.mark.parametrize("riders", [(Dies(), COMMAND), (COMMAND, Dies())], ids=["between", "after"])
def test_who_dies_in_between_leaves_neither(
    ready: AgentConnection, database: Path, riders: tuple[Rider, ...]
) -> None:
    state, before = load_state(ready, "run-1"), rows(database)
    with pytest.raises(SimulatedCrash):
        save_checkpoint(ready, state, finishing(*riders), session="s1")
    assert rows(database) == before


def test_a_stale_worker_puts_nothing(ready: AgentConnection) -> None:
    stale = load_state(ready, "run-1")
    save_checkpoint(ready, stale, Step("pay", {}, "pay"), session="s2")
    with pytest.raises(StaleVersionError, match="is at version 1"):
        save_checkpoint(ready, stale, finishing(COMMAND), session="s1")
    assert commands(ready) == []


def test_a_command_is_put_inside_a_transaction_only(ready: AgentConnection) -> None:
    with pytest.raises(TransactionError, match="outbox_commands is written inside"):
        put_command(ready, run_id="run-1", key="k", tool_name="pay", request={})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"key": ""}, InvalidStateError),
        ({"key": "run-2:a"}, IdempotencyConflictError),
        ({"tool_name": ""}, InvalidStateError),
        ({"key": "run-Ž:a"}, InvalidStateError),
        ({"key": "k" * 256}, InvalidStateError),
        ({"request": {"at": {1}}}, JSONValueError),
        ({"run_id": "run-9"}, sqlite3.IntegrityError),
    ],
    ids=str,
)
def test_what_cannot_be_put_is_not_stored(
    ready: AgentConnection, database: Path, changed: dict[str, Any], error: type[Exception]
) -> None:
    put(ready, "run-2:a")
    before = rows(database)
    with pytest.raises(error):
        put(ready, "run-1:b", **changed)
    assert rows(database) == before


def test_a_time_needs_its_zone(ready: AgentConnection) -> None:
    ready.clock = lambda: START.replace(tzinfo=None)
    with pytest.raises(InvalidStateError, match="naive time"):
        put(ready, "run-1:a")
    assert commands(ready) == []


# Claiming: one worker, one attempt, in order.


def test_a_claimed_command_is_nobody_elses_until_the_claim_ends(
    ready: AgentConnection, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    first = claimed(ready)
    assert (first.idempotency_key, first.attempts) == ("run-1:a", 1)
    assert claim(ready) is None
    clock.move(59.999)
    assert claim(ready) is None
    clock.move(0.001)
    assert claimed(ready).attempts == 2


def test_two_workers_never_claim_one_command_at_once(
    ready: AgentConnection, database: Path, clock: HandClock
) -> None:
    for letter in "abc":
        put(ready, f"run-1:{letter}")
        put(ready, f"run-2:{letter}")
    with closing(connect(database, clock=clock)) as other:
        taken = [claim(worker) for worker in (ready, other) * 2]
    assert [command and command.idempotency_key for command in taken] == [
        *("run-1:a", "run-2:a"),
        *(None, None),
    ]


@pytest.mark.parametrize("status", ["waiting", "dead"])
def test_only_the_oldest_open_command_of_a_run_is_due(ready: AgentConnection, status: str) -> None:
    for letter in "abc":
        put(ready, f"run-1:{letter}")
    first = claimed(ready)
    if status == "dead":
        mark_failed(ready, first, session="w1", error="no", retry_in=None)
    assert claim(ready) is None
    put(ready, "run-2:a")
    assert claimed(ready).idempotency_key == "run-2:a"
    mark_delivered(ready, first, session="w1", answer=1)
    assert claimed(ready).idempotency_key == "run-1:b"


def test_the_one_that_waits_longest_comes_first(ready: AgentConnection, clock: HandClock) -> None:
    put(ready, "run-2:a")
    clock.move(1)
    put(ready, "run-1:a")
    assert [claimed(ready).run_id for _ in range(2)] == ["run-2", "run-1"]


def test_a_command_that_kills_every_worker_comes_to_an_end(
    ready: AgentConnection, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    for attempt in (1, 2, 3):
        assert claimed(ready).attempts == attempt
        clock.move(MINUTE)
    assert claim(ready) is None
    (dead,) = commands(ready, "dead")
    assert dead.idempotency_key == "run-1:a"
    assert dead.last_error == "its worker died at each attempt"
    assert kinds(ready) == [("w1", "command_dead")]


def test_a_clock_that_is_set_back_delays_and_loses_nothing(
    ready: AgentConnection, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    clock.move(-HOUR)
    assert claim(ready) is None
    clock.move(HOUR)
    assert claimed(ready).attempts == 1


def test_a_clock_that_is_set_back_a_year_stops_nothing(
    ready: AgentConnection, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    put(ready, "run-2:a")
    claimed(ready)  # its key is in use since a time that is to come: nobody knows how old it is
    clock.move(-365 * 24 * HOUR)
    assert claimed(ready).idempotency_key == "run-2:a"
    assert claim(ready) is None
    assert seen(ready) == {"run-1:a": ("dead", 1), "run-2:a": ("waiting", 1)}


def test_the_clock_is_read_when_the_lock_is_there(ready: AgentConnection) -> None:
    locked: list[bool] = []
    put(ready, "run-1:a")

    def clock() -> datetime:
        locked.append(ready.in_transaction)
        return START

    ready.clock = clock
    claimed(ready)
    assert set(locked) == {True}


# How an attempt ends.


def test_a_late_worker_cannot_undo_what_another_one_did(
    ready: AgentConnection, database: Path, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    late = claimed(ready)
    clock.move(MINUTE)
    second = claimed(ready)
    before = rows(database)
    for wait in (None, A_MINUTE):
        mark_failed(ready, late, session="late", error="?", retry_in=wait)
    assert rows(database) == before
    mark_delivered(ready, second, session="w2", answer="receipt")
    before = rows(database)
    mark_failed(ready, late, session="late", error="?", retry_in=None)
    mark_failed(ready, second, session="w2", error="?", retry_in=None)
    mark_delivered(ready, late, session="late", answer="another")
    assert rows(database) == before
    assert kinds(ready) == [("w2", "command_delivered")]


def test_a_late_worker_cannot_undo_what_a_person_decided(
    ready: AgentConnection, database: Path, clock: HandClock
) -> None:
    put(ready, "run-1:a")
    late = claimed(ready)
    clock.move(MINUTE)
    assert claim(ready, max_attempts=1) is None
    decide_dead_letter(ready, "run-1:a", "retry", person="Ada")
    for again in range(2):  # before the next attempt, and in it, which is the first one again
        before = rows(database)
        mark_failed(ready, late, session="late", error="?", retry_in=None)
        assert rows(database) == before
        clock.move(MINUTE)
        assert claimed(ready).attempts == late.attempts + again


def test_a_late_worker_finds_the_command_gone(ready: AgentConnection) -> None:
    put(ready, "run-1:a")
    late = claimed(ready)
    ready.execute("DELETE FROM outbox_commands")
    mark_failed(ready, late, session="late", error="?", retry_in=None)
    mark_delivered(ready, late, session="late", answer=1)
    assert kinds(ready) == []


@pytest.mark.parametrize("decision", [None, "skip", "retry"])
def test_what_was_delivered_late_stays_delivered(
    ready: AgentConnection, decision: str | None
) -> None:
    put(ready, "run-1:a")
    late = claimed(ready)
    mark_failed(ready, late, session="w1", error="no", retry_in=None)
    if decision:
        decide_dead_letter(ready, "run-1:a", decision, person="Ada")
    mark_delivered(ready, late, session="late", answer="receipt")
    (command,) = commands(ready)
    assert (command.status, command.answer, command.last_error) == ("delivered", "receipt", None)


def test_a_mark_and_its_event_are_both_there_or_neither(
    ready: AgentConnection, database: Path
) -> None:
    put(ready, "run-1:a")
    command = claimed(ready)
    ready.execute(
        "CREATE TRIGGER full BEFORE INSERT ON agent_events BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        mark_delivered(ready, command, session="w1", answer=1)
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        mark_failed(ready, command, session="w1", error="no", retry_in=None)
    assert rows(database) == before


# Dead letters, and who decides.


def test_a_person_lets_a_dead_letter_be_tried_again(ready: AgentConnection) -> None:
    put(ready, "run-1:a")
    mark_failed(ready, claimed(ready), session="w1", error="no", retry_in=None)
    assert claim(ready) is None
    decide_dead_letter(ready, "run-1:a", "retry", person="Ada")
    assert claimed(ready).attempts == 1
    assert kinds(ready) == [("w1", "command_dead"), ("Ada", "command_retry")]


def test_a_person_skips_a_dead_letter_and_its_run_goes_on(ready: AgentConnection) -> None:
    for letter in "ab":
        put(ready, f"run-1:{letter}")
    mark_failed(ready, claimed(ready), session="w1", error="no", retry_in=None)
    decide_dead_letter(ready, "run-1:a", "skip", person="Ada")
    assert claimed(ready).idempotency_key == "run-1:b"
    assert seen(ready)["run-1:a"] == ("skipped", 0)


@pytest.mark.parametrize(
    ("key", "decision", "said"),
    [
        ("run-1:a", "skip", "holds no dead letter 'run-1:a'"),
        ("run-1:z", "retry", "holds no dead letter 'run-1:z'"),
        ("run-2:a", "forget", "retry or skip, not 'forget'"),
        ("run-\ud800", "skip", "lone surrogate"),
    ],
)
def test_only_dead_letters_are_decided(
    ready: AgentConnection, database: Path, key: str, decision: str, said: str
) -> None:
    put(ready, "run-2:a")
    mark_failed(ready, claimed(ready), session="w1", error="no", retry_in=None)
    put(ready, "run-1:a")
    before = rows(database)
    with pytest.raises(InvalidStateError, match=said):
        decide_dead_letter(ready, key, decision, person="Ada")
    assert rows(database) == before


@pytest.mark.parametrize("status", ["waiting", "dead", "skipped", "delivered"])
def test_a_run_keeps_what_its_open_commands_need(ready: AgentConnection, status: str) -> None:
    put(ready, "run-1:a")
    state = load_state(ready, "run-1")
    save_checkpoint(ready, state, finishing(), session="s")
    command = claimed(ready)
    if status == "delivered":
        mark_delivered(ready, command, session="w1", answer=1)
    elif status != "waiting":
        mark_failed(ready, command, session="w1", error="no", retry_in=None)
    if status == "skipped":
        decide_dead_letter(ready, "run-1:a", "skip", person="Ada")
    if status in ("waiting", "dead"):
        with pytest.raises(InvalidStateError, match="run-1 is still needed: its outbox holds"):
            delete_run(ready, "run-1")
        assert len(commands(ready)) == 1
    else:
        delete_run(ready, "run-1")
        assert commands(ready) == []


def test_the_table_is_made_once(ready: AgentConnection, database: Path) -> None:
    put(ready, "run-1:a")
    before = rows(database)
    create_outbox(ready)
    assert rows(database) == before


# Delivering to a service.


def test_commands_arrive_in_order_and_once(ready: AgentConnection, server: PaymentServer) -> None:
    for key in ("run-1:a", "run-2:a", "run-1:b", "run-2:b"):
        put(ready, key)
    assert len(deliver(ready, client(server))) == 4
    assert deliver(ready, client(server)) == []
    receipts = [command.answer["payment_id"] for command in commands(ready, "delivered")]
    assert sorted(receipts) == ["payment-1", "payment-2", "payment-3", "payment-4"]
    for run in (receipts[:2], receipts[2:]):
        assert run == sorted(run)
    assert kinds(ready) == [("w1", "command_delivered")] * 2


def test_a_failing_service_is_tried_a_bounded_number_of_times(
    ready: AgentConnection, server: PaymentServer, clock: HandClock
) -> None:
    server.faults += ["fail_before"] * 9
    put(ready, "run-1:a")
    tries = []
    for _ in range(20):
        tries += deliver(ready, client(server))
        clock.move(MINUTE)
    assert (len(tries), len(server.faults)) == (3, 6)
    assert seen(ready) == {"run-1:a": ("dead", 3)}
    assert commands(ready)[0].last_error == "the service said 503: The service is out of order"
    server.faults.clear()
    decide_dead_letter(ready, "run-1:a", "retry", person="Ada")
    deliver(ready, client(server))
    assert bank(server) == ["run-1"]


def test_a_lost_answer_is_asked_for_again_with_the_same_key(
    ready: AgentConnection, server: PaymentServer, clock: HandClock
) -> None:
    server.faults += ["fail_after"]
    put(ready, "run-1:a")
    deliver(ready, client(server))
    assert seen(ready) == {"run-1:a": ("waiting", 1)}
    clock.move(MINUTE)
    deliver(ready, client(server))
    assert seen(ready) == {"run-1:a": ("delivered", 2)}
    assert bank(server) == ["run-1"]


@pytest.mark.parametrize("hours", [22, 23, 25])
def test_a_command_is_not_sent_again_when_its_key_may_be_forgotten(
    ready: AgentConnection, server: PaymentServer, clock: HandClock, hours: int
) -> None:
    server.accounts.clock = lambda: clock().timestamp()
    put(ready, "run-1:a")
    clock.move(3 * 24 * HOUR)  # the age of the key counts, not that of the command

    def die(point: str) -> None:
        if point == "sent":
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        deliver(ready, client(server), passing=die)
    clock.move(hours * HOUR)
    for _ in range(2):
        deliver(ready, client(server))
        assert bank(server) == ["run-1"]
        if hours == 22:
            assert seen(ready) == {"run-1:a": ("delivered", 2)}
            break
        assert commands(ready, "dead")[0].last_error == (
            "the service may have forgotten its key: a person must look whether it was done"
        )
        decide_dead_letter(ready, "run-1:a", "retry", person="Ada")


def test_a_key_is_as_old_as_its_first_attempt(ready: AgentConnection, clock: HandClock) -> None:
    put(ready, "run-1:a")
    for attempt in (1, 2):
        assert claimed(ready).attempts == attempt
        clock.move(20 * HOUR)
    assert claim(ready) is None
    assert seen(ready) == {"run-1:a": ("dead", 2)}


def test_a_poisoned_run_holds_up_nobody_else(
    ready: AgentConnection, server: PaymentServer, clock: HandClock
) -> None:
    put(ready, "run-1:a", TOO_MUCH)
    put(ready, "run-1:b")
    put(ready, "run-2:a")
    put(ready, "run-2:b")
    for _ in range(5):
        deliver(ready, client(server))
        clock.move(MINUTE)
    assert seen(ready) == {
        "run-1:a": ("dead", 1),
        "run-1:b": ("waiting", 0),
        "run-2:a": ("delivered", 1),
        "run-2:b": ("delivered", 1),
    }
    assert bank(server) == ["run-2", "run-2"]


class Broken(Payments):
    """A client whose next request ends in this error."""

    error: BaseException

    def pay(self, key: str, request: JSONObject) -> JSONObject:
        """Fail."""
        raise self.error


@pytest.mark.parametrize("error", [KeyBusyError("later"), RemoteError("?")], ids=repr)
def test_what_may_work_later_is_tried_later(
    ready: AgentConnection, clock: HandClock, error: Exception
) -> None:
    service = Broken("127.0.0.1:9")
    object.__setattr__(service, "error", error)
    put(ready, "run-1:a")
    assert deliver(ready, service) == ["run-1:a"]
    assert seen(ready) == {"run-1:a": ("waiting", 1)}
    clock.now = START + POLICY.base
    assert claimed(ready).attempts == 2


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), SimulatedCrash()])
def test_an_error_of_the_program_ends_the_worker_and_is_counted(
    ready: AgentConnection, clock: HandClock, error: BaseException
) -> None:
    service = Broken("127.0.0.1:9")
    object.__setattr__(service, "error", error)
    put(ready, "run-1:a")
    with pytest.raises(type(error)):
        deliver(ready, service)
    assert seen(ready) == {"run-1:a": ("waiting", 1)}
    assert deliver(ready, service) == []


def test_a_worker_that_is_overtaken_sends_again_and_the_bank_pays_once(
    ready: AgentConnection, server: PaymentServer, database: Path, clock: HandClock
) -> None:
    put(ready, "run-1:a")

    def overtaken(point: str) -> None:
        if point == "sent":  # it stands still, and its claim ends before it can mark
            clock.move(2 * MINUTE)
            with closing(connect(database, clock=clock)) as other:
                assert deliver(other, client(server), session="w2") == ["run-1:a"]

    tried = deliver_next(
        ready,
        client(server),
        session="w1",
        policy=POLICY,
        chance=random.Random(1),
        passing=overtaken,
    )
    assert tried is not None
    assert kinds(ready) == [("w2", "command_delivered")]
    assert bank(server) == ["run-1"]


# The waits.


@pytest.mark.parametrize(
    "changed",
    [
        {"max_attempts": 0},
        {"base": -A_MINUTE},
        {"cap": -A_MINUTE},
        {"claim": -A_MINUTE},
        {"cap": timedelta(days=2)},
    ],
    ids=str,
)
def test_a_policy_is_refused_that_could_not_work(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidStateError, match="a policy has 1 attempt or more"):
        RetryPolicy(**changed)


@pytest.mark.parametrize("seed", range(5))
def test_a_wait_is_never_longer_than_its_limit(seed: int) -> None:
    policy, chance = RetryPolicy(base=timedelta(seconds=2), cap=A_MINUTE), random.Random(seed)
    for attempt, limit in enumerate([2, 4, 8, 16, 32, 60, 60, 60], start=1):
        waits = [policy.wait_after(attempt, chance).total_seconds() for _ in range(500)]
        assert 0 <= min(waits) < limit * 0.05
        assert limit * 0.95 < max(waits) <= limit
    assert policy.wait_after(10**6, chance) <= A_MINUTE


def test_equal_chances_give_equal_waits() -> None:
    first, second = (
        [RetryPolicy().wait_after(n, chance) for n in range(1, 9)]
        for chance in (random.Random(8), random.Random(8))
    )
    assert first == second
    assert len(set(first)) == 8


def test_the_wait_is_counted_from_the_failure(
    ready: AgentConnection, server: PaymentServer, clock: HandClock
) -> None:
    server.faults += ["fail_before"]
    put(ready, "run-1:a")
    policy = replace(POLICY, claim=timedelta(hours=1))
    deliver(ready, client(server), policy=policy)
    wait = POLICY.wait_after(1, random.Random(1))
    clock.now = START + wait - timedelta(milliseconds=1)
    assert deliver(ready, client(server), policy=policy) == []
    clock.now = START + wait
    assert deliver(ready, client(server), policy=policy) == ["run-1:a"]
