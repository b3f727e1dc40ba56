"""A call to another system leaves its intent before it, and only what is known is stored after."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from remote_parts import START, Clock, begin, fee
from store_parts import rows

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    KeyBusyError,
    OutcomeUnknownError,
    RefusedError,
    RemoteError,
    TransactionError,
)
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.stores.sqlite import (
    AgentConnection,
    delete_run,
    read_events,
    save_checkpoint,
)
from lesson_lib.stores.sqlite.connection import utc_text
from lesson_lib.stores.sqlite.intents import (
    Intent,
    call,
    confirm,
    create_intents,
    find_intent,
    intend,
    open_intents,
    refuse,
    settle,
)

RECEIPT = {"payment_id": "payment-1"}
DAY = timedelta(hours=24)


@dataclass
class Scripted:
    """A service that answers as it is told, and counts what it is asked."""

    outcomes: JSONValue | Exception = None
    payments: JSONValue | Exception = field(default_factory=lambda: RECEIPT)
    asked: list[str] = field(default_factory=list)
    see: Callable[[], None] = lambda: None

    def outcome(self, key: str) -> JSONValue:
        return self._say(f"outcome {key}", self.outcomes)

    def pay(self, key: str, request: JSONObject) -> JSONValue:
        return self._say(f"pay {key} {request['amount_cents']}", self.payments)

    def _say(self, asked: str, answer: JSONValue | Exception) -> JSONValue:
        self.asked.append(asked)
        self.see()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ready(connection: AgentConnection, clock: Clock) -> AgentConnection:
    connection.clock = clock
    create_intents(connection)
    begin(connection)
    return connection


def put(connection: AgentConnection, **changed: Any) -> Intent:
    usual = {"run_id": "run-1", "session": "s1", "key": "k", "tool_name": "pay"}
    return intend(connection, **{**usual, "request": fee("run-1"), **changed})


def kinds(connection: AgentConnection) -> list[tuple[str, str]]:
    return [(e.session, e.event_type) for e in read_events(connection, "run-1")][1:]


# Storing what is intended, and what came of it.


def test_an_intent_is_stored_with_its_event(ready: AgentConnection) -> None:
    intent = put(ready)
    assert intent == Intent("k", "run-1", "pay", fee("run-1"), START, "intended", None)
    assert find_intent(ready, "k") == intent
    assert open_intents(ready) == [intent]
    assert kinds(ready) == [("s1", "tool_intended")]
    assert find_intent(ready, "l") is None


def test_an_intent_that_is_there_is_returned_as_it_is(
    ready: AgentConnection, database: Path, clock: Clock
) -> None:
    first = put(ready)
    clock.move(hours=1)
    before = rows(database)
    assert put(ready, session="s2") == first
    assert rows(database) == before
    confirmed = confirm(ready, first, session="s1", answer=RECEIPT)
    assert put(ready, session="s2") == confirmed


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "run-2"},
        {"tool_name": "send"},
        {"request": fee("run-1", 1)},
        {"request": fee("run-1") | {"amount_cents": 12_000.0}},
    ],
    ids=str,
)
def test_a_key_belongs_to_one_request(
    ready: AgentConnection, database: Path, changed: dict[str, object]
) -> None:
    begin(ready, "run-2")
    put(ready)
    before = rows(database)
    with pytest.raises(IdempotencyConflictError, match="the key k is that of an earlier intent"):
        put(ready, **changed)
    assert rows(database) == before


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"key": ""}, InvalidStateError),
        ({"session": ""}, InvalidStateError),
        ({"tool_name": ""}, InvalidStateError),
        ({"key": "run-Ž:pay"}, InvalidStateError),
        ({"key": "a\nb"}, InvalidStateError),
        ({"key": "k" * 256}, InvalidStateError),
        ({"request": {"at": {1}}}, JSONValueError),
        ({"request": [1]}, InvalidStateError),
        ({"run_id": "run-9"}, sqlite3.IntegrityError),
    ],
    ids=str,
)
def test_what_cannot_be_intended_is_not_stored(
    ready: AgentConnection, database: Path, changed: dict[str, object], error: type[Exception]
) -> None:
    before = rows(database)
    with pytest.raises(error):
        put(ready, **changed)
    assert rows(database) == before


@pytest.mark.parametrize(("store", "status"), [(confirm, "confirmed"), (refuse, "refused")])
def test_of_two_answers_the_first_stays(
    ready: AgentConnection, database: Path, store: Callable[..., Intent], status: str
) -> None:
    intent = put(ready)
    name = "answer" if store is confirm else "reason"
    stored = store(ready, intent, session="s1", **{name: "first"})
    assert (stored.status, stored.answer) == (status, "first")
    assert find_intent(ready, "k") == stored
    assert open_intents(ready) == []
    assert kinds(ready)[1:] == [("s1", f"tool_{status}")]
    before = rows(database)
    assert confirm(ready, intent, session="s2", answer="second") == stored
    assert refuse(ready, intent, session="s2", reason="second") == stored
    assert rows(database) == before


def test_an_answer_may_be_null(ready: AgentConnection) -> None:
    stored = confirm(ready, put(ready), session="s1", answer=None)
    assert (stored.status, stored.answer, open_intents(ready)) == ("confirmed", None, [])


def test_an_intent_that_was_never_stored_has_no_answer(ready: AgentConnection) -> None:
    unknown = Intent("l", "run-1", "pay", {}, START, "intended", None)
    with pytest.raises(InvalidStateError, match="there is no intent l"):
        confirm(ready, unknown, session="s1", answer=1)


def test_a_row_and_its_event_are_both_there_or_neither(
    ready: AgentConnection, database: Path
) -> None:
    intent = put(ready)
    ready.execute(
        "CREATE TRIGGER full BEFORE INSERT ON agent_events BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    before = rows(database)
    writes: list[Callable[[], Intent]] = [
        lambda: put(ready, key="l"),
        lambda: confirm(ready, intent, session="s1", answer=1),
        lambda: refuse(ready, intent, session="s1", reason="no"),
    ]
    for write in writes:
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            write()
        assert rows(database) == before


def test_open_intents_come_oldest_first(ready: AgentConnection, clock: Clock) -> None:
    for key, minutes in (("a", 2), ("c", -1), ("b", -1), ("d", 0)):
        clock.move(minutes=minutes)
        put(ready, key=key)
    assert [intent.idempotency_key for intent in open_intents(ready)] == ["b", "d", "c", "a"]


def test_a_run_with_an_open_intent_is_not_deleted(ready: AgentConnection) -> None:
    state = begin(ready, "run-2")
    save_checkpoint(ready, state, session="s", action="pay", next_action=None, context={})
    intent = put(ready, run_id="run-2")
    put(ready, key="l")
    with pytest.raises(InvalidStateError, match="run-2 is still needed: what became of an intent"):
        delete_run(ready, "run-2")
    confirm(ready, intent, session="s1", answer=1)
    delete_run(ready, "run-2")
    assert find_intent(ready, "k") is None
    assert find_intent(ready, "l") is not None


def test_a_time_needs_its_zone(ready: AgentConnection) -> None:
    ready.clock = lambda: START.replace(tzinfo=None)
    with pytest.raises(InvalidStateError, match="naive time"):
        put(ready)
    assert open_intents(ready) == []


def test_times_sort_as_text() -> None:
    times = [START + timedelta(days=d, microseconds=m) for d in (0, 300) for m in (0, 1, 10**6)]
    assert sorted(map(utc_text, times)) == list(map(utc_text, times))


def test_the_table_is_made_once(ready: AgentConnection, database: Path) -> None:
    put(ready)
    before = rows(database)
    create_intents(ready)
    assert rows(database) == before


# The call itself.


def test_a_call_is_made_outside_of_any_transaction(ready: AgentConnection) -> None:
    open_then: list[bool] = []
    service = Scripted(see=lambda: open_then.append(ready.in_transaction))
    intent = put(ready)
    call(ready, intent, service, session="s1")
    settle(ready, put(ready, key="l"), service, session="s1", key_lives=DAY)
    assert open_then == [False] * 3
    with pytest.raises(TransactionError), ready:
        put(ready, key="m")


def test_a_refusal_is_stored_and_anything_else_leaves_the_intent_open(
    ready: AgentConnection, database: Path
) -> None:
    for number, error in enumerate([RemoteError("?"), KeyBusyError("later"), ValueError("bug")]):
        intent = put(ready, key=f"k{number}")
        before = rows(database)
        with pytest.raises(type(error)):
            call(ready, intent, Scripted(payments=error), session="s1")
        assert rows(database) == before
    refused = call(ready, put(ready), Scripted(payments=RefusedError("too much")), session="s1")
    assert (refused.status, refused.answer) == ("refused", "too much")


@pytest.mark.parametrize("store", [confirm, refuse])
def test_a_late_session_does_not_call_what_was_answered_meanwhile(
    ready: AgentConnection, store: Callable[..., Intent]
) -> None:
    old, service = put(ready), Scripted()
    name = "answer" if store is confirm else "reason"
    stored = store(ready, old, session="s2", **{name: "said"})
    assert call(ready, old, service, session="s1") == stored
    assert settle(ready, old, service, session="s1", key_lives=DAY) == stored
    assert service.asked == ["outcome k"]


def test_a_naive_clock_fails_before_the_service_is_asked(ready: AgentConnection) -> None:
    intent, service = put(ready), Scripted()
    ready.clock = lambda: START.replace(tzinfo=None)
    with pytest.raises(InvalidStateError, match="naive time"):
        settle(ready, intent, service, session="s2", key_lives=DAY)
    assert service.asked == []


# Settling: what the service says x how old the intent is.


@pytest.mark.parametrize("age", [timedelta(), DAY - timedelta(seconds=1), DAY, -DAY, 9 * DAY])
def test_what_the_service_knows_counts_at_any_age(
    ready: AgentConnection, clock: Clock, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service = Scripted(outcomes=RECEIPT)
    assert settle(ready, intent, service, session="s2", key_lives=DAY).answer == RECEIPT
    assert service.asked == ["outcome k"]
    refusing = Scripted(outcomes=RefusedError("too much"))
    refused = settle(ready, put(ready, key="l"), refusing, session="s2", key_lives=DAY)
    assert (refused.status, refused.answer) == ("refused", "too much")
    assert refusing.asked == ["outcome l"]


@pytest.mark.parametrize("error", [RemoteError("?"), KeyBusyError("later")], ids=repr)
@pytest.mark.parametrize("age", [timedelta(), 9 * DAY])
def test_who_gets_no_answer_repeats_nothing(
    ready: AgentConnection, database: Path, clock: Clock, error: Exception, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service, before = Scripted(outcomes=error), rows(database)
    with pytest.raises(type(error)):
        settle(ready, intent, service, session="s2", key_lives=DAY)
    assert (service.asked, rows(database)) == (["outcome k"], before)


@pytest.mark.parametrize("age", [timedelta(), timedelta(hours=1), DAY - timedelta(microseconds=1)])
def test_what_did_not_happen_is_repeated_with_the_same_key_and_request(
    ready: AgentConnection, clock: Clock, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service = Scripted()
    assert settle(ready, intent, service, session="s2", key_lives=DAY).answer == RECEIPT
    assert service.asked == ["outcome k", "pay k 12000"]
    assert kinds(ready) == [("s1", "tool_intended"), ("s2", "tool_confirmed")]


@pytest.mark.parametrize("age", [DAY, 9 * DAY, -timedelta(microseconds=1), -DAY])
def test_a_key_that_may_be_forgotten_is_not_used_again(
    ready: AgentConnection, database: Path, clock: Clock, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service, before = Scripted(), rows(database)
    with pytest.raises(OutcomeUnknownError, match="the service knows no k, and may have known it"):
        settle(ready, intent, service, session="s2", key_lives=DAY)
    assert (service.asked, rows(database)) == (["outcome k"], before)


def test_a_service_without_keys_has_forgotten_each_at_once(ready: AgentConnection) -> None:
    with pytest.raises(OutcomeUnknownError):
        settle(ready, put(ready), Scripted(), session="s1", key_lives=timedelta())
