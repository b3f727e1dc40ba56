"""What each setting of SQLite may lose to a power cut, and how a new process goes on."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from lesson_lib.labs.crash_everywhere.powerloss.recording import (
    DATABASE,
    MEMORY,
    TICKET,
    Recording,
    operations,
)
from lesson_lib.labs.crash_everywhere.powerloss.states import DiskState
from lesson_lib.labs.crash_everywhere.powerloss.verdicts import (
    Found,
    Verdict,
    examined,
    write_files,
)
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger


@dataclass(frozen=True)
class Survey:
    """What a power cut may do under one setting, journal mode and synchronous level.

    Args:
        states: How many different disks were looked at.
        corrupt: How many of them cannot be read or break a promise.
        losing_points: The moments at which something may be lost that the agent was told is saved.
        most_lost: The most checkpoints lost at once, the start of the run being one.
        fsyncs: The syncs of one checkpoint, those of the folder included.
    """

    journal_mode: str
    synchronous: str
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
    known: dict[int, Found] = {}
    losing, most_lost = set(), 0
    for state, verdict in examined(recording, width, known):
        if verdict.lost_checkpoints or verdict.lost_results:
            losing.add(state.point)
            most_lost = max(most_lost, verdict.lost_checkpoints)
    versions = [each.at for each in recording.log if each.kind == "checkpoint" and each.at > 0]
    return Survey(
        journal_mode=recording.journal_mode,
        synchronous=recording.synchronous,
        states=len(known),
        corrupt=sum(found.problem != "" for found in known.values()),
        losing_points=len(losing),
        most_lost=most_lost,
        fsyncs=max(
            sum(each.kind == "sync" for each in operations(recording, version).values())
            for version in versions
        ),
    )


def first_loss(recording: Recording, version: int = -1) -> tuple[DiskState, Verdict] | None:
    """Return the first disk state that is not ok, None if all are.

    The moments before the agent was told of `version` are passed over.
    """
    for state, verdict in examined(recording):
        if state.version >= version and str(verdict) != "ok":
            return state, verdict
    return None


def go_on(state: DiskState) -> tuple[str, list[str]]:
    """Let a new process resume the run; return its reply and the keys of the tools it called."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        write_files(state.files(), Path(folder))
        ledger = Ledger(Path(folder, "ledger.txt"))
        end = run_agent_in_child(Path(folder, DATABASE), ledger.path, TICKET, "session-2")
        return end.printed.strip(), ledger.lines()
