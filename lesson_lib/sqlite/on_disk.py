"""What is on disk: the rows that a new process would find, read without a touch."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from lesson_lib.errors import StorageError
from lesson_lib.processes import run_python

TABLES = ("agent_runs", "agent_events", "tool_effects")
COPY = """
import shutil, sys
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    shutil.copyfile(source, target)
"""


def rows_on_disk(database: Path, *, connected: bool = True) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the three tables, without their clock column, as a new process would.

    The files are copied first and the copy is read: a look must not change what a crash left. A
    child makes the copy, since a process that opens and closes a database file by itself loses
    the locks its connections hold on it (SQLite, "How To Corrupt", section 2.2).

    Args:
        database: The database file; its journals are found beside it.
        connected: Whether this process may have a connection to it. If not, no child is needed.

    Raises:
        StorageError: There is no such file.
    """
    if not database.exists():
        raise StorageError(f"there is no file {database}: name a database")
    with tempfile.TemporaryDirectory() as folder:
        copies = {
            database.with_name(database.name + suffix): Path(folder, "copy.db" + suffix)
            for suffix in ("", "-wal", "-journal")
        }
        pairs = [pair for pair in copies.items() if pair[0].exists()]
        if connected:
            run_python(COPY, *chain.from_iterable(pairs))
        else:
            for source, target in pairs:
                shutil.copyfile(source, target)
        with closing(sqlite3.connect(Path(folder, "copy.db"), autocommit=True)) as connection:
            connection.row_factory = sqlite3.Row
            return {name: _without_clock(connection, name) for name in TABLES}


def _without_clock(connection: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    rows = connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
    return [tuple(row[k] for k in row.keys() if k != "created_at_utc") for row in rows]  # noqa: SIM118
