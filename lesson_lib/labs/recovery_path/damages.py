"""Ways to damage what is kept of a run, each with a name: for learners, and for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lesson_lib.checkpoints import codec
from lesson_lib.checkpoints.archive import put
from lesson_lib.checkpoints.codec import StoredCheckpoint
from lesson_lib.json_text import from_json, to_json

type Damage = Callable[[Any, int], None]  # of an open connection and a version
type Change = Callable[[StoredCheckpoint], StoredCheckpoint]


def damage(database: Path, name: str, version: int) -> None:
    """Damage one checkpoint of the only run in a closed file.

    Args:
        database: The file; no connection may be open on it.
        name: One of `DAMAGES` or `DISASTERS`.
        version: Which checkpoint; the newest one, for those that concern `agent_runs`.
    """
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        # No constraint stands in the way of a disk.
        plain.execute("PRAGMA ignore_check_constraints = ON")
        (DAMAGES | DISASTERS)[name](plain, version)


def read(plain: sqlite3.Connection, version: int) -> StoredCheckpoint:
    """Return a kept checkpoint as it is stored."""
    row = plain.execute(
        """SELECT run_id, version, schema_version, compression, body, sha256
        FROM run_checkpoints WHERE version = ?""",
        (version,),
    ).fetchone()
    return StoredCheckpoint(*row)


def write(
    plain: sqlite3.Connection, version: int, stored: StoredCheckpoint, *, signed: bool = False
) -> None:
    """Store other values in the row of a version, with a checksum that fits if `signed`."""
    plain.execute(
        """UPDATE run_checkpoints SET run_id = :run_id, version = :version,
        schema_version = :schema_version, compression = :compression, body = :body,
        sha256 = :sha256 WHERE version = :was""",
        vars(sign(stored) if signed else stored) | {"was": version},
    )


def sign(stored: StoredCheckpoint) -> StoredCheckpoint:
    """Return a checkpoint with the checksum that fits it."""
    return replace(stored, sha256=codec.digest(stored))


def edit(stored: StoredCheckpoint, **changes: Any) -> StoredCheckpoint:
    """Return a checkpoint with other values in its body; a dotted context field is `context_x`.

    A value of None under `context_…` takes the field away.
    """
    body = from_json(codec.decompress(stored.body, stored.compression).decode())
    for name, value in changes.items():
        target, key = body, name
        if name.startswith("context_"):
            target, key = body["context"], name.removeprefix("context_")
        target[key] = value
        if value is None and target is not body:
            del target[key]
    return replace(stored, body=to_json(body).encode(), compression="none")


def _swapped(plain: sqlite3.Connection, version: int, *, signed: bool) -> None:
    one, other = read(plain, version), read(plain, version - 1)
    write(plain, version, replace(one, version=-1))
    write(plain, version - 1, replace(other, version=version), signed=signed)
    write(plain, -1, replace(one, version=version - 1), signed=signed)


def _behind(plain: sqlite3.Connection, version: int) -> None:
    body = from_json(read(plain, version - 1).body.decode())
    plain.execute(
        "UPDATE agent_runs SET version = ?, status = ?, next_action = ?, context_json = ?",
        (version - 1, body["status"], body["next_action"], to_json(body["context"])),
    )


def _without_event(plain: sqlite3.Connection, version: int) -> None:
    # As if only the archive had been written: nothing else tells of the version.
    _behind(plain, version)
    plain.execute(
        "DELETE FROM agent_events WHERE sequence = (SELECT max(sequence) FROM agent_events)"
    )


def _rival(plain: Any, version: int) -> None:
    put(plain, sign(edit(read(plain, version), context_priority="normal")))


def _sql(*statements: str) -> Damage:
    def function(plain: sqlite3.Connection, version: int) -> None:
        for statement in statements:
            plain.execute(statement, {"version": version} if ":version" in statement else {})

    return function


def _row(change: Change, *, signed: bool = False) -> Damage:
    return lambda plain, version: write(plain, version, change(read(plain, version)), signed=signed)


_signed = partial(_row, signed=True)
ALL = "UPDATE run_checkpoints SET body = zeroblob(length(body))"
WORD = "UPDATE agent_runs SET context_json = replace(context_json, 'urgent', 'normal')"
DAMAGES: dict[str, Damage] = {  # of one checkpoint
    "a byte flipped": _row(
        lambda s: replace(s, body=s.body[:9] + bytes([s.body[9] ^ 1]) + s.body[10:])
    ),
    "truncated": _row(lambda s: replace(s, body=s.body[:-40])),
    "emptied": _row(lambda s: replace(s, body=b"")),
    "older schema, signed": _signed(
        lambda s: replace(edit(s, context_confidence=None), schema_version=3)
    ),
    "newer schema, signed": _signed(lambda s: replace(s, schema_version=5)),
    "nonsense, signed": _signed(lambda s: replace(s, body=b"[]", compression="none")),
    "wrong compression, signed": _signed(lambda s: replace(s, compression="gzip")),
    "no runbook, signed": _signed(lambda s: edit(s, context_runbook=None)),
    "other next action, signed": _signed(lambda s: edit(s, next_action="classify_priority")),
    "another ticket's, signed": _signed(lambda s: edit(s, ticket_id="T101")),
    "rows swapped": partial(_swapped, signed=False),
    "rows swapped, signed": partial(_swapped, signed=True),
    "row missing": _sql("DELETE FROM run_checkpoints WHERE version = :version"),
    "agent_runs one version behind": _behind,
    "row without its event": _without_event,
    "two of one version": _rival,
    "a word of agent_runs changed": _sql(WORD),
}
DISASTERS: dict[str, Damage] = {  # of all of them
    "all checkpoints": _sql(ALL),
    "all checkpoints, agent_runs": _sql(ALL, WORD),
    "all checkpoints, agent_runs, details": _sql(
        ALL, WORD, "UPDATE agent_events SET detail = '{}'"
    ),
    "an event missing": _sql("DELETE FROM agent_events WHERE sequence = 2"),
}
