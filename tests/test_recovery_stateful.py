"""Saves, crashes, damages, restored backups and recoveries in any order keep the promises."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recovery_parts import CALLS, fast_folder, trial_at, whole_end

from lesson_lib import agent
from lesson_lib.checkpoints.archive import save_kept
from lesson_lib.errors import (
    CheckpointConflictError,
    LessonError,
    SimulatedCrash,
    StaleVersionError,
)
from lesson_lib.model import RunState
from lesson_lib.recovery.damage import DAMAGES, damage
from lesson_lib.recovery.recover import recover
from lesson_lib.recovery.trials import RUN
from lesson_lib.stores.sqlite import connect, load_state, read_events

# What needs a version before it, takes an acknowledged event away, or stops each recovery, has
# tests of its own.
ANY_VERSION = sorted(
    DAMAGES.keys()
    - {"rows swapped", "rows swapped, signed", "agent_runs one version behind"}
    - {"row without its event", "no runbook, signed", "newer schema, signed"}
)


def saved_keys(database: Path) -> set[str]:
    """Return the keys whose results are saved."""
    with closing(connect(database)) as connection:
        return {row[0] for row in connection.execute("SELECT idempotency_key FROM tool_effects")}


class Recovering(RuleBasedStateMachine):
    """One run, one agent that holds a state in memory or is dead, one backup."""

    def __init__(self) -> None:
        super().__init__()
        self.files = fast_folder()
        self.trial = trial_at(self.files.__enter__() / "at", 1)
        self.backup = self.trial.folder.parent / "backup.db"
        shutil.copyfile(self.trial.database, self.backup)
        self.state: RunState | None = None
        self.whole = True  # whether nothing was damaged since the last recovery
        self.calls_allowed = dict.fromkeys(CALLS, 1)

    def teardown(self) -> None:
        """Recover once more and finish: the end is that of a run that nobody disturbed."""
        with closing(connect(self.trial.database)) as connection:
            first = recover(connection, RUN, "last")
            second = recover(connection, RUN, "last")
            assert second.state == first.state
            assert first.state is not None
            end = self.trial.finish(connection, first.state, "last")
        assert end.context["reply"] == whole_end().context["reply"]
        for key, allowed in self.calls_allowed.items():
            assert 1 <= self.trial.ledger.count(key) <= allowed
        self.files.__exit__(None, None, None)

    @precondition(lambda self: self.state is not None and self.state.status == "running")
    @rule(dies=st.booleans())
    def act(self, dies: bool) -> None:
        """Perform an action, and die before its checkpoint or not."""
        assert self.state is not None
        with closing(connect(self.trial.database)) as connection:
            try:
                self.state = agent.run_next_action(
                    connection,
                    self.state,
                    "session",
                    self.trial.tools,
                    crash_after_tool=dies,
                    save=save_kept,
                )
            except (SimulatedCrash, StaleVersionError, CheckpointConflictError):
                self.state = None

    @rule()
    def crash(self) -> None:
        """Lose the memory."""
        self.state = None

    @rule(name=st.sampled_from(ANY_VERSION), back=st.integers(0, 2))
    def corrupt(self, name: str, back: int) -> None:
        """Damage a kept checkpoint; at least version 0 stays."""
        with closing(connect(self.trial.database)) as connection:
            query = "SELECT version FROM run_checkpoints WHERE version > 0 ORDER BY version DESC"
            versions = [row[0] for row in connection.execute(query)]
        if versions:
            # Where it was damaged before, there may be nothing left to edit.
            with suppress(LessonError, LookupError, TypeError, ValueError, sqlite3.Error):
                damage(self.trial.database, name, versions[min(back, len(versions) - 1)])
            self.whole = False

    @rule()
    def recover_it(self) -> None:
        """Recover, as a new session does."""
        with closing(connect(self.trial.database)) as connection:
            report = recover(connection, RUN, "session")
            assert report.state is not None
            assert report.state.version == load_state(connection, RUN).version
        # What was acknowledged is there, or its refusal is.
        assert report.state.version == report.chosen or report.refused
        self.state, self.whole = report.state, True

    @rule()
    def back_up(self) -> None:
        """Keep a copy of the closed file."""
        shutil.copyfile(self.trial.database, self.backup)

    @rule()
    def restore(self) -> None:
        """Put the copy back. A tool whose result it does not have may be called once more."""
        for key in saved_keys(self.trial.database) - saved_keys(self.backup):
            self.calls_allowed[key] += 1
        shutil.copyfile(self.backup, self.trial.database)
        self.whole = False

    @invariant()
    def no_gaps(self) -> None:
        """Sequences and versions are those of a run that only went forward."""
        with closing(connect(self.trial.database)) as connection:
            events = read_events(connection, RUN)
            if self.whole:
                state = load_state(connection, RUN)
                saved = [e for e in events if e.event_type == "checkpoint_saved"]
                assert state.version == len(saved)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))


TestRecovering = Recovering.TestCase
TestRecovering.settings = settings(
    derandomize=True, deadline=None, max_examples=40, stateful_step_count=12, database=None
)
