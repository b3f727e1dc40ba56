"""A connection whose `with` block means: all or nothing, and whose errors name file and cure."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from lesson_lib.errors import ForeignFileError, LessonError, StorageError, TransactionError


class AgentCursor(sqlite3.Cursor):
    """A cursor that says in a sentence what is wrong with the file."""

    connection: AgentConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Execute one statement; see `sqlite3.Cursor.execute`."""
        return self._guard(super().execute, sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Self:
        """Execute one statement for each row; see `sqlite3.Cursor.executemany`."""
        return self._guard(super().executemany, sql, rows)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Execute several statements; see `sqlite3.Cursor.executescript`."""
        return self._guard(super().executescript, script)

    def fetchone(self) -> Any:
        """Return the next row or None."""
        return self._guard(super().fetchone)

    def __next__(self) -> Any:
        """Return the next row."""
        return self._guard(super().__next__)

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        return self._guard(super().fetchall)

    def _guard[T](self, call: Callable[..., T], *arguments: Any) -> T:
        if self.connection.process != os.getpid():
            raise TransactionError(
                f"this connection to {self.connection.path} was opened before the process forked:"
                " a child must open one of its own"
            )
        if self.connection.inside and not self.connection.in_transaction:
            # SQLite rolls back by itself when the disk is full; each later statement of the block
            # would commit alone and leave half a checkpoint behind.
            raise TransactionError(
                "the transaction of this `with connection:` block has ended already: leave the"
                " block, read what is stored, and begin again"
            )
        try:
            return call(*arguments)
        except sqlite3.DatabaseError as error:
            explained = explain(error, self.connection.path)
            if explained is None:
                raise
            raise explained from error


class AgentConnection(sqlite3.Connection):
    """A connection that commits each statement alone, but a `with connection:` block as one.

    The block begins with BEGIN IMMEDIATE, so it never waits for a lock in its middle; it commits
    at its end, rolls back on any exception, and refuses to nest. The plain `sqlite3.Connection`
    of `autocommit=True` does nothing at all at `with`.
    """

    path: Path
    timeout: float
    clock: Callable[[], datetime]
    inside = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Open it, for this process alone."""
        super().__init__(*arguments, **options)
        self.process = os.getpid()

    def cursor(self, factory: Any = AgentCursor) -> Any:
        """Return a cursor that explains errors."""
        return super().cursor(factory)

    # The base class makes plain cursors in these three, whatever `cursor` returns.

    def execute(self, sql: str, parameters: Any = (), /) -> AgentCursor:
        """Execute one statement on a new cursor."""
        cursor: AgentCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> AgentCursor:
        """Execute one statement for each row on a new cursor."""
        cursor: AgentCursor = self.cursor()
        return cursor.executemany(sql, rows)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Execute several statements on a new cursor."""
        cursor: AgentCursor = self.cursor()
        return cursor.executescript(script)

    def __enter__(self) -> Self:
        if self.in_transaction:
            raise TransactionError(
                "a transaction is open on this connection already: `with connection:` does not"
                " nest, since the inner block would commit the outer one"
            )
        try:
            self.execute("BEGIN IMMEDIATE")
        except BaseException:
            # Interrupted while it waited, SQLite may have begun all the same.
            self._roll_back()
            raise
        self.inside = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        try:
            if kind is None:
                self.execute("COMMIT")
        finally:
            self.inside = False
            self._roll_back()
        return False

    def _roll_back(self) -> None:
        # No error of the clean-up must hide the one that led here.
        with contextlib.suppress(sqlite3.Error):
            if self.in_transaction:
                super().execute("ROLLBACK")

    def commit(self) -> None:
        """Refuse: with autocommit it would do nothing, in silence."""
        raise TransactionError("a `with connection:` block commits at its end, by itself")

    def rollback(self) -> None:
        """Refuse: with autocommit it would do nothing, in silence."""
        raise TransactionError("to roll back, leave the `with connection:` block by an exception")

    def backup(self, target: sqlite3.Connection, **options: Any) -> None:
        """Copy the database; see `sqlite3.Connection.backup`. Outside of a transaction only."""
        if self.in_transaction:
            raise TransactionError("a backup inside a transaction would never end: leave it first")
        super().backup(target, **options)


def while_locked[T](call: Callable[[], T], seconds: float) -> T:
    """Call again and again while another process has the file locked, for so many seconds.

    Only for what is safe to repeat whole: a transaction that found the file locked did nothing.

    Raises:
        StorageError: The file is still locked; or the call failed for another reason.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StorageError as error:
            if not is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def is_locked(error: StorageError) -> bool:
    """Return whether the error says that another process has the file locked."""
    return getattr(error.__cause__, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def explain(error: Exception, path: str | Path) -> LessonError | None:
    """Return an error with a sentence that names file and cure, or None for another kind."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_ERROR" and "no such table" in str(error):
        return StorageError(f"{path}: {error}: if the file is new, call create_schema first")
    if name == "SQLITE_NOTADB":
        return ForeignFileError(f"{path} is not an SQLite database: choose another file name")
    if "decode to UTF-8" in str(error):  # Python's own: it has no name, and quotes the text
        return StorageError(f"{path} is damaged, a text in it is not UTF-8: restore a backup")
    for start, sentence in {
        "SQLITE_BUSY": "is locked by another process: let it finish, or wait longer (timeout=…)",
        "SQLITE_FULL": "cannot grow, the disk is full: free some space, nothing else is lost",
        "SQLITE_READONLY": "cannot be written: check the permissions of the file and its folder",
        "SQLITE_CANTOPEN": "cannot be opened: check the permissions of the file and its folder",
        "SQLITE_IOERR_SHM": "has no room for its -shm file, the disk is full: free some space",
        "SQLITE_IOERR": "cannot be read or written, the disk reports an error: check the disk",
        "SQLITE_CORRUPT": "is damaged: restore it from a backup",
    }.items():
        if name.startswith(start):
            return StorageError(f"{path} {sentence} ({error})")
    return None
