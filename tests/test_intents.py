"""A call to another system leaves its intent before it, and only what is known is stored after."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from remote_parts import HOUR, MINUTE, START, begin, fee
from store_parts import rows

from lesson_lib.clock import utc_text
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
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.model import Step
from lesson_lib.riders.intents import (
    Intent,
    call,
    confirm,
    create_intents,
    find_intent,
    intend,
    open_intents,
    open_keys,
    refuse,
    settle,
)
from lesson_lib.sqlite import AgentConnection, delete_run, read_events, save_checkpoint
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sweep.hooks import statements

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
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ready(connection: AgentConnection, clock: HandClock) -> AgentConnection:
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
    request = to_json(fee("run-1"))
    assert intent == Intent("k", "run-1", "pay", request, "intended", None, utc_text(START))
    assert (intent.request, intent.answer) == (fee("run-1"), None)
    assert find_intent(ready, "k") == intent
    assert open_intents(ready) == [intent]
    assert kinds(ready) == [("s1", "tool_intended")]
    assert find_intent(ready, "l") is None


def test_an_intent_that_is_there_is_returned_as_it_is(
    ready: AgentConnection, database: Path, clock: HandClock
) -> None:
    first = put(ready)
    clock.move(HOUR)
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
    with pytest.raises(
        IdempotencyConflictError, match="the key k belongs to another run, tool or request"
    ):
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
    unknown = Intent("l", "run-1", "pay", "{}", "intended", None, utc_text(START))
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


def test_open_intents_come_oldest_first(ready: AgentConnection, clock: HandClock) -> None:
    for key, minutes in (("a", 2), ("c", -1), ("b", -1), ("d", 0)):
        clock.move(minutes * MINUTE)
        put(ready, key=key)
    assert [intent.idempotency_key for intent in open_intents(ready)] == ["b", "d", "c", "a"]
    assert open_keys(ready, "run-1") == ["b", "d", "c", "a"]


def test_the_open_keys_are_those_of_one_run_and_none_is_decoded(ready: AgentConnection) -> None:
    begin(ready, "run-2")
    confirm(ready, put(ready, key="done"), session="s1", answer=1)
    put(ready)
    put(ready, key="other", run_id="run-2")
    ready.execute("UPDATE tool_intents SET request_json = '1e999', intended_at_utc = 'never'")
    assert open_keys(ready, "run-1") == ["k"]
    assert [intent.idempotency_key for intent in open_intents(ready)] == ["k", "other"]


def test_without_a_table_no_key_is_open(connection: AgentConnection) -> None:
    assert open_keys(connection, "run-1") == []


def test_a_run_with_an_open_intent_is_not_deleted(ready: AgentConnection) -> None:
    save_checkpoint(ready, begin(ready, "run-2"), Step("pay", {}, None), session="s")
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
def test_what_was_answered_while_the_service_was_asked_is_not_repeated(
    ready: AgentConnection, store: Callable[..., Intent]
) -> None:
    old, service = put(ready), Scripted()
    name = "answer" if store is confirm else "reason"
    stored = store(ready, old, session="s2", **{name: "said"})
    assert settle(ready, old, service, session="s1", key_lives=DAY) == stored
    assert service.asked == ["outcome k"]


def test_of_two_sessions_that_call_the_first_answer_stays(ready: AgentConnection) -> None:
    intent = put(ready)
    first = call(ready, intent, Scripted(payments="first"), session="s1")
    assert call(ready, intent, Scripted(payments="second"), session="s2") == first
    assert find_intent(ready, "k") == first
    assert kinds(ready) == [("s1", "tool_intended"), ("s1", "tool_confirmed")]


def test_nothing_is_paid_by_a_naive_clock(ready: AgentConnection) -> None:
    intent, service = put(ready), Scripted()
    ready.clock = lambda: START.replace(tzinfo=None)
    with pytest.raises(InvalidStateError, match="naive time"):
        settle(ready, intent, service, session="s2", key_lives=DAY)
    assert service.asked == ["outcome k"]


def test_a_payment_reads_its_intent_once(ready: AgentConnection) -> None:
    said: list[str] = []
    with statements(AgentCursor, said.append):
        assert find_intent(ready, "k") is None
        call(ready, put(ready), Scripted(), session="s1")
    about = [words for words in said if words.startswith("before")]
    assert about == [
        "before SELECT * FROM",
        *("before BEGIN IMMEDIATE", "before INSERT INTO tool_intents"),
        *("before INSERT INTO agent_events", "before COMMIT"),
        *("before BEGIN IMMEDIATE", "before UPDATE tool_intents SET"),
        *("before INSERT INTO agent_events", "before COMMIT"),
    ]


# Settling: what the service says x how old the intent is.


@pytest.mark.parametrize("age", [timedelta(), DAY - timedelta(seconds=1), DAY, -DAY, 9 * DAY])
def test_what_the_service_knows_counts_at_any_age(
    ready: AgentConnection, clock: HandClock, age: timedelta
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
    ready: AgentConnection, database: Path, clock: HandClock, error: Exception, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service, before = Scripted(outcomes=error), rows(database)
    with pytest.raises(type(error)):
        settle(ready, intent, service, session="s2", key_lives=DAY)
    assert (service.asked, rows(database)) == (["outcome k"], before)


@pytest.mark.parametrize("age", [timedelta(), timedelta(hours=1), DAY - timedelta(microseconds=1)])
def test_what_did_not_happen_is_repeated_with_the_same_key_and_request(
    ready: AgentConnection, clock: HandClock, age: timedelta
) -> None:
    intent = put(ready)
    clock.now += age
    service = Scripted()
    assert settle(ready, intent, service, session="s2", key_lives=DAY).answer == RECEIPT
    assert service.asked == ["outcome k", "pay k 12000"]
    assert kinds(ready) == [("s1", "tool_intended"), ("s2", "tool_confirmed")]


@pytest.mark.parametrize("age", [DAY, 9 * DAY, -timedelta(microseconds=1), -DAY])
def test_a_key_that_may_be_forgotten_is_not_used_again(
    ready: AgentConnection, database: Path, clock: HandClock, age: timedelta
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
