"""Where the rows of a table lie in an SQLite file, byte for byte (its file format, section 1.6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}  # of an inner and a leaf page, by its type
SIZES = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0]  # of a value, by its serial type


@dataclass(frozen=True)
class Stored:
    """A part of a row in the file: its bytes lie from `start` to `end`."""

    rowid: int
    part: str
    start: int
    end: int


def parts(database: Path, table: str) -> list[Stored]:
    """Return the parts of each row: its cell's head, its record's head, its columns."""
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        (root,) = plain.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchone()
        (size,) = plain.execute("PRAGMA page_size").fetchone()
        names = [row[1] for row in plain.execute(f"PRAGMA table_info({table})")]
    return list(_walk(database.read_bytes(), root, size, names))


def _walk(data: bytes, page: int, size: int, names: list[str]) -> Iterator[Stored]:
    base = (page - 1) * size
    kind = data[base]
    count = int.from_bytes(data[base + 3 : base + 5])
    cells = [base + HEADERS[kind] + 2 * n for n in range(count)]
    starts = [base + int.from_bytes(data[cell : cell + 2]) for cell in cells]
    if kind == 5:
        children = [int.from_bytes(data[start : start + 4]) for start in starts]
        for child in [*children, int.from_bytes(data[base + 8 : base + 12])]:
            yield from _walk(data, child, size, names)
        return
    assert kind == 13
    for start in starts:
        length, at = _varint(data, start)
        rowid, at = _varint(data, at)
        assert at + length <= base + size, "this row goes on in an overflow page"
        yield Stored(rowid, "head of the cell", start, at)
        header, first = _varint(data, at)
        yield Stored(rowid, "head of the record", at, at + header)
        value = at + header
        for name in names:
            serial, first = _varint(data, first)
            width = SIZES[serial] if serial < 10 else (serial - 12) // 2
            if width:
                yield Stored(rowid, name, value, value + width)
            value += width
        assert value == at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        value = value << 7 | data[at] & 127
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise AssertionError("no test needs so large a number")
