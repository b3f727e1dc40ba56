"""Opening the database file, and a connection whose `with` block means: all or nothing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from lesson_lib.errors import (
    ForeignFileError,
    InvalidStateError,
    LessonError,
    SchemaVersionError,
    StorageError,
    TransactionError,
)

APPLICATION_ID = int.from_bytes(b"AGNT")  # marks the file as ours, in its header
SCHEMA_VERSION = 1
HEADER_BYTES = 100  # SQLite's file format, section 1.3
SCHEMA = Path(__file__).parents[2] / "schema.sql"


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(UTC)


def aware(moment: datetime) -> datetime:
    """Return a time in UTC.

    Raises:
        InvalidStateError: The time does not say to which zone it belongs.
    """
    if moment.tzinfo is None:
        raise InvalidStateError("the clock gives a naive time: use datetime.now(UTC)")
    return moment.astimezone(UTC)


def utc_text(moment: datetime) -> str:
    """Return a time as text that sorts as the time does; see `aware` for its error."""
    return aware(moment).isoformat(timespec="microseconds").replace("+00:00", "Z")


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


def connect(
    path: str | Path, *, timeout: float = 5.0, clock: Callable[[], datetime] = utc_now
) -> AgentConnection:
    """Open an agent database, or make an empty one.

    A connection belongs to the thread and the process that opened it.

    Args:
        path: The database file. Its folder must exist.
        timeout: How long to wait for another writer, in seconds.
        clock: What gives each event its time; an aware datetime.

    Raises:
        StorageError: The file cannot be opened for work.
        ForeignFileError: It is not an agent database.
        SchemaVersionError: A later version of this package made it.
    """
    if str(path) == ":memory:":
        raise StorageError("a database in :memory: dies with its process: name a file")
    try:
        # One file has one path: the key locks lie beside it, whatever link or folder led here.
        path = Path(path).resolve()
        _refuse_before_opening(path)
        connection = sqlite3.connect(
            path, timeout=timeout, autocommit=True, factory=AgentConnection
        )
    except (sqlite3.DatabaseError, OSError, RuntimeError, ValueError) as error:
        raise explain(error, path) or StorageError(f"{path} cannot be opened: {error}") from error
    connection.path, connection.timeout, connection.clock = path, timeout, clock
    connection.row_factory = sqlite3.Row
    try:
        # Until the file is known to be ours, closing it must not write its WAL back.
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        _claim(connection)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, False)
        set_pragmas(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def set_pragmas(connection: AgentConnection) -> None:
    """Set the pragmas that the promises rest on, and read each one back.

    A pragma that cannot do its work says nothing. This must come before the first transaction:
    inside one, `foreign_keys` is ignored.
    """
    for name, value, wanted in (
        ("foreign_keys", "ON", 1),
        ("journal_mode", "WAL", "wal"),
        ("synchronous", "FULL", 2),
        ("fullfsync", "ON", 1),  # macOS: without it a sync ends in the cache of the drive
    ):
        # SQLite itself does not wait for other writers when the journal mode changes.
        set_it = partial(connection.execute, f"PRAGMA {name} = {value}")
        while_locked(set_it, connection.timeout).fetchall()
        (found,) = connection.execute(f"PRAGMA {name}").fetchone()
        if found != wanted:
            raise StorageError(
                f"{connection.path} does not take {name} = {value}: use a file on a local disk"
            )


def create_schema(connection: AgentConnection) -> None:
    """Create the three tables, all or none; in a database that has them, do nothing."""
    with connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise ForeignFileError(
                    f"{connection.path} holds tables of another making: begin with a new file"
                )
            for statement in schema_statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def schema_statements() -> list[str]:
    """Return the CREATE TABLE statements of `schema.sql`, in order."""
    return [part.strip() for part in SCHEMA.read_text(encoding="utf-8").split(";") if part.strip()]


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


def _refuse_before_opening(path: Path) -> None:
    """Refuse what is not ours without leaving a trace: no lock, no journal played back."""
    if path.is_dir():
        raise StorageError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise StorageError(f"the folder {path.parent} does not exist: make it first")
    if not path.exists() or path.stat().st_size == 0:
        return
    if not os.access(path, os.W_OK):
        raise StorageError(
            f"{path} cannot be written: check the permissions of the file and its folder"
        )
    if path.stat().st_size < HEADER_BYTES:
        raise ForeignFileError(f"{path} is not an SQLite database: choose another file name")
    uri = f"file:{quote(path.as_posix())}?mode=ro&immutable=1"
    look = sqlite3.connect(uri, uri=True, autocommit=True)
    # What this look cannot read may be whole together with the journal it passes by.
    with contextlib.closing(look), contextlib.suppress(sqlite3.DatabaseError):
        _is_claimed(look, path)


def _claim(connection: AgentConnection) -> None:
    """Mark an empty database as ours; refuse one that is not ours or too new."""
    if not _is_claimed(connection, connection.path):
        with connection:
            # Another process may have been first since the look above.
            if not _is_claimed(connection, connection.path):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _is_claimed(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the database is ours already, False for an empty one; refuse others."""
    owner, version, tables = connection.execute(
        """SELECT (SELECT application_id FROM pragma_application_id),
        (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)"""
    ).fetchone()
    if (owner, version, tables) == (0, 0, 0):
        return False
    if owner != APPLICATION_ID:
        raise ForeignFileError(
            f"{path} is an SQLite database of another program: choose another file name"
        )
    if version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{path} has schema version {version}, this package knows versions up to"
            f" {SCHEMA_VERSION}: update the package"
        )
    return True


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
