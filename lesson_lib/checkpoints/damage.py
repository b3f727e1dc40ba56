"""Damage: one changed byte in a database file, and who notices it."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, decompress
from lesson_lib.errors import CheckpointError, StorageError

REWRITES = (
    "UPDATE run_history SET entry_json = '{}'",
    "DELETE FROM run_history WHERE position = 1",
    "INSERT OR REPLACE INTO run_history VALUES ('run-T104', 1, '{}')",
)
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

    Args:
        database: A closed database file with an uncompressed body in its archive that is stored
            in one piece. It is the same afterwards.

    Returns:
        How many flips there were, and how many of them each check noticed.
    """
    body = _newest(database).body
    begin = database.read_bytes().index(body)
    noticed: Counter[str] = Counter(
        {"flips": len(body), "integrity_check": 0, "JSON": 0, "checksum": 0}
    )
    with database.open("r+b", buffering=0) as file:
        for place, byte in enumerate(body):
            file.seek(begin + place)
            file.write(bytes([byte ^ 1 << place % 8]))
            stored = _newest(database)
            noticed["integrity_check"] += integrity(database) != "ok"
            noticed["JSON"] += not _is_json(stored.body)
            noticed["checksum"] += not _decodes(stored)
            file.seek(begin + place)
            file.write(bytes([byte]))
    return noticed


def bomb(megabytes: int) -> bytes:
    """Return gzip bytes that would grow to so many million zeros, a thousandth of them long."""
    packer, zeros = zlib.compressobj(wbits=31), bytes(1_000_000)
    return b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()


def open_measured(body: bytes) -> tuple[str, int]:
    """Decompress gzip bytes as the codec does.

    Returns:
        The refusal, or an empty text, and the bytes of memory that it took at most.
    """
    refusal = ""
    tracemalloc.start()
    try:
        decompress(body, "gzip")
    except CheckpointError as error:
        refusal = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return refusal, peak


def _newest(database: Path) -> StoredCheckpoint:
    with closing(_look(database)) as connection:
        row = connection.execute(
            f"SELECT {COLUMNS} FROM run_checkpoints ORDER BY checkpoint_id DESC"
        ).fetchone()
    return StoredCheckpoint(*row)


def _look(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.resolve().as_uri()}?immutable=1", uri=True, autocommit=True)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _decodes(stored: StoredCheckpoint) -> bool:
    try:
        decode(stored)
    except CheckpointError:
        return False
    return True
