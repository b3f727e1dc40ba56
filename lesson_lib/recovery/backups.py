"""Backups: a whole copy while agents write, verified before it bears its name."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from lesson_lib.checkpoints.archive import agree, create_archive, is_log, read_kept
from lesson_lib.clock import utc_now
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import CorruptStateError, ForeignFileError, LessonError, StorageError
from lesson_lib.sqlite import AgentConnection, load_state
from lesson_lib.sqlite.connection import explain
from lesson_lib.sqlite.opening import APPLICATION_ID


def back_up(connection: AgentConnection, target: Path, schema: ContextSchema) -> dict[str, int]:
    """Copy the database into a new file, verify the copy, name it, and return its runs' versions.

    The copy is made in one step, from one snapshot, and writers go on meanwhile. In several steps
    (`pages=…`) SQLite begins again whenever another connection has written, and so need never end.

    Args:
        connection: An open connection, outside of a transaction.
        target: The backup, a file that does not exist yet, in a folder that does. It gets the
            permissions of the database. A process that dies leaves a `.part` folder beside it.
        schema: What the contexts look like.

    Raises:
        StorageError: There is such a file, or it cannot be written.
        CorruptStateError: The copy cannot be trusted, and was removed.
    """
    acknowledged = _versions(connection)
    with _explained(target):
        target = Path(target).resolve()
        for suffix in ("", "-wal", "-journal"):
            # A journal of another file would be played into the new one.
            if os.path.lexists(found := f"{target}{suffix}"):
                raise StorageError(f"{found} is there already: name a new file")
        with TemporaryDirectory(".part", f"{target.name}-", target.parent) as folder:
            part = Path(folder, "copy.db")
            with closing(sqlite3.connect(part, autocommit=True)) as copy:
                connection.backup(copy)
            part.chmod(stat.S_IMODE(connection.path.stat().st_mode))
            versions = verify(part, schema, acknowledged)
            if os.name == "nt":
                part.rename(target)  # overwrites nothing there
            else:
                os.link(part, target)
        with suppress(OSError):  # Windows cannot open a folder
            # The new name is an entry of the folder, and survives a power failure only then.
            descriptor = os.open(target.parent, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    return versions


def restore(backup: Path, database: Path, schema: ContextSchema) -> dict[str, int]:
    """Make a database of a backup, under a name where none is now.

    Move a damaged database away first, with its `-wal`. Stop the agents before: one that goes on
    with what it knew from before would save versions that the backup does not lead to. See
    `back_up` for the rest.
    """
    with _copied(backup) as connection:
        return back_up(connection, database, schema)


def verify(
    database: Path, schema: ContextSchema, acknowledged: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Look at each page and each run of a database, and return the versions of its runs.

    The events of a run that is kept as a log are not replayed here: load it to know.

    Args:
        database: The file, a database or a backup.
        schema: What the contexts look like.
        acknowledged: Versions of runs that it must have reached, known from elsewhere.

    Raises:
        StorageError: It cannot be opened.
        CorruptStateError: Pages, references, runs or their newest checkpoints cannot be trusted,
            or a run is missing or older than it should be.
    """
    with _copied(database) as copy:
        (found,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok" or copy.execute("PRAGMA foreign_key_check").fetchone():
            raise CorruptStateError(f"{database} is damaged: take another backup")
        versions = _versions(copy)
        create_archive(copy)  # of runs that nobody kept it holds nothing
        for run_id, version in versions.items():
            if is_log(copy, run_id):
                continue
            state = load_state(copy, run_id)
            for kept in read_kept(copy, run_id, schema, version=version):
                if not agree(state, kept, schema):
                    problem = kept.problem or "agent_runs holds another state"
                    raise CorruptStateError(
                        f"version {version} of {run_id} cannot be trusted: {problem}. Recover it"
                    )
    for run_id, version in (acknowledged or {}).items():
        if versions.get(run_id, -1) < version:
            has = f"version {versions[run_id]}" if run_id in versions else "no such run"
            raise CorruptStateError(
                f"{run_id} was at version {version} before, this file has {has}: copy again"
            )
    return versions


@contextmanager
def _copied(database: Path) -> Iterator[AgentConnection]:
    """Give a copy of a database to look at. The file is only read, if nobody has it in use."""
    with _explained(database):
        path = Path(database).resolve(strict=True)
        in_use = any(os.path.lexists(f"{path}{suffix}") for suffix in ("-wal", "-journal"))
        uri = f"file:{quote(path.as_posix())}?mode={'rw' if in_use else 'ro&immutable=1'}"
        # A copy, since SQLite passes over each CHECK of a file that it may not write.
        with closing(sqlite3.connect("", autocommit=True, factory=AgentConnection)) as copy:
            copy.path, copy.timeout, copy.clock, copy.row_factory = path, 0, utc_now, sqlite3.Row
            with closing(sqlite3.connect(uri, uri=True, autocommit=True)) as source:
                source.backup(copy)
            (owner,) = copy.execute("PRAGMA application_id").fetchone()
            if owner != APPLICATION_ID:
                raise ForeignFileError(f"{database} is no agent database: name another file")
            yield copy


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise errors of this package only."""
    try:
        yield
    except LessonError:
        raise
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, sqlite3.Error) as error:
        raise explain(error, path) or StorageError(f"{path} cannot be used: {error}") from error


def _versions(connection: AgentConnection) -> dict[str, int]:
    rows = connection.execute("SELECT run_id, version FROM agent_runs ORDER BY run_id").fetchall()
    return {row["run_id"]: row["version"] for row in rows}
