"""Intents: a call to another system is stored before it is made, and its answer after."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    OutcomeUnknownError,
    RefusedError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.stores.sqlite.connection import AgentConnection, utc_text
from lesson_lib.stores.sqlite.records import record_event

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
KEY = re.compile(r"[ -~]{1,255}")


class KeyedService(Protocol):
    """A service in another system that takes idempotency keys."""

    def pay(self, key: str, request: JSONObject) -> JSONValue:
        """Do what the request says, once per key, and return the answer."""

    def outcome(self, key: str) -> JSONValue:
        """Return the answer to the request with this key, None if the key is not known."""


@dataclass(frozen=True)
class Intent:
    """One row of `tool_intents`: a call, and once it is known, its answer or its refusal."""

    idempotency_key: str
    run_id: str
    tool_name: str
    request: JSONObject
    intended_at: datetime
    status: str
    answer: JSONValue


def create_intents(connection: AgentConnection) -> None:
    """Create the table of intents where it is missing."""
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def find_intent(connection: AgentConnection, key: str) -> Intent | None:
    """Return the intent of this key, None if there is none."""
    row = connection.execute(
        "SELECT * FROM tool_intents WHERE idempotency_key = ?", (require_text("key", key),)
    ).fetchone()
    return None if row is None else _intent(row)


def open_intents(connection: AgentConnection) -> list[Intent]:
    """Return the intents without an answer, oldest first: what a new process has to settle."""
    rows = connection.execute(
        """SELECT * FROM tool_intents WHERE status = 'intended'
        ORDER BY intended_at_utc, idempotency_key"""
    ).fetchall()
    return [_intent(row) for row in rows]


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

    An intent that is there already is returned as it is.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run; it must exist.
        session: Which process life intends it.
        key: The idempotency key of the call, the same for every repeat; see `require_key`.
        tool_name: What is called.
        request: What it is called with, a JSON object.

    Raises:
        IdempotencyConflictError: The key belongs to another run, tool or request.
        InvalidStateError: The key cannot be sent, or the request is no JSON object.
        sqlite3.IntegrityError: There is no such run.
    """
    text = request_text(request)
    with connection:
        found = find_intent(connection, require_key(key))
        if found is not None:
            same = (found.run_id, found.tool_name, to_json(found.request))
            if same != (run_id, tool_name, text):
                raise IdempotencyConflictError(
                    f"the key {key} is that of an earlier intent, of {found.run_id} for"
                    f" {found.tool_name}, and run, tool or request differ: use a new key"
                )
            return found
        connection.execute(
            "INSERT INTO tool_intents VALUES (?, ?, ?, ?, ?, 'intended', NULL)",
            (key, run_id, tool_name, text, utc_text(connection.clock())),
        )
        _record(connection, "tool_intended", run_id, session, tool_name, key)
        return _found(connection, key)


def confirm(
    connection: AgentConnection, intent: Intent, *, session: str, answer: JSONValue
) -> Intent:
    """Store the answer with the event `tool_confirmed`; return the intent as it is stored now.

    Of two processes that settle one intent, the first answer stays.
    """
    return _answered(connection, intent, session, "confirmed", answer)


def refuse(connection: AgentConnection, intent: Intent, *, session: str, reason: str) -> Intent:
    """Store that the call will never be made, with the event `tool_refused`; see `confirm`."""
    return _answered(connection, intent, session, "refused", reason)


def call(
    connection: AgentConnection, intent: Intent, service: KeyedService, *, session: str
) -> Intent:
    """Make the call of an intent, outside of any transaction, and store what came of it.

    An intent that somebody has answered meanwhile is returned as it is stored. No look can help
    against an answer that comes between it and the call: a person who says "it did not happen"
    must be sure that no session is still at it.

    Raises:
        KeyBusyError, RemoteError: There is no answer to store, so the intent stays open.
    """
    intent = _found(connection, intent.idempotency_key)
    if intent.status != "intended":
        return intent
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
    """Find out what became of an intent, and repeat the call only if it did not happen.

    Args:
        connection: An open connection, outside of a transaction.
        intent: One without an answer.
        service: The service to ask; its errors come through, and the intent stays open.
        session: Which process life does this.
        key_lives: How long the service surely remembers a key: what it publishes, less what the
            two clocks may differ.

    Raises:
        OutcomeUnknownError: The service knows no such key, and may have forgotten it.
        InvalidStateError: The clock gives a naive time.
        KeyBusyError: The first request is still in progress.
        RemoteError: The service gives no answer.
    """
    # A naive clock must fail before the service is asked.
    utc_text(connection.clock())
    try:
        answer = service.outcome(intent.idempotency_key)
    except RefusedError as error:
        return refuse(connection, intent, session=session, reason=str(error))
    if answer is not None:
        return confirm(connection, intent, session=session, answer=answer)
    age = connection.clock() - intent.intended_at
    if not timedelta() <= age < key_lives:
        raise OutcomeUnknownError(
            f"the service knows no {intent.idempotency_key}, and may have known it before: a"
            " person must find out whether it happened"
        )
    return call(connection, intent, service, session=session)


def require_key(key: str) -> str:
    """Return the key if every client can send it: it travels in an HTTP header.

    Raises:
        InvalidStateError: It is not 1 to 255 printable ASCII characters.
    """
    if not KEY.fullmatch(require_text("key", key)):
        raise InvalidStateError(f"the key {key!r} must be 1 to 255 printable ASCII characters")
    return key


def request_text(request: JSONObject) -> str:
    """Return the JSON text of a request.

    Raises:
        InvalidStateError, JSONValueError: It is no JSON object.
    """
    if not isinstance(request, dict):
        raise InvalidStateError(f"request must be a dict, not a {type(request).__name__}")
    return to_json(request, "request")


def _answered(
    connection: AgentConnection, intent: Intent, session: str, status: str, answer: JSONValue
) -> Intent:
    text = to_json(answer, "answer")
    with connection:
        updated = connection.execute(
            """UPDATE tool_intents SET status = ?, answer_json = ?
            WHERE idempotency_key = ? AND status = 'intended'""",
            (status, text, intent.idempotency_key),
        )
        if updated.rowcount == 1:
            key, tool_name = intent.idempotency_key, intent.tool_name
            _record(connection, f"tool_{status}", intent.run_id, session, tool_name, key)
        return _found(connection, intent.idempotency_key)


def _record(
    connection: AgentConnection, event: str, run_id: str, session: str, tool_name: str, key: str
) -> None:
    record_event(
        connection,
        run_id=run_id,
        session=session,
        event_type=event,
        action=tool_name,
        detail={"key": key},
    )


def _found(connection: AgentConnection, key: str) -> Intent:
    intent = find_intent(connection, key)
    if intent is None:
        raise InvalidStateError(f"there is no intent {key}: store it with intend first")
    return intent


def _intent(row: Any) -> Intent:
    answer = row["answer_json"]
    return Intent(
        row["idempotency_key"],
        row["run_id"],
        row["tool_name"],
        from_json(row["request_json"]),
        datetime.fromisoformat(row["intended_at_utc"]),
        row["status"],
        None if answer is None else from_json(answer),
    )
