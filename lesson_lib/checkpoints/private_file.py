"""A database file that only its owner can read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lesson_lib.errors import StorageError
from lesson_lib.sqlite import AgentConnection, connect

SUFFIXES = ("", "-wal", "-shm", "-journal")


def connect_private(path: str | Path, **options: Any) -> AgentConnection:
    """Open a database as `connect` does, in a file that only its owner can read.

    A missing file is made with its mode from its first moment on; SQLite gives the files beside it
    the same mode. What is deleted is overwritten with zeros. On Windows a mode does nothing: the
    access list of the folder decides, and nothing is checked.

    Raises:
        StorageError: Others can read a file; or it cannot be made.
    """
    try:
        path = Path(path).resolve()
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{path} cannot be made: {error}") from error
    for file in (path.with_name(path.name + suffix) for suffix in SUFFIXES):
        if file.exists() and others_can_read(file):
            raise StorageError(
                f"others can read {file}, and may have done so: chmod 600 it, and change the"
                " secrets"
            )
    connection = connect(path, **options)
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    return connection


def others_can_read(path: Path) -> bool:
    """Return whether the mode of a file gives rights to others than its owner; False on Windows."""
    return os.name != "nt" and path.stat().st_mode & 0o077 != 0
