"""Rows with a key: what the tables of intents, commands and questions have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lesson_lib.errors import InvalidStateError, TransactionError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.records import record_event


def read_rows[T](
    connection: AgentConnection, kind: Callable[..., T], sql: str, *parameters: object
) -> list[T]:
    """Return the rows of a query, each as an object whose fields are the columns."""
    return [kind(**dict(row)) for row in connection.execute(sql, parameters).fetchall()]


def put_once(connection: AgentConnection, table: str, row: object) -> bool:
    """Insert a row, inside the caller's transaction, and return whether its key is new.

    Raises:
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError(f"{table} is written inside the caller's `with connection:` block")
    columns = list(vars(row))
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES (:{', :'.join(columns)})"
    return connection.execute(f"{sql} ON CONFLICT DO NOTHING", vars(row)).rowcount == 1


@dataclass(frozen=True)
class RemoteCall:
    """A call to another system: what an intent and a command have in common."""

    idempotency_key: str
    run_id: str
    tool_name: str
    request_json: str
    status: str
    answer_json: str | None

    @property
    def request(self) -> JSONValue:
        """A decoded copy of the request."""
        return from_json(self.request_json)

    @property
    def answer(self) -> JSONValue:
        """A decoded copy of the answer, or of why it was refused; None while there is none."""
        return from_json(self.answer_json or "null")

    def tell(self, connection: AgentConnection, event_type: str, session: str) -> None:
        """Record an event about it, inside the caller's transaction."""
        about = {"run_id": self.run_id, "session": session, "action": self.tool_name}
        detail = {"key": self.idempotency_key}
        record_event(connection, **about, event_type=event_type, detail=detail)


def request_text(key: str, request: JSONObject) -> str:
    """Return the JSON text of a request that will travel with this key, in an HTTP header.

    Raises:
        InvalidStateError, JSONValueError: No client can send the key, or the request is no JSON.
    """
    if not re.fullmatch(r"[ -~]{1,255}", require_text("key", key)):
        raise InvalidStateError(f"the key {key!r} must be 1 to 255 printable ASCII characters")
    return to_json(request, "request")
