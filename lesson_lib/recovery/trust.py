"""Which kept checkpoint can be trusted: each is judged by its bytes, its event and its rivals."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import cast

from lesson_lib.checkpoints import schema
from lesson_lib.checkpoints.archive import UNREADABLE, Kept, read_kept
from lesson_lib.checkpoints.codec import StoredCheckpoint, digest
from lesson_lib.errors import CheckpointError, LessonError, StorageError
from lesson_lib.model import RunState
from lesson_lib.recovery.story import Story, check_siblings
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.stores.sqlite.connection import is_locked

IN_INDEX = """SELECT checkpoint_id, run_id, version, sha256 FROM run_checkpoints
    INDEXED BY sqlite_autoindex_run_checkpoints_1 WHERE run_id = ?"""
IN_ROWS = """SELECT checkpoint_id, run_id, version, schema_version, compression, body, sha256
    FROM run_checkpoints NOT INDEXED WHERE run_id = ?"""
# A save that did not find a row has put it there once more, and an index holds one of them.
TWINS = """DELETE FROM run_checkpoints WHERE checkpoint_id IN (
    SELECT later.checkpoint_id FROM run_checkpoints AS later NOT INDEXED
    JOIN run_checkpoints AS first NOT INDEXED USING (run_id, version, sha256, body)
    WHERE first.checkpoint_id < later.checkpoint_id)"""


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was not trusted, and a sentence that says why.

    What its content says stands behind the first colon: a trace must not keep that.
    """

    version: int
    reason: str


@dataclass(frozen=True)
class Judgement:
    """What came of looking through an archive, newest version first.

    `chosen` is the first that can be trusted; `refused` all that cannot be, older ones too;
    `kept` all that were looked at.
    """

    chosen: Kept | None
    refused: tuple[Refused, ...]
    kept: tuple[Kept, ...]

    @property
    def too_new(self) -> int | None:
        """The newest version that only a later package can read, if it is not outdated."""
        oldest = self.chosen.version if self.chosen else 0
        versions = [
            k.version
            for k in self.kept
            if k.schema_version > schema.CURRENT and k.version >= oldest
        ]
        return max(versions, default=None)

    def whole_above(self, version: int) -> tuple[Kept, ...]:
        """Return those of later versions whose bytes are whole: no event tells of them."""
        return tuple(k for k in self.kept if k.version > version and k.state is not None)

    def versions(self, *, whole: bool = False) -> set[int]:
        """Return the versions that have a row, or one whose bytes are whole."""
        return {k.version for k in self.kept if k.state is not None or not whole}


def mend_index(connection: AgentConnection, run_id: str) -> tuple[Refused, ...]:
    """Make the archive's index again where a row that is whole does not stand in it as it is.

    Returns:
        The versions of such rows. They are judged by their bytes, as all others are.

    Raises:
        StorageError: Another process has the file locked.
    """
    try:
        missing = _not_in_index(connection, run_id)
        if missing:
            with connection:
                connection.execute(TWINS)
                connection.execute("REINDEX run_checkpoints")
    except (LessonError, sqlite3.Error, MemoryError) as error:
        if isinstance(error, StorageError) and is_locked(error):
            raise
        return ()  # what cannot be mended will be judged
    return tuple(Refused(version, "the index had its row otherwise") for version in missing)


def _not_in_index(connection: AgentConnection, run_id: str) -> list[int]:
    connection.execute("BEGIN")  # one look: nobody saves between the two
    try:
        found = {tuple(row) for row in connection.execute(IN_INDEX, (run_id,)).fetchall()}
        rows = connection.execute(IN_ROWS, (run_id,)).fetchall()
    finally:
        connection.execute("ROLLBACK")
    stored = {place: StoredCheckpoint(*values) for place, *values in rows}
    return [
        row.version
        for place, row in stored.items()
        if (place, run_id, row.version, row.sha256) not in found and digest(row) == row.sha256
    ]


def unreadable(connection: AgentConnection, run_id: str) -> frozenset[int]:
    """Return the places of the run's rows that SQLite itself cannot read.

    This must come before the transaction: SQLite writes no more in one that met a damaged page.
    """
    kept = read_kept(connection, run_id)
    return frozenset(k.checkpoint_id for k in kept if k.problem == UNREADABLE)


def judge(connection: AgentConnection, story: Story, lost: frozenset[int]) -> Judgement:
    """Look through the kept checkpoints of a run, newest first, for one that can be trusted.

    Args:
        connection: An open connection.
        story: The events of the run.
        lost: The places not to look at; see `unreadable`.
    """
    kept = tuple(read_kept(connection, story.run_id, lost=lost))
    if not kept:  # a run of part one
        return Judgement(None, (), ())
    by_version: dict[int, list[Kept]] = {version: [] for version in range(story.newest + 1)}
    for k in kept:
        by_version.setdefault(k.version, []).append(k)
    refused, chosen = [], None
    for version in sorted(by_version, reverse=True):
        trusted, problems = _judge_version(by_version[version], story)
        if by_version[version] or chosen is None:  # an older one may be removed to save space
            refused += [Refused(version, problem) for problem in problems]
        chosen = chosen or trusted
    return Judgement(chosen, tuple(refused), kept)


def _judge_version(kept: list[Kept], story: Story) -> tuple[Kept | None, list[str]]:
    """Return the trusted one of a version's rows, None for none, and what is wrong with them."""
    if not kept:
        return None, ["no checkpoint of it is kept"]
    problems = [k.problem for k in kept if k.state is None]
    whole = [k for k in kept if k.state is not None]
    fit = []
    for k in whole:
        try:
            check_siblings(cast(RunState, k.state), story)
            fit.append(k)
        except CheckpointError as error:
            problems.append(str(error))
    # Also one that does not fit is a rival: as long as it is there, `keep` refuses the other.
    if len({k.state for k in whole}) > 1:
        return None, [
            *problems,
            f"{len(whole)} checkpoints claim this version with different contents: none is trusted",
        ]
    return (fit[0] if fit else None), problems
