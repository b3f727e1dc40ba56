"""A disk that logs what SQLite does to it: each create, write, truncate, delete and sync.

The SQLite of apsw lets Python stand in for the operating system (a VFS).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import apsw

FOLDER = "the folder"


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


class LoggedDisk(apsw.VFS):
    """What SQLite takes for the operating system; it logs what it is asked to do."""

    def __init__(self) -> None:
        """Make it the default until `unregister`."""
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

    def __init__(self, disk: LoggedDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
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
