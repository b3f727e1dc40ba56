"""Bit flips: one changed byte in a database file, and who notices it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode
from lesson_lib.errors import CheckpointError, StorageError
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

COLUMNS = ", ".join(StoredCheckpoint.__dataclass_fields__)


def change(database: Path, old: bytes, new: bytes) -> None:
    """Replace bytes in a closed database file by as many others, as a bad disk might.

    Raises:
        StorageError: The old bytes do not stand in the file, or not once.
    """
    content = database.read_bytes()
    if content.count(old) != 1 or len(old) != len(new):
        raise StorageError(f"{database} has {content.count(old)} places of {len(old)} such bytes")
    database.write_bytes(content.replace(old, new))


def integrity(database: Path) -> str:
    """Return what SQLite's own check says of a file: ok, or its first complaint."""
    with closing(_look(database)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def flip_each_byte(database: Path) -> Counter[str]:
    """Flip one bit in each byte of the newest stored body, one at a time, and ask who notices.

    The body must be uncompressed and lie in one piece. The file is the same afterwards.

    Returns:
        How many flips there were, and how many of them each check noticed.
    """
    body = _newest(database).body
    begin = database.read_bytes().index(body)
    noticed = Counter({"flips": len(body), "integrity_check": 0, "JSON": 0, "checksum": 0})
    with database.open("r+b", buffering=0) as file:
        for place, byte in enumerate(body):
            file.seek(begin + place)
            file.write(bytes([byte ^ 1 << place % 8]))
            stored = _newest(database)
            noticed["integrity_check"] += integrity(database) != "ok"
            noticed["JSON"] += _refuses(json.loads, stored.body)
            noticed["checksum"] += _refuses(decode, stored, TICKET_SCHEMA)
            file.seek(begin + place)
            file.write(bytes([byte]))
    return noticed


def _newest(database: Path) -> StoredCheckpoint:
    with closing(_look(database)) as connection:
        row = connection.execute(
            f"SELECT {COLUMNS} FROM run_checkpoints ORDER BY checkpoint_id DESC"
        ).fetchone()
    return StoredCheckpoint(*row)


def _look(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.resolve().as_uri()}?immutable=1", uri=True, autocommit=True)


def _refuses(check: Callable[..., object], *values: object) -> bool:
    try:
        check(*values)
    except (ValueError, CheckpointError):
        return True
    return False
