"""What the tests of the store share: a new database, and rows and files as they are on disk."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from lesson_lib.sqlite import connect, create_schema

type Rows = dict[str, list[tuple[Any, ...]]]


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.db")
        with closing(connect(path)) as connection:
            create_schema(connection)
        return path.read_bytes()


def new_database(folder: Path) -> Path:
    """Return a database that has the schema and no rows; a copy, since each commit is slow."""
    path = folder / "agent.db"
    path.write_bytes(_empty_database())
    return path


def rows(database: Path) -> Rows:
    """Return all rows of all tables, as a plain second connection reads them."""
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        tables = plain.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {t: plain.execute(f"SELECT * FROM {t} ORDER BY 1, 2").fetchall() for (t,) in tables}


def files(folder: Path) -> dict[str, bytes]:
    """Return what each file of a folder holds. No connection of this process may be open on one.

    Reading a database file past SQLite ends this process's locks on it.
    """
    return {path.name: path.read_bytes() for path in folder.iterdir()}
