"""Calling a tool once per idempotency key, and giving its saved result to every repeat."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lesson_lib.errors import (
    CorruptStateError,
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    KeyBusyError,
    StorageError,
    ToolResultError,
    TransactionError,
)
from lesson_lib.json_text import from_json, to_json
from lesson_lib.model import ToolCall, ToolResult, input_digest, require_text
from lesson_lib.sqlite.connection import AgentConnection, while_locked
from lesson_lib.sqlite.records import record_event, require_run

LONGEST_NAME = 255  # characters


def execute_once(
    connection: AgentConnection,
    call: ToolCall,
    *,
    session: str,
    wait: float = 60.0,
) -> ToolResult:
    """Return the saved result of the call's key, or make the call and save what it returns.

    The call is made outside of any transaction, so a slow tool locks nobody out. If the process
    dies after the tool ran and before its result is saved, the next caller runs it again: no
    local database can close that window.

    The folder of locks beside the database must not be removed while callers run.

    Args:
        connection: An open connection, outside of a transaction.
        call: The call. Of its input only the SHA-256 is stored; key, run and tool have names of
            up to `LONGEST_NAME` characters.
        session: Which process life asks.
        wait: How long to wait for another caller of the same key, and then for the right to save
            the result, in seconds.

    Raises:
        InvalidStateError: A name is no usable text, or too long. The tool was not called.
        IdempotencyConflictError: The key was used by another run, or with another tool or input.
        KeyBusyError: Another caller still runs this tool after `wait` seconds.
        StorageError: The database cannot be written. If the tool ran, its result is lost.
        TransactionError: A transaction is open. The tool was not called.
        ToolResultError: The tool ran, but its result is not JSON. Nothing was saved.
        UnknownRunError: There is no such run. The tool was not called.
        JSONValueError: The input is not JSON. The tool was not called.
        CorruptStateError: The saved result cannot be read.
        Exception: Whatever the tool raises. Nothing was saved; the next call tries again.
    """
    if connection.in_transaction:
        raise TransactionError(
            "execute_once was called inside `with connection:`: a tool must not run while a"
            " transaction holds the file"
        )
    key, run_id, tool_name = call.key, call.run_id, call.tool_name
    texts = {"key": key, "run_id": run_id, "session": session, "tool_name": tool_name}
    for name, text in texts.items():
        if len(require_text(name, text)) > LONGEST_NAME:
            raise InvalidStateError(
                f"{name} {text[:40]!r}… has {len(text)} characters, {LONGEST_NAME} are allowed: use"
                " a digest of what it is made of"
            )
    digest = input_digest(call.tool_input)
    require_run(connection, run_id)

    def record(event_type: str) -> None:
        record_event(
            connection,
            run_id=run_id,
            session=session,
            event_type=event_type,
            action=tool_name,
            detail={"key": key},
        )

    saved = _saved(connection, key)
    if saved is None:
        with _only_caller(connection.path, key, wait):
            saved = _saved(connection, key)
            if saved is None:
                require_run(connection, run_id)  # it may be finished and deleted by now
                result = _result(call)

                def save() -> bool:
                    with connection:
                        saved_now = connection.execute(
                            "INSERT INTO tool_effects VALUES (?, ?, ?, ?, ?)"
                            " ON CONFLICT DO NOTHING",
                            (key, run_id, tool_name, digest, result),
                        )
                        if saved_now.rowcount == 1:
                            record("tool_executed")
                    return saved_now.rowcount == 1

                # A result that is lost is a call that is repeated: be patient.
                if while_locked(save, wait):
                    return ToolResult(key, tool_name, from_json(result), reused=False)
                # The lock failed us, and another caller saved its result first: that one counts.
                saved = _saved(connection, key)

    if (saved["run_id"], saved["tool_name"], saved["input_sha256"]) != (run_id, tool_name, digest):
        raise IdempotencyConflictError(
            f"the key {key} was used before, by {saved['run_id']} for {saved['tool_name']}, and"
            " run, tool or input differ now: a new intention needs a new key"
        )
    try:
        value = from_json(saved["result_json"])
    except ValueError as error:
        raise CorruptStateError(
            f"the saved result of {key} is not JSON: restore a backup"
        ) from error
    with connection:
        record("tool_reused")
    return ToolResult(key, tool_name, value, reused=True)


def _saved(connection: AgentConnection, key: str) -> Any:
    return connection.execute(
        "SELECT * FROM tool_effects WHERE idempotency_key = ?", (key,)
    ).fetchone()


def _result(call: ToolCall) -> str:
    value = call.function()
    try:
        return to_json(value, "result")
    except JSONValueError as error:
        raise ToolResultError(
            f"the tool of {call.key} ran, but its result cannot be saved: {error}"
        ) from error


@contextmanager
def _only_caller(database: Path, key: str, wait: float) -> Iterator[None]:
    """Hold the key's lock file. The operating system lets go of it when the process dies."""
    folder = database.with_name(database.name + "-locks")
    lock = FileLock(folder / (hashlib.sha256(key.encode()).hexdigest()[:16] + ".lock"))
    try:
        folder.mkdir(exist_ok=True)
        lock.acquire(timeout=wait)
    except Timeout:
        raise KeyBusyError(
            f"another caller has been running the tool of {key} for more than {wait} s: ask again"
            " later for its result"
        ) from None
    except OSError as error:
        raise StorageError(f"{folder} cannot hold a lock file: {error}") from error
    try:
        yield
        # The result is saved now, and whoever still waits will find it: the file may go.
        with suppress(OSError):
            Path(lock.lock_file).unlink()
    finally:
        lock.release()
