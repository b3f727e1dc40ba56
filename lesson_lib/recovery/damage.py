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
from lesson_lib.checkpoints.codec import StoredCheckpoint
from lesson_lib.json_text import from_json, to_json

type Damage = Callable[[sqlite3.Connection, int], None]

DAMAGES: dict[str, Damage] = {}  # of one checkpoint
DISASTERS: dict[str, Damage] = {}  # of all of them


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
    if signed:
        stored = replace(stored, sha256=codec.digest(stored))
    plain.execute(
        """UPDATE run_checkpoints SET run_id = :run_id, version = :version,
        schema_version = :schema_version, compression = :compression, body = :body,
        sha256 = :sha256 WHERE version = :was""",
        vars(stored) | {"was": version},
    )


def edit(stored: StoredCheckpoint, **changes: Any) -> StoredCheckpoint:
    """Return a checkpoint with other values in its body; a dotted context field is `context_x`.

    A value of None under `context_…` takes the field away.
    """
    body = from_json(codec.decompress(stored.body, stored.compression).decode())
    for name, value in changes.items():
        target, key = (body, name)
        if name.startswith("context_"):
            target, key = body["context"], name.removeprefix("context_")
        target[key] = value
        if value is None and target is not body:
            del target[key]
    return replace(stored, body=to_json(body).encode(), compression="none")


def _named(name: str, where: dict[str, Damage] = DAMAGES) -> Callable[[Damage], Damage]:
    def add(function: Damage) -> Damage:
        where[name] = function
        return function

    return add


def _row(name: str, *, signed: bool = False) -> Callable[[Callable[..., StoredCheckpoint]], None]:
    """Add a damage that is a change of one row's values."""

    def add(change: Callable[[StoredCheckpoint], StoredCheckpoint]) -> None:
        def function(plain: sqlite3.Connection, version: int) -> None:
            write(plain, version, change(read(plain, version)), signed=signed)

        DAMAGES[name] = function

    return add


_row("a byte flipped")(lambda s: replace(s, body=s.body[:9] + bytes([s.body[9] ^ 1]) + s.body[10:]))
_row("truncated")(lambda s: replace(s, body=s.body[:-40]))
_row("emptied")(lambda s: replace(s, body=b""))
_row("older schema, signed", signed=True)(
    lambda s: replace(edit(s, context_confidence=None), schema_version=3)
)
_row("newer schema, signed", signed=True)(lambda s: replace(s, schema_version=5))
_row("nonsense, signed", signed=True)(lambda s: replace(s, body=b"[]", compression="none"))
_row("wrong compression, signed", signed=True)(lambda s: replace(s, compression="gzip"))
_row("no runbook, signed", signed=True)(lambda s: edit(s, context_runbook=None))
_row("other next action, signed", signed=True)(lambda s: edit(s, next_action="classify_priority"))
_row("another ticket's, signed", signed=True)(lambda s: edit(s, ticket_id="T101"))


def _swap(plain: sqlite3.Connection, version: int, *, signed: bool) -> None:
    one, other = read(plain, version), read(plain, version - 1)
    write(plain, version, replace(one, version=-1))
    write(plain, version - 1, replace(other, version=version), signed=signed)
    write(plain, -1, replace(one, version=version - 1), signed=signed)


DAMAGES["rows swapped"] = partial(_swap, signed=False)
DAMAGES["rows swapped, signed"] = partial(_swap, signed=True)


@_named("row missing")
def _remove(plain: sqlite3.Connection, version: int) -> None:
    plain.execute("DELETE FROM run_checkpoints WHERE version = ?", (version,))


@_named("agent_runs one version behind")
def _behind(plain: sqlite3.Connection, version: int) -> None:
    body = from_json(read(plain, version - 1).body.decode())
    plain.execute(
        "UPDATE agent_runs SET version = ?, next_action = ?, context_json = ?",
        (version - 1, body["next_action"], to_json(body["context"])),
    )


@_named("row without its event")
def _remove_event(plain: sqlite3.Connection, version: int) -> None:
    # As if only the archive had been written: nothing else tells of the version.
    _behind(plain, version)
    plain.execute(
        "DELETE FROM agent_events WHERE sequence = (SELECT max(sequence) FROM agent_events)"
    )


@_named("two of one version")
def _rival(plain: sqlite3.Connection, version: int) -> None:
    stored = edit(read(plain, version), context_priority="normal")
    stored = replace(stored, sha256=codec.digest(stored))
    plain.execute(
        """INSERT INTO run_checkpoints
        (run_id, version, schema_version, compression, body, sha256)
        VALUES (:run_id, :version, :schema_version, :compression, :body, :sha256)""",
        vars(stored),
    )


@_named("a word of agent_runs changed")
def _word(plain: sqlite3.Connection, version: int) -> None:
    plain.execute("UPDATE agent_runs SET context_json = replace(context_json, 'urgent', 'normal')")


@_named("all checkpoints", DISASTERS)
def _all(plain: sqlite3.Connection, version: int) -> None:
    plain.execute("UPDATE run_checkpoints SET body = zeroblob(length(body))")


@_named("all checkpoints, agent_runs", DISASTERS)
def _all_and_row(plain: sqlite3.Connection, version: int) -> None:
    _all(plain, version)
    _word(plain, version)


@_named("all checkpoints, agent_runs, details", DISASTERS)
def _all_and_details(plain: sqlite3.Connection, version: int) -> None:
    _all_and_row(plain, version)
    plain.execute("UPDATE agent_events SET detail = '{}'")


@_named("an event missing", DISASTERS)
def _gap(plain: sqlite3.Connection, version: int) -> None:
    plain.execute("DELETE FROM agent_events WHERE sequence = 2")
