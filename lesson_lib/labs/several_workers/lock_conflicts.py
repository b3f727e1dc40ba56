"""Two ways to get "database is locked" with plain sqlite3, and what the cure of each changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

type Pair = tuple[sqlite3.Connection, sqlite3.Connection]


def idle_reader(path: Path, mode: str) -> str:
    """Let one connection read a row and rest while another writes; say what came of it.

    Args:
        path: A database file that does not exist yet.
        mode: The journal mode, "DELETE" or "WAL".
    """
    with _two_connections(path) as (reader, writer):
        reader.execute(f"PRAGMA journal_mode = {mode}").fetchall()
        rows = reader.execute("SELECT * FROM notes")
        next(rows)  # one row; the others are not fetched
        return _tries(writer, "UPDATE notes SET text = 'new'")


def read_then_write(path: Path, begin: str) -> list[str]:
    """Let one connection read, another write, and the first write; say what came of the writes.

    Args:
        path: A database file that does not exist yet.
        begin: How the first begins its transaction, "BEGIN" or "BEGIN IMMEDIATE".
    """
    with _two_connections(path) as (first, second):
        first.execute("PRAGMA journal_mode = WAL").fetchall()
        first.execute("PRAGMA busy_timeout = 3600000").fetchall()  # an hour
        first.execute(begin)
        first.execute("SELECT count(*) FROM notes").fetchall()
        insert = "INSERT INTO notes VALUES ('more')"
        return [f"second {_tries(second, insert)}", f"first {_tries(first, insert)}"]


@contextmanager
def _two_connections(path: Path) -> Iterator[Pair]:
    one, other = (sqlite3.connect(path, timeout=0.05, autocommit=True) for _ in range(2))
    with closing(one), closing(other):
        one.execute("CREATE TABLE notes (text)")
        one.executemany("INSERT INTO notes VALUES (?)", ["a", "b", "c"])
        yield one, other


def _tries(connection: sqlite3.Connection, statement: str) -> str:
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as error:
        return f"fails: {error} ({error.sqlite_errorname})"
    return "writes"
