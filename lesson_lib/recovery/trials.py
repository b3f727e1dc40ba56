"""A run that is damaged, recovered and finished: what was reported, and what came of it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

from lesson_lib import agent
from lesson_lib.checkpoints.archive import create_archive, save_kept
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.recovery.damage import damage
from lesson_lib.recovery.recover import recover
from lesson_lib.recovery.report import Report
from lesson_lib.stores.sqlite import AgentConnection, connect, create_schema, read_events
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

RUN = "run-T104"


@dataclass(frozen=True)
class Trial:
    """A file with the run of T104 at a version, and its ledger; both can be copied and damaged.

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

    def start(self, version: int) -> RunState:
        """Make the run and perform its first actions, each kept in the archive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with closing(connect(self.database)) as connection:
            create_schema(connection)
            create_archive(connection)
            state = agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")
            while state.version < version:
                state = agent.run_next_action(
                    connection, state, "session-1", self.tools, save=save_kept
                )
        return state

    @property
    def tools(self) -> Tools:
        """The agent's tools; their calls go into the ledger."""
        return Tools(read_runbooks(), self.ledger)

    def copy(self, folder: Path) -> Trial:
        """Return a copy of it in a new folder."""
        shutil.copytree(self.folder, folder)
        return Trial(folder)

    def finish(self, connection: AgentConnection, state: RunState, session: str) -> RunState:
        """Go on to the end."""
        return agent.run_to_end(connection, state, session, self.tools, save=save_kept)

    def damage_and_recover(self, name: str, version: int) -> Outcome:
        """Damage a copy of the file, recover the run in it and finish it, as `session-2`."""
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            copy = self.copy(Path(folder, "copy"))
            damage(copy.database, name, version)
            with closing(connect(copy.database)) as connection:
                before, calls = len(read_events(connection, RUN)), len(copy.ledger.lines())
                report = recover(connection, RUN, "session-2")
                events = read_events(connection, RUN)[before:]
                state = report.state
                if state is not None:
                    state = copy.finish(connection, state, "session-2")
            recorded = tuple(dict.fromkeys(event.event_type for event in events))
            after = tuple(copy.ledger.lines()[calls:])
            return Outcome(name, version, report, state, after, recorded)


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
        """Return the step of the ladder it came to, as a row of a table."""
        return {
            "unusable": self.damage,
            "step": self.report.step,
            "goes on from": self.report.chosen,
            "calls after": len(self.calls),
            "recorded": ", ".join(self.recorded),
        }


def restored_under(
    trial: Trial, connection: AgentConnection, save: Callable[..., RunState]
) -> tuple[RunState, RunState]:
    """Put a backup back under a running agent; return its state and that of the one that came next.

    `session-1` goes on from version 1 to 3. Then the file is what it was at version 1, the runbook
    gets another step, and `session-2` goes on from version 1 to 3, too.

    Args:
        trial: Its run is at version 1.
        connection: An open connection to its file.
        save: What saves the checkpoints.
    """

    def two_actions(session: str, tools: Tools) -> RunState:
        state = agent.resume(connection, RUN, session)
        for _ in range(2):
            state = agent.run_next_action(connection, state, session, tools, save=save)
        return state

    with closing(sqlite3.connect(trial.folder / "backup.db", autocommit=True)) as backup:
        connection.backup(backup)
        first = two_actions("session-1", trial.tools)
        backup.backup(connection)
    code = first.context["runbook"]["code"]
    changed = replace(trial.tools.runbooks[code], step="Call the new contractor.")
    tools = Tools(trial.tools.runbooks | {code: changed}, trial.ledger)
    return first, two_actions("session-2", tools)


def shorter(reason: str) -> str:
    """Return the first words of a reason, without what a library adds to it in its own words."""
    return shorten(reason.removeprefix("its ").partition(":")[0], 40, placeholder=" …")
