"""What SQLite does to the disk during a run of the agent: each create, write, sync and delete.

The agent's statements are captured once and sent again to the SQLite that comes with apsw, which
lets Python stand in for the operating system (a VFS). How many operations there are depends on the
version of apsw; clock, randomness and the disk's properties are fixed, so nothing else matters.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, override

import apsw

from lesson_lib import agent
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite import connect, create_schema
from lesson_lib.stores.sqlite.connection import AgentCursor
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

TICKET = "T104"
DATABASE = "agent.db"
FOLDER = "the folder"
LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")
SETTINGS = tuple((mode, level) for mode in ("DELETE", "WAL") for level in LEVELS)
# A folder in memory, where there is one: nothing here has to outlive its process.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class Operation:
    """Something SQLite did to the disk, or what the agent was told.

    Args:
        kind: create, write, truncate, delete, sync; or checkpoint, tool: the agent was told that
            this checkpoint or tool result is saved.
        name: The file, `FOLDER`, or the tool's key.
        at: Where a write begins, or how long a truncated file is, in bytes; or the version.
        data: The bytes written.
        file: A number of the file: a journal that is deleted and made again is another file.
    """

    kind: str
    name: str
    at: int = 0
    data: bytes = field(default=b"", repr=False)
    file: int = 0

    def __str__(self) -> str:
        """Return the operation in words."""
        return {
            "write": f"write {self.name} {len(self.data)} bytes at {self.at}",
            "truncate": f"truncate {self.name} to {self.at} bytes",
            "checkpoint": f"acknowledge version {self.at}",
            "tool": f"acknowledge {self.name}",
        }.get(self.kind, f"{self.kind} {self.name}")


@dataclass(frozen=True)
class Recording:
    """A whole run of the agent, from an empty folder to the closed database."""

    journal_mode: str
    synchronous: str
    log: tuple[Operation, ...] = field(repr=False)


def package_setting() -> tuple[str, str]:
    """Return the journal mode and the synchronous level that `connect` really sets."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        closing(connect(Path(folder, DATABASE))) as connection,
    ):
        mode, level = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        )
    return mode.upper(), LEVELS[level]


def record(journal_mode: str, synchronous: str) -> Recording:
    """Run the agent under two pragmas and return what SQLite did to the disk.

    Args:
        journal_mode: DELETE or WAL.
        synchronous: One of `LEVELS`.

    Raises:
        ValueError: The pair is none of `SETTINGS`.
    """
    if (journal_mode, synchronous) not in SETTINGS:
        raise ValueError(f"{journal_mode}, {synchronous} is no known setting: see SETTINGS")
    wanted = {"journal_mode": journal_mode, "synchronous": synchronous}
    steps, disk = _steps(), _Disk()
    try:
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            closing(apsw.Connection(str(Path(folder, DATABASE)), vfs=disk.name)) as connection,
        ):
            connection.pragma("page_size", 4096)
            for step in steps:
                if isinstance(step, Operation):
                    disk.log.append(step)
                else:
                    sql = re.sub(
                        r"^PRAGMA (journal_mode|synchronous) = \w+",
                        lambda found: f"PRAGMA {found[1]} = {wanted[found[1]]}",
                        step[0],
                    )
                    connection.execute(sql, step[1]).fetchall()
            taken = connection.pragma("journal_mode"), connection.pragma("synchronous")
    finally:
        disk.unregister()
        apsw.randomness(0)  # the next one who asks is seeded by the operating system again
    return Recording(taken[0].upper(), LEVELS[taken[1]], tuple(disk.log))


def without(recording: Recording, place: int) -> Recording:
    """Return a recording in which SQLite never did the operation at this place of the log."""
    return replace(recording, log=recording.log[:place] + recording.log[place + 1 :])


@cache
def _steps() -> tuple[Operation | tuple[str, Any], ...]:
    """Run the agent; return its statements with their parameters, and what it was told."""
    steps: list[Operation | tuple[str, Any]] = []
    plain = AgentCursor.execute

    def execute(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        steps.append((sql, parameters))
        return plain(cursor, sql, parameters)

    def passing(point: str) -> None:
        if point.endswith(":before_checkpoint"):
            told = [Operation("tool", key) for key in ledger.lines()]
            steps.extend(operation for operation in told if operation not in steps)

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        ledger = Ledger(Path(folder, "ledger.txt"))
        tools, ticket = Tools(read_runbooks(), ledger), find_ticket(read_tickets(), TICKET)
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)  # the times belong to what is written
        AgentCursor.execute = execute  # type: ignore[method-assign, assignment]
        try:
            with closing(connect(Path(folder, DATABASE), clock=lambda: noon)) as connection:
                create_schema(connection)
                state = agent.start(connection, ticket, "session-1")
                steps.append(Operation("checkpoint", DATABASE, state.version))
                while state.next_action is not None:
                    state = agent.run_next_action(
                        connection, state, "session-1", tools, passing=passing
                    )
                    steps.append(Operation("checkpoint", DATABASE, state.version))
        finally:
            AgentCursor.execute = plain  # type: ignore[method-assign]
    return tuple(steps)


class _Disk(apsw.VFS):
    """What SQLite takes for the operating system; it logs what it is asked to do."""

    def __init__(self) -> None:
        self.name, self.base = "logged", apsw.vfs_names()[0]
        self.log: list[Operation] = []
        self.files: dict[str, int] = {}
        # Only the default one is asked for randomness, and only at the first need of it.
        super().__init__(self.name, self.base, makedefault=True)
        apsw.randomness(0)

    @override
    def xRandomness(self, count: int) -> bytes:
        return bytes(count)

    @override
    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags) if name else apsw.VFSFile(self.base, name, flags)

    @override
    def xDelete(self, path: str, sync_folder: bool) -> None:
        super().xDelete(path, sync_folder)
        name = Path(path).name
        self.log.append(Operation("delete", name, file=self.files[name]))
        if sync_folder:
            self.log.append(Operation("sync", FOLDER))


class _File(apsw.VFSFile):
    """An open file, with the same log. Its sync is logged and not done: nothing is lost here."""

    def __init__(self, disk: _Disk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        path = Path(name if isinstance(name, str) else name.filename())
        self.log, self.name = disk.log, path.name
        if not path.exists():
            disk.files[self.name] = len(self.log)
            self.log.append(Operation("create", self.name, file=len(self.log)))
        self.file = disk.files[self.name]
        # As SQLite does on Unix: the first sync of a journal syncs its folder too.
        self.is_new = bool(flags[0] & (apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL))
        super().__init__(disk.base, name, flags)

    @override
    def xWrite(self, data: Any, offset: int) -> None:
        self.log.append(Operation("write", self.name, offset, bytes(data), self.file))
        super().xWrite(data, offset)

    @override
    def xTruncate(self, size: int) -> None:
        self.log.append(Operation("truncate", self.name, size, file=self.file))
        super().xTruncate(size)

    @override
    def xSync(self, flags: int) -> None:
        self.log.append(Operation("sync", self.name, file=self.file))
        if self.is_new:
            self.log.append(Operation("sync", FOLDER))
        self.is_new = False

    @override
    def xDeviceCharacteristics(self) -> int:
        # What most disks are: a write cut short harms no byte beside it. The same on each machine.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE
