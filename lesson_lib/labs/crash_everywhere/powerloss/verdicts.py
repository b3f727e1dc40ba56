"""What a new process finds after a power cut, and what it misses.

One SQLite writes (that of apsw), another one reads (that of `sqlite3`). How many disk states there
are and how many of them cannot be read depends on their versions; which settings are safe does not.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson_lib.json_text import from_json
from lesson_lib.labs.crash_everywhere.powerloss.recording import DATABASE, MEMORY, Recording
from lesson_lib.labs.crash_everywhere.powerloss.states import DiskState, disk_states
from lesson_lib.tickets import ticket_agent


@dataclass(frozen=True)
class Found:
    """What a new process finds: what is wrong, how far the run has come (-1: there is none)."""

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


def examined(
    recording: Recording, width: int = 2, known: dict[int, Found] | None = None
) -> Iterator[tuple[DiskState, Verdict]]:
    """Yield each disk state (see there for `width`) with its verdict; equal files are opened once.

    What was found goes into `known`, by a hash of the files.
    """
    known = {} if known is None else known
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for state in disk_states(recording, width):
            files = state.files()
            key = hash(frozenset(files.items()))  # the files themselves would fill the memory
            if key not in known:
                known[key] = look(files, Path(folder))
            yield state, judge(state, known[key])


def judge(state: DiskState, found: Found) -> Verdict:
    """Compare what a new process finds with what the agent had been told."""
    if found.problem:
        return Verdict(found, 0, frozenset())
    return Verdict(found, max(0, state.version - found.version), state.results - found.results)


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
    promises = {
        "no sequence missing": [event[1] for event in events] == [*range(1, len(events) + 1)],
        "one event for each checkpoint": saved == [*range(1, version + 1)],
        "one event for each tool result": sorted(executed) == sorted(row[0] for row in effects),
        "the next action fits": next_action == [*ticket_agent.actions, None][version],
    }
    broken = [promise for promise, is_kept in promises.items() if not is_kept]
    return f"not kept: {broken[0]}" if broken else ""
