"""The states that a power cut may leave the disk in.

The model is POSIX at its strictest. A write or a truncation is safe once its file was synced after
it, a new or a deleted name once its folder was. Until then each of them may have reached the disk,
or not, or in part, whatever became of the others. Disks that lie about syncs and bits that rot are
left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from lesson_lib.labs.crash_everywhere.powerloss.disk import FOLDER, Operation
from lesson_lib.labs.crash_everywhere.powerloss.recording import Recording

SECTOR = 512  # bytes; a disk writes a sector whole or not at all


@dataclass(frozen=True)
class DiskState:
    """A state that a power cut may leave. Operations are named by their place in the log.

    Args:
        recording: The run that was under way.
        point: How many operations were done when the power went.
        version: The last checkpoint the agent was told of; -1 for none, not even the start.
        results: The keys of the tool results it was told of.
        pending: The operations that were not safe.
        reached: The operations that reached the disk.
        torn: The one of them that did in part, and what is left of it.
    """

    recording: Recording = field(repr=False)
    point: int
    version: int
    results: frozenset[str]
    pending: tuple[int, ...]
    reached: tuple[int, ...] = field(repr=False)
    torn: tuple[int, Operation] | None

    def files(self) -> dict[str, bytes]:
        """Return the files that a new process finds: what reached the disk, done once more."""
        torn = dict([self.torn]) if self.torn else {}
        done = [torn.get(place) or self.recording.log[place] for place in self.reached]
        names: dict[str, int] = {}
        for operation in done:
            if operation.kind == "create":
                names[operation.name] = operation.file
            elif operation.kind == "delete":
                names.pop(operation.name, None)
        contents = {file: bytearray() for file in names.values()}
        for operation in done:
            content, at = contents.get(operation.file), operation.at
            if content is None:
                continue
            if at > len(content):
                content.extend(bytes(at - len(content)))
            if operation.kind == "truncate":
                del content[at:]
            content[at : at + len(operation.data)] = operation.data
        return {name: bytes(contents[file]) for name, file in names.items()}


def disk_states(recording: Recording, width: int = 2) -> Iterator[DiskState]:
    """Yield the states that a power cut may leave, moment by moment; always the same ones.

    Args:
        recording: The run.
        width: How much to try. Up to 2 + log2(width) operations that are not safe, each mixture of
            kept and lost ones. Of more, all or none of them and so many random mixtures. In either
            case so many of them in turn: all up to it, all but it, it alone, it torn.
    """
    rng = random.Random(0)
    safe: list[int] = []
    pending: list[int] = []
    version, results = -1, frozenset[str]()
    for point, operation in enumerate([*recording.log, Operation("power cut", "")]):
        for kept, torn in _mixtures(recording.log, pending, width, rng):
            reached = tuple(sorted([*safe, *kept]))
            yield DiskState(recording, point, version, results, tuple(pending), reached, torn)
        if operation.kind == "checkpoint":
            version = operation.at
        elif operation.kind == "tool":
            results |= {operation.name}
        elif operation.kind == "sync":
            synced = [i for i in pending if _makes_safe(operation, recording.log[i])]
            safe += synced
            pending = [i for i in pending if i not in synced]
        else:
            pending.append(point)


def _makes_safe(sync: Operation, operation: Operation) -> bool:
    if operation.kind in ("create", "delete"):
        return sync.name == FOLDER
    return sync.name != FOLDER and sync.file == operation.file


def _mixtures(
    log: Sequence[Operation], pending: Sequence[int], width: int, rng: random.Random
) -> Iterator[tuple[Sequence[int], tuple[int, Operation] | None]]:
    """Yield which of the pending operations reached the disk, and what is left of a torn one."""
    if 2 ** len(pending) <= 4 * width:
        for kept in product((True, False), repeat=len(pending)):
            yield [i for i, reached in zip(pending, kept, strict=True) if reached], None
    else:
        yield (), None
        yield pending, None
        for _ in range(width):
            share = rng.choice((0.2, 0.5, 0.8, 0.95))
            yield [i for i in pending if rng.random() < share], None
    names = {i for i in pending if log[i].kind in ("create", "delete")}
    for n in sorted(rng.sample(range(len(pending)), min(width, len(pending)))):
        before, one, after = pending[:n], pending[n], pending[n + 1 :]
        yield (*before, one), None
        yield (*before, *after), None
        yield sorted({*names, one}), None
        parts = _torn(log, one)
        for part in rng.sample(parts, min(width, len(parts))):
            yield (*before, one), (one, part)
            yield pending, (one, part)


def _torn(log: Sequence[Operation], place: int) -> list[Operation]:
    """Return what may be left of a write: its beginning, its end, or only a longer file."""
    write = log[place]
    cuts = range(SECTOR - write.at % SECTOR, len(write.data), SECTOR)
    beginnings = [replace(write, data=write.data[:cut]) for cut in cuts]
    ends = [replace(write, at=write.at + cut, data=write.data[cut:]) for cut in cuts]
    longest = max((i.at + len(i.data) for i in log[:place] if i.file == write.file), default=0)
    grows = write.kind == "write" and write.at + len(write.data) > longest
    return beginnings + ends + [replace(write, data=bytes(len(write.data)))] * grows
