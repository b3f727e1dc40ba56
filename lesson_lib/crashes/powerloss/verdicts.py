"""What a new process finds after a power cut, and what it misses.

One SQLite writes (that of apsw), another one reads (that of `sqlite3`). How many disk states there
are and how many of them cannot be read depends on their versions; which settings are safe does not.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lesson_lib import agent, crash
from lesson_lib.crashes.powerloss.recording import DATABASE, MEMORY, TICKET, Operation, Recording
from lesson_lib.crashes.powerloss.states import DiskState, disk_states
from lesson_lib.json_text import from_json
from lesson_lib.ledger import Ledger


@dataclass(frozen=True)
class Found:
    """What a new process finds: what is wrong ("" for nothing) and how far the run has come.

    `version` is -1 where there is no run.
    """

    problem: str
    version: int = -1
    results: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """What a new process finds, and what it misses of what the agent had been told.

    `lost_checkpoints` counts versions; the start of the run, version 0, is one of them.
    """

    found: Found
    lost_checkpoints: int
    lost_results: frozenset[str]

    def __str__(self) -> str:
        """Return the verdict in words: ok, corrupt, or what is lost."""
        if self.found.problem:
            return f"corrupt: {self.found.problem}"
        n = self.lost_checkpoints
        lost = [f"{n} checkpoint{'s' * (n > 1)}"] * (n > 0)
        lost += [f"the result of {key}" for key in sorted(self.lost_results)]
        return f"lost: {', '.join(lost)}" if lost else "ok"


@dataclass(frozen=True)
class Survey:
    """What a power cut may do under one setting.

    Args:
        journal_mode: The pragma.
        synchronous: The pragma.
        points: The moments at which the power may go: before each operation, and at the end.
        states: How many different disks were looked at.
        corrupt: How many of them cannot be read or break a promise.
        losing_points: The moments at which something may be lost that the agent was told is saved.
        most_lost: The most checkpoints lost at once, the start of the run being one.
        fsyncs: The syncs of one checkpoint, those of the folder included.
    """

    journal_mode: str
    synchronous: str
    points: int
    states: int
    corrupt: int
    losing_points: int
    most_lost: int
    fsyncs: int

    @property
    def verdict(self) -> str:
        """What a power cut may do, in words."""
        if self.corrupt:
            return "corrupts"
        return "loses what it acknowledged" if self.losing_points else "loses nothing"


def survey(recording: Recording, width: int = 2) -> Survey:
    """Judge what a power cut may leave of a run; see `disk_states` for `width`."""
    known: dict[bytes, Found] = {}
    losing, most_lost = set(), 0
    for state, verdict in examined(recording, width, known):
        if verdict.lost_checkpoints or verdict.lost_results:
            losing.add(state.point)
            most_lost = max(most_lost, verdict.lost_checkpoints)
    versions = [each.at for each in recording.log if each.kind == "checkpoint" and each.at > 0]
    return Survey(
        journal_mode=recording.journal_mode,
        synchronous=recording.synchronous,
        points=len(recording.log) + 1,
        states=len(known),
        corrupt=sum(found.problem != "" for found in known.values()),
        losing_points=len(losing),
        most_lost=most_lost,
        fsyncs=max(
            sum(each.kind == "sync" for each in operations(recording, version).values())
            for version in versions
        ),
    )


def operations(recording: Recording, version: int) -> dict[int, Operation]:
    """Return what SQLite does for one checkpoint, by the place in the log.

    It begins after what the agent was told before, and ends when it is told of this checkpoint.

    Args:
        recording: The run.
        version: The version of the checkpoint, from 1.
    """
    log = recording.log
    told = [i for i, each in enumerate(log) if each.kind in ("checkpoint", "tool")]
    (span,) = (
        range(before + 1, own + 1)
        for before, own in pairwise(told)
        if (log[own].kind, log[own].at) == ("checkpoint", version)
    )
    return {place: log[place] for place in span}


def first_loss(
    recording: Recording, version: int = -1, width: int = 2
) -> tuple[DiskState, Verdict] | None:
    """Return the first disk state that is not ok, None if all are.

    Args:
        recording: The run.
        version: Pass over the moments before the agent was told of this version.
        width: See `disk_states`.
    """
    for state, verdict in examined(recording, width):
        if state.version >= version and str(verdict) != "ok":
            return state, verdict
    return None


def go_on(state: DiskState) -> tuple[str, list[str]]:
    """Let a new process resume the run; return its reply and the keys of the tools it called."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        write_files(state.files(), Path(folder))
        ledger = Ledger(Path(folder, "ledger.txt"))
        end = crash.run_agent_in_child(Path(folder, DATABASE), ledger.path, TICKET, "session-2")
        return end.printed.strip(), ledger.lines()


