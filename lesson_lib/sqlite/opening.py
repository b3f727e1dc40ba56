"""Opening the database file: refuse what is not ours, set the pragmas, create the schema."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

from lesson_lib.clock import utc_now
from lesson_lib.errors import ForeignFileError, SchemaVersionError, StorageError
from lesson_lib.sqlite.connection import AgentConnection, explain, while_locked

APPLICATION_ID = int.from_bytes(b"AGNT")  # marks the file as ours, in its header
SCHEMA_VERSION = 1
HEADER_BYTES = 100  # SQLite's file format, section 1.3
SCHEMA = Path(__file__).with_name("schema.sql")


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
        _mark_as_ours(connection)
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
        _is_ours(look, path)


def _mark_as_ours(connection: AgentConnection) -> None:
    """Mark an empty database as ours; refuse one that is not ours or too new."""
    if not _is_ours(connection, connection.path):
        with connection:
            # Another process may have been first since the look above.
            if not _is_ours(connection, connection.path):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
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
