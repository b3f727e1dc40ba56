"""Which kept checkpoint can be trusted: each is judged by its bytes, its event and its rivals."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode
from lesson_lib.errors import CheckpointError, LessonError
from lesson_lib.model import RunState
from lesson_lib.recovery.story import Story, check_siblings
from lesson_lib.stores.sqlite import AgentConnection

# By the index first: a row whose own name or version is damaged is still found, and judged.
WHERE_THEY_ARE = """SELECT checkpoint_id, version FROM run_checkpoints
    INDEXED BY sqlite_autoindex_run_checkpoints_1 WHERE run_id = ?"""
# By the row itself: the index has copies of its values, which would hide a changed byte.
ROW = """SELECT run_id, version, schema_version, compression, body, sha256
    FROM run_checkpoints NOT INDEXED WHERE checkpoint_id = ?"""
KINDS = (str, int, int, str, bytes, str)


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was not trusted, and a sentence that says why."""

    version: int
    reason: str


@dataclass(frozen=True)
class Kept:
    """A row of the archive: its place, the version the index says, and what it holds.

    `state` is None where the row cannot be trusted; `problem` says why.
    """

    checkpoint_id: int
    version: int
    schema_version: int
    state: RunState | None
    problem: str = ""


@dataclass(frozen=True)
class Judgement:
    """What came of looking through an archive, newest version first.

    `chosen` is the first that can be trusted; `refused` all that cannot be, older ones too;
    `strays` those that no event tells of, although their bytes are whole.
    """

    chosen: Kept | None
    refused: tuple[Refused, ...]
    strays: tuple[Kept, ...]


def unreadable(connection: AgentConnection, run_id: str) -> frozenset[int]:
    """Return the places of the run's rows that SQLite itself cannot read.

    This must come before the transaction: SQLite writes no more in one that met a damaged page.
    """
    places = connection.execute(WHERE_THEY_ARE, (run_id,)).fetchall()
    return frozenset(place for place, _ in places if not _can_read(connection, place))


def judge(connection: AgentConnection, story: Story, lost: frozenset[int]) -> Judgement:
    """Look through the kept checkpoints of a run, newest first, for one that can be trusted.

    Args:
        connection: An open connection.
        story: The events of the run.
        lost: The places not to look at; see `unreadable`.
    """
    kept = read_kept(connection, story.run_id, lost)
    if not kept:  # a run of part one
        return Judgement(None, (), ())
    strays = tuple(k for k in kept if k.version > story.newest and k.state is not None)
    refused, chosen = [], None
    for version in sorted({*range(story.newest + 1), *(k.version for k in kept)}, reverse=True):
        here = [k for k in kept if k.version == version]
        trusted, problems = _judge_version(here, story)
        if here or chosen is None:  # an older one may have been removed to save space
            refused += [Refused(version, problem) for problem in problems]
        chosen = chosen or trusted
    return Judgement(chosen, tuple(refused), strays)


def read_kept(connection: AgentConnection, run_id: str, lost: frozenset[int]) -> list[Kept]:
    """Return the rows of a run's archive, each read and decoded by itself; see `judge`."""
    places = connection.execute(WHERE_THEY_ARE, (run_id,)).fetchall()
    return [
        Kept(place, version, 0, None, "SQLite cannot read its row from the file")
        if place in lost
        else _read(connection, run_id, place, version)
        for place, version in places
    ]


def _read(connection: AgentConnection, run_id: str, place: int, version: int) -> Kept:
    row = connection.execute(ROW, (place,)).fetchone()
    try:
        if row is None:
            raise CheckpointError("the index names it, and there is no such row")
        if tuple(map(type, row)) != KINDS:
            raise CheckpointError("a column of its row holds a value of another type")
        stored = StoredCheckpoint(*row)
        state = decode(stored)
        if (stored.run_id, stored.version) != (run_id, version):
            raise CheckpointError(
                f"its row says {stored.run_id}, version {stored.version}, and the index another"
            )
    except CheckpointError as error:
        return Kept(place, version, 0, None, str(error))
    return Kept(place, version, stored.schema_version, state)


def _can_read(connection: AgentConnection, place: int) -> bool:
    try:
        connection.execute(ROW, (place,)).fetchone()
    except (LessonError, sqlite3.Error, MemoryError):
        return False
    return True


def _judge_version(kept: list[Kept], story: Story) -> tuple[Kept | None, list[str]]:
    """Return the trusted one of a version's rows, None for none, and what is wrong with them."""
    if not kept:
        return None, ["no checkpoint of it is kept"]
    problems = [k.problem for k in kept if k.state is None]
    fit = []
    for k in kept:
        if k.state is not None:
            try:
                check_siblings(k.state, story)
                fit.append(k)
            except CheckpointError as error:
                problems.append(str(error))
    if len({k.state for k in fit}) > 1:
        return None, [
            *problems,
            f"{len(fit)} checkpoints claim this version with different contents: none is trusted",
        ]
    return (fit[0] if fit else None), problems
