"""Intents: a call to another system is stored before it is made, and its answer after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from lesson_lib.clock import aware, utc_text
from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    OutcomeUnknownError,
    RefusedError,
)
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.model import require_text
from lesson_lib.riders.keyed_rows import RemoteCall, put_once, read_rows, request_text
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.records import has_table

STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS tool_intents (
    idempotency_key TEXT NOT NULL PRIMARY KEY,
    run_id          TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    tool_name       TEXT NOT NULL,
    request_json    TEXT NOT NULL CHECK (json_valid(request_json)),
    intended_at_utc TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('intended', 'confirmed', 'refused')),
    answer_json     TEXT CHECK (answer_json IS NULL OR json_valid(answer_json)),
    CHECK ((answer_json IS NULL) = (status = 'intended'))
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS open_intents_keep_their_run BEFORE DELETE ON agent_runs
    WHEN EXISTS (SELECT 1 FROM tool_intents WHERE run_id = OLD.run_id AND status = 'intended')
    BEGIN SELECT RAISE(ABORT, 'what became of an intent is not known yet: settle it first'); END""",
)


class KeyedService(Protocol):
    """A service in another system that takes idempotency keys."""

    def pay(self, key: str, request: JSONObject) -> JSONValue:
        """Do what the request says, once per key, and return the answer."""

    def outcome(self, key: str) -> JSONValue:
        """Return the answer to the request with this key, None if the key is not known."""


@dataclass(frozen=True)
class Intent(RemoteCall):
    """One row of `tool_intents`; it has an answer once it is known what became of it."""

    intended_at_utc: str


def create_intents(connection: AgentConnection) -> None:
    """Create the table of intents where it is missing."""
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def find_intent(connection: AgentConnection, key: str) -> Intent | None:
    """Return the intent of this key, None if there is none."""
    sql = "SELECT * FROM tool_intents WHERE idempotency_key = ?"
    found = read_rows(connection, Intent, sql, require_text("key", key))
    return found[0] if found else None


def open_intents(connection: AgentConnection) -> list[Intent]:
    """Return the intents without an answer, oldest first: what a new process has to settle."""
    is_open = "status = 'intended' ORDER BY intended_at_utc, idempotency_key"
    return read_rows(connection, Intent, f"SELECT * FROM tool_intents WHERE {is_open}")


def open_intents_of(connection: AgentConnection, run_id: str) -> list[Intent]:
    """Return a run's open intents, oldest first; none where there is no table."""
    if not has_table(connection, "tool_intents"):
        return []
    return [each for each in open_intents(connection) if each.run_id == run_id]


def open_keys(connection: AgentConnection, run_id: str) -> list[str]:
    """Return the keys of a run's open intents, oldest first; none where there is no table."""
    return [each.idempotency_key for each in open_intents_of(connection, run_id)]


def intend(
    connection: AgentConnection,
    *,
    run_id: str,
    session: str,
    key: str,
    tool_name: str,
    request: JSONObject,
) -> Intent:
    """Store that a call is about to be made, with the event `tool_intended`; return the intent.

    An intent that is there already is returned as it is: every repeat comes with the same key.

    Raises:
        IdempotencyConflictError: The key belongs to another run, tool or request.
        InvalidStateError, JSONValueError: See `request_text`.
    """
    text, now = request_text(key, request), utc_text(connection.clock())
    new = Intent(key, run_id, tool_name, text, "intended", None, now)
    with connection:
        if put_once(connection, "tool_intents", new):
            new.tell(connection, "tool_intended", session)
            return new
        found = _found(connection, key)
    if (found.run_id, found.tool_name, found.request_json) != (run_id, tool_name, text):
        raise IdempotencyConflictError(
            f"the key {key} belongs to another run, tool or request: use a new key"
        )
    return found


def confirm(
    connection: AgentConnection,
    intent: Intent,
    *,
    session: str,
    answer: JSONValue,
    status: str = "confirmed",
) -> Intent:
    """Store the answer with the event `tool_confirmed`; return the intent as it is stored now.

    Of two answers the first stays.
    """
    new = replace(intent, status=status, answer_json=to_json(answer, "answer"))
    with connection:
        updated = connection.execute(
            """UPDATE tool_intents SET status = :status, answer_json = :answer_json
            WHERE idempotency_key = :idempotency_key AND status = 'intended'""",
            vars(new),
        )
        if updated.rowcount != 1:
            return _found(connection, new.idempotency_key)
        new.tell(connection, f"tool_{status}", session)
    return new


def refuse(connection: AgentConnection, intent: Intent, *, session: str, reason: str) -> Intent:
    """Store that the call will never be made, with the event `tool_refused`; see `confirm`."""
    return confirm(connection, intent, session=session, answer=reason, status="refused")


def call(
    connection: AgentConnection, intent: Intent, service: KeyedService, *, session: str
) -> Intent:
    """Make the call of an intent, outside of any transaction, and store what came of it.

    No look at the table could help against an answer that comes between it and the call: a person
    who says "it did not happen" must be sure that no session is still at it.

    Raises:
        KeyBusyError, RemoteError: There is no answer to store, so the intent stays open.
    """
    try:
        answer = service.pay(intent.idempotency_key, intent.request)
    except RefusedError as error:
        return refuse(connection, intent, session=session, reason=str(error))
    return confirm(connection, intent, session=session, answer=answer)


def settle(
    connection: AgentConnection,
    intent: Intent,
    service: KeyedService,
    *,
    session: str,
    key_lives: timedelta,
) -> Intent:
    """Ask what became of an open intent, and repeat the call only if it did not happen.

    The service surely remembers a key for the time `key_lives`: what it publishes, less what the
    two clocks may differ.

    Raises:
        OutcomeUnknownError: The service knows no such key, and may have forgotten it.
        KeyBusyError, RemoteError: The first request is at work, or no answer came: it stays open.
    """
    key = intent.idempotency_key
    try:
        answer = service.outcome(key)
    except RefusedError as error:
        return refuse(connection, intent, session=session, reason=str(error))
    if answer is not None:
        return confirm(connection, intent, session=session, answer=answer)
    age = aware(connection.clock()) - datetime.fromisoformat(intent.intended_at_utc)
    if not timedelta() <= age < key_lives:
        raise OutcomeUnknownError(
            f"the service knows no {key}, and may have known it before: a person must find out"
            " whether it happened"
        )
    now = _found(connection, key)  # somebody may have answered while the service was asked
    if now.status != "intended":
        return now
    return call(connection, now, service, session=session)


def _found(connection: AgentConnection, key: str) -> Intent:
    intent = find_intent(connection, key)
    if intent is None:
        raise InvalidStateError(f"there is no intent {key}: store it with intend first")
    return intent
