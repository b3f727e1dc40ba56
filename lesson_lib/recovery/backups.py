"""Backups: a whole copy while agents write, verified before it bears its name."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from lesson_lib.checkpoints.archive import agree, read_kept
from lesson_lib.errors import CorruptStateError, ForeignFileError, LessonError, StorageError
from lesson_lib.stores.sqlite import AgentConnection, connect, load_state
from lesson_lib.stores.sqlite.connection import APPLICATION_ID, utc_now


def back_up(connection: AgentConnection, target: Path) -> dict[str, int]:
    """Copy the database into a new file, verify the copy, and give it its name.

    The copy is made in one step, from one snapshot: writers go on meanwhile. In several steps
    (`pages=…`) SQLite begins again whenever another connection has written in between
    (SQLite, "Online Backup API"), and so need never end.

    Args:
        connection: An open connection, outside of a transaction.
        target: The backup, a file that does not exist yet, in a folder that does. It gets the
            permissions of the database. A process that dies leaves a `.part` file beside it.

    Returns:
        The version of each run in the backup.

    Raises:
        StorageError: There is such a file, or it cannot be written.
        CorruptStateError: The copy cannot be trusted, and was removed.
    """
    try:
        target = Path(target).resolve()
        for suffix in ("", "-wal", "-journal"):
            # A journal of another file would be played into the new one.
            if os.path.lexists(found := target.with_name(target.name + suffix)):
                raise StorageError(f"{found} is there already: name a new file")
        acknowledged = _versions(connection)
        descriptor, name = tempfile.mkstemp(".part", f"{target.name}-", target.parent)
        os.close(descriptor)
        part = Path(name)
        try:
            part.chmod(stat.S_IMODE(connection.path.stat().st_mode))
            with closing(sqlite3.connect(part, autocommit=True)) as copy:
                connection.backup(copy)
            versions = verify(part, acknowledged)
            _name(part, target)
        except BaseException:
            for suffix in ("", "-wal", "-shm"):
                part.with_name(part.name + suffix).unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except LessonError:
        raise
    except (OSError, ValueError, RuntimeError, sqlite3.Error) as error:
        raise StorageError(f"{target} cannot be written: {error}") from error
    return versions


def restore(backup: Path, database: Path) -> dict[str, int]:
    """Make a database of a backup, under a name where none is now.

    Move a damaged database away first, with its `-wal`. Stop the agents before: one that goes on
    with what it knew from before would save versions that the backup does not lead to.

    Returns, raises: See `back_up`.
    """
    verify(backup)
    with closing(_opened(backup)) as connection:
        return back_up(connection, database)


def verify(database: Path, acknowledged: Mapping[str, int] | None = None) -> dict[str, int]:
    """Look at each page and each run of a database, and return the versions of its runs.

    A file without a `-wal` beside it is only read, and may stay as it is for years.

    Args:
        database: The file, a database or a backup.
        acknowledged: Versions of runs that it must have reached, known from elsewhere.

    Raises:
        StorageError: It cannot be opened.
        CorruptStateError: Pages, references, runs or their newest checkpoints cannot be trusted,
            or a run is missing or older than it should be.
    """
    try:
        with closing(_opened(database)) as connection:
            # SQLite passes over each CHECK of a file that it may not write: so look at a copy.
            with closing(sqlite3.connect("", autocommit=True)) as copy:
                connection.backup(copy)
                found = copy.execute("PRAGMA integrity_check").fetchall()
                if found != [("ok",)] or copy.execute("PRAGMA foreign_key_check").fetchall():
                    raise CorruptStateError(f"{database} is damaged: take another backup")
            versions = _versions(connection)
            for run_id in versions:
                _verify_run(connection, run_id)
    except LessonError:
        raise
    except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
        raise CorruptStateError(f"{database} is damaged: take another backup") from error
    for run_id, version in (acknowledged or {}).items():
        if (found_version := versions.get(run_id, -1)) < version:
            has = "no such run" if found_version < 0 else f"version {found_version}"
            raise CorruptStateError(
                f"{run_id} was at version {version} before, this file has {has}: copy again"
            )
    return versions


def _opened(database: Path) -> AgentConnection:
    """Open a database to read it. One that nobody has in use is not changed by that."""
    try:
        path = Path(database).resolve()
        if not path.is_file():  # `connect` would make it
            raise StorageError(f"there is no file {database}: name a database")
        if any(os.path.lexists(f"{path}{suffix}") for suffix in ("-wal", "-journal")):
            return connect(path)
        uri = f"file:{quote(path.as_posix())}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, autocommit=True, factory=AgentConnection)
    except (OSError, ValueError, RuntimeError, sqlite3.Error) as error:
        raise StorageError(f"{database} cannot be opened: {error}") from error
    connection.path, connection.timeout, connection.clock = path, 0, utc_now
    connection.row_factory = sqlite3.Row
    try:
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        if owner != APPLICATION_ID:
            raise ForeignFileError(f"{database} is no agent database: name another file")
    except BaseException:
        connection.close()
        raise
    return connection


def _verify_run(connection: AgentConnection, run_id: str) -> None:
    state = load_state(connection, run_id)
    has_archive = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE name = 'run_checkpoints'"
    ).fetchone()
    kept = read_kept(connection, run_id, version=state.version) if has_archive else ()
    for k in kept:
        problem = k.problem
        if k.state is not None and not agree(state, k.state, k.schema_version):
            problem = "agent_runs holds another state"
        if problem:
            raise CorruptStateError(
                f"version {k.version} of {run_id} cannot be trusted: {problem}. Recover it first"
            )


def _versions(connection: AgentConnection) -> dict[str, int]:
    rows = connection.execute("SELECT run_id, version FROM agent_runs ORDER BY run_id").fetchall()
    return {row["run_id"]: row["version"] for row in rows}


def _name(part: Path, target: Path) -> None:
    """Give a file its name, unless a file of that name has appeared meanwhile."""
    try:
        if os.name == "nt":
            part.rename(target)  # overwrites nothing there
        else:
            os.link(part, target)
            part.unlink()
    except FileExistsError as error:
        raise StorageError(f"{target} is there already: name a new file") from error


def _sync_folder(folder: Path) -> None:
    # The new name is an entry of the folder, and survives a power failure only then.
    with suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
