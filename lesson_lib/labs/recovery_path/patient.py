"""A run that is damaged, recovered and finished: what was reported, and what came of it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

from lesson_lib.checkpoints.archive import Keep, create_archive
from lesson_lib.labs.recovery_path.damages import damage
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.recovery.recover import Report, recover
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.store import Rider
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

RUN = "run-T104"
KEEP = (Keep(ticket_agent.schema),)


@dataclass(frozen=True)
class Patient:
    """A file with the run of T104, and its ledger; both can be copied and damaged.

    Args:
        folder: Where the files are.
    """

    folder: Path

    @property
    def database(self) -> Path:
        """The database file."""
        return self.folder / "agent.db"

    @property
    def ledger(self) -> Ledger:
        """The witness."""
        return Ledger(self.folder / "ledger.txt")

    @property
    def tools(self) -> Tools:
        """The agent's tools; their calls go into the ledger."""
        return Tools(read_runbooks(), self.ledger)

    @contextmanager
    def session(
        self, name: str = "session-1", *, riders: tuple[Rider, ...] = KEEP, timeout: float = 5.0
    ) -> Iterator[SQLiteStore]:
        """Open the file for a session, which keeps each checkpoint in the archive."""
        with closing(connect(self.database, timeout=timeout)) as connection:
            yield SQLiteStore(connection, name, riders)

    def start(self, version: int) -> RunState:
        """Make the run and perform its first actions."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.session() as store:
            create_schema(store.connection)
            create_archive(store.connection)
            state = ticket_agent.start(store, RUN)
            while state.version < version:
                state = ticket_agent.run_next_action(store, state, self.tools)
        return state

    def copy(self, folder: Path) -> Patient:
        """Return a copy of it in a new folder."""
        shutil.copytree(self.folder, folder)
        return Patient(folder)

    def finish(self, store: SQLiteStore, state: RunState) -> RunState:
        """Go on to the end."""
        return ticket_agent.run_to_end(store, state, self.tools)

    def damage_and_recover(self, name: str, version: int) -> Outcome:
        """Damage a copy of the file, recover the run in it and finish it, as `session-2`."""
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            copy = self.copy(Path(folder, "copy"))
            damage(copy.database, name, version)
            with copy.session("session-2") as store:
                before, calls = len(store.read_events(RUN)), len(copy.ledger.lines())
                report = recover(store.connection, RUN, store.session, ticket_agent)
                events = store.read_events(RUN)[before:]
                end = None if report.state is None else copy.finish(store, report.state)
            recorded = tuple(dict.fromkeys(event.event_type for event in events))
            after = tuple(copy.ledger.lines()[calls:])
            return Outcome(name, version, report, end, after, recorded)


@dataclass(frozen=True)
class Outcome:
    """What came of a damage to a run at a version: the report, the end, the calls, the events.

    `end` is None for a run that must not go on now; `calls` are those of tools after the recovery;
    `recorded` has each type of event once.
    """

    damage: str
    version: int
    report: Report
    end: RunState | None
    calls: tuple[str, ...]
    recorded: tuple[str, ...]

    def row(self, wanted: RunState) -> dict[str, object]:
        """Return it as a row of a table; `wanted` is the end of a run that nobody damaged."""
        report, end, why = self.report, self.end, dict[str, list[str]]()
        for refused in report.refused:
            why.setdefault(shorter(refused.reason), []).append(str(refused.version))
        return {
            "damage": self.damage,
            "refused": "; ".join(f"{', '.join(at)}: {reason}" for reason, at in why.items()),
            "from": report.chosen,
            "now": report.state.version if report.state else None,
            "end": end and ("same" if end.context["reply"] == wanted.context["reply"] else "other"),
            "calls": len(self.calls),
        }

    def step_row(self) -> dict[str, object]:
        """Return the step that decided, as a row of a table."""
        return {
            "unusable": self.damage,
            "step": self.report.step,
            "goes on from": self.report.chosen,
            "calls after": len(self.calls),
            "recorded": ", ".join(self.recorded),
        }


def restored_under(patient: Patient, store: SQLiteStore) -> tuple[RunState, RunState]:
    """Put a backup back under a running agent; return its state and that of the one that came next.

    The store's session goes on from version 1 to 3. Then the file is what it was at version 1, the
    runbook gets another step, and `session-2` goes on from version 1 to 3, too.

    Args:
        patient: Its run is at version 1.
        store: A store of its file.
    """

    def two_actions(store: SQLiteStore, tools: Tools) -> RunState:
        state = ticket_agent.resume(store, RUN)
        for _ in range(2):
            state = ticket_agent.run_next_action(store, state, tools)
        return state

    with closing(sqlite3.connect(patient.folder / "backup.db", autocommit=True)) as backup:
        store.connection.backup(backup)
        first = two_actions(store, patient.tools)
        backup.backup(store.connection)
    code = first.context["runbook"]["code"]
    changed = replace(patient.tools.runbooks[code], step="Call the new contractor.")
    tools = Tools(patient.tools.runbooks | {code: changed}, patient.ledger)
    return first, two_actions(replace(store, session="session-2"), tools)


def shorter(reason: str) -> str:
    """Return the first words of a reason, without what a library adds to it in its own words."""
    return shorten(reason.removeprefix("its ").partition(":")[0], 40, placeholder=" …")
