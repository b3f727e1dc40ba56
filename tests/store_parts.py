"""What the tests of the store share: rows and files as they are on disk, and a second process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Self

from lesson_lib.stores.sqlite import connect, create_schema

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


class Child:
    """A Python process that is told a line and answers with one."""

    def __init__(self, code: str, *arguments: object) -> None:
        """Start the process; it finds the arguments in `sys.argv[1:]`."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def tell(self, line: object = "") -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Wait for the next line of the process; an empty one when it has died."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        """End the process without any cleanup of its own."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Self:
        """Return the child itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        self.kill()