def examine(state: DiskState) -> Verdict:
    """Open a disk state as a new process would and judge what is there."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        return _judge(state, look(state.files(), Path(folder)))


def examined(
    recording: Recording, width: int = 2, known: dict[bytes, Found] | None = None
) -> Iterator[tuple[DiskState, Verdict]]:
    """Yield each disk state with its verdict; equal files are opened once.

    Args:
        recording: The run.
        width: See `disk_states`.
        known: Takes what was found, by a digest of the files.
    """
    known = {} if known is None else known
    seen: dict[tuple[Any, ...], Found] = {}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for state in disk_states(recording, width):
            key = (state.reached, state.torn)
            if key not in seen:
                files = state.files()
                digest = _digest(files)
                if digest not in known:
                    known[digest] = look(files, Path(folder))
                seen[key] = known[digest]
            yield state, _judge(state, seen[key])


def _judge(state: DiskState, found: Found) -> Verdict:
    if found.problem:
        return Verdict(found, 0, frozenset())
    return Verdict(found, max(0, state.version - found.version), state.results - found.results)


def _digest(files: Mapping[str, bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Put files into a folder."""
    for name, content in files.items():
        (folder / name).write_bytes(content)


def look(files: Mapping[str, bytes], folder: Path) -> Found:
    """Put files into an empty folder, open the database, hold it to the promises, tidy up."""
    write_files(files, folder)
    try:
        with closing(sqlite3.connect(folder / DATABASE, autocommit=True)) as connection:
            # For speed: nobody else will want this copy, so no syncs and no -shm file for it.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
            if integrity != "ok":
                return Found(f"integrity_check: {integrity}")
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                return Found("")
            runs, events, effects = (
                connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
                for name in ("agent_runs", "agent_events", "tool_effects")
            )
    except sqlite3.DatabaseError as error:
        return Found(str(error))
    finally:
        for path in folder.iterdir():
            path.unlink()
    version = runs[0][5] if runs else -1
    results = frozenset(row[0] for row in effects)
    return Found(_broken_promise(runs, events, effects), version, results)


def _broken_promise(runs: Sequence[Any], events: Sequence[Any], effects: Sequence[Any]) -> str:
    """Return what the rows break, "" for nothing."""
    if not runs:
        return "rows without their run" if events or effects else ""
    _, _, _, next_action, _, version = runs[0]
    details = [(event[3], from_json(event[5])) for event in events]
    saved = [detail["version"] for kind, detail in details if kind == "checkpoint_saved"]
    executed = [detail["key"] for kind, detail in details if kind == "tool_executed"]
    for holds, promise in (
        ([event[1] for event in events] == list(range(1, len(events) + 1)), "no sequence missing"),
        (saved == list(range(1, version + 1)), "one event for each checkpoint"),
        (sorted(executed) == sorted(row[0] for row in effects), "one event for each tool result"),
        (next_action == [*agent.ACTIONS, None][version], "the next action fits the version"),
    ):
        if not holds:
            return f"not kept: {promise}"
    return ""
