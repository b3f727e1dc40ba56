"""Saves, crashes, damages, restored backups and recoveries in any order keep the promises."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recovery_parts import CALLS, fast_folder, patient_at, recovered, whole_end

from lesson_lib.errors import (
    CheckpointConflictError,
    LessonError,
    SimulatedCrash,
    StaleVersionError,
)
from lesson_lib.labs.recovery_path.damages import DAMAGES, damage
from lesson_lib.labs.recovery_path.patient import RUN
from lesson_lib.model import RunState
from lesson_lib.tickets import ticket_agent

# What needs a version before it, takes an acknowledged event away, or stops each recovery, has
# tests of its own.
ANY_VERSION = sorted(
    DAMAGES.keys()
    - {"rows swapped", "rows swapped, signed", "agent_runs one version behind"}
    - {"row without its event", "no runbook, signed", "newer schema, signed"}
)


def saved_keys(database: Path) -> set[str]:
    """Return the keys whose results are saved."""
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        return {row[0] for row in plain.execute("SELECT idempotency_key FROM tool_effects")}


class Recovering(RuleBasedStateMachine):
    """One run, one agent that holds a state in memory or is dead, one backup."""

    def __init__(self) -> None:
        super().__init__()
        self.files = fast_folder()
        self.patient = patient_at(self.files.__enter__() / "at", 1)
        self.backup = self.patient.folder.parent / "backup.db"
        shutil.copyfile(self.patient.database, self.backup)
        self.state: RunState | None = None
        self.whole = True  # whether nothing was damaged since the last recovery
        self.calls_allowed = dict.fromkeys(CALLS, 1)

    def teardown(self) -> None:
        """Recover once more and finish: the end is that of a run that nobody disturbed."""
        with self.patient.session("last") as store:
            first, second = recovered(store), recovered(store)
            assert second.state == first.state
            assert first.state is not None
            end = self.patient.finish(store, first.state)
        assert end.context["reply"] == whole_end().context["reply"]
        for key, allowed in self.calls_allowed.items():
            assert 1 <= self.patient.ledger.count(key) <= allowed
        self.files.__exit__(None, None, None)

    @precondition(lambda self: self.state is not None and self.state.status == "running")
    @rule(dies=st.booleans())
    def act(self, dies: bool) -> None:
        """Perform an action, and die before its checkpoint or not."""
        assert self.state is not None
        with self.patient.session("session") as store:
            try:
                self.state = ticket_agent.run_next_action(
                    store, self.state, self.patient.tools, crash_after_tool=dies
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
        with closing(sqlite3.connect(self.patient.database, autocommit=True)) as plain:
            query = "SELECT version FROM run_checkpoints WHERE version > 0 ORDER BY version DESC"
            versions = [row[0] for row in plain.execute(query)]
        if versions:
            # Where it was damaged before, there may be nothing left to edit.
            with suppress(LessonError, LookupError, TypeError, ValueError, sqlite3.Error):
                damage(self.patient.database, name, versions[min(back, len(versions) - 1)])
            self.whole = False

    @rule()
    def recover_it(self) -> None:
        """Recover, as a new session does."""
        with self.patient.session("session") as store:
            report = recovered(store)
            assert report.state is not None
            assert report.state.version == store.load_state(RUN).version
        # What was acknowledged is there, or its refusal is.
        assert report.state.version == report.chosen or report.refused
        self.state, self.whole = report.state, True

    @rule()
    def back_up(self) -> None:
        """Keep a copy of the closed file."""
        shutil.copyfile(self.patient.database, self.backup)

    @rule()
    def restore(self) -> None:
        """Put the copy back. A tool whose result it does not have may be called once more."""
        for key in saved_keys(self.patient.database) - saved_keys(self.backup):
            self.calls_allowed[key] += 1
        shutil.copyfile(self.backup, self.patient.database)
        self.whole = False

    @invariant()
    def no_gaps(self) -> None:
        """Sequences and versions are those of a run that only went forward."""
        with self.patient.session() as store:
            events = store.read_events(RUN)
            if self.whole:
                state = store.load_state(RUN)
                saved = [e for e in events if e.event_type == "checkpoint_saved"]
                assert state.version == len(saved)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))


TestRecovering = Recovering.TestCase
TestRecovering.settings = settings(
    derandomize=True, deadline=None, max_examples=8, stateful_step_count=10, database=None
)


class AtLength(Recovering):
    """The same, many times."""


TestAtLength = pytest.mark.prove(AtLength.TestCase)
TestAtLength.settings = settings(
    derandomize=True, deadline=None, max_examples=100, stateful_step_count=20, database=None
)
