"""What the tests of recovery share: a run whose checkpoints are kept, and how it should end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from lesson_lib.labs.recovery_path.patient import RUN, Patient
from lesson_lib.model import RunState
from lesson_lib.recovery.recover import Report, recover
from lesson_lib.sqlite import SQLiteStore
from lesson_lib.tickets import ticket_agent

CALLS = [f"{RUN}:lookup_runbook", f"{RUN}:draft_reply"]


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: these tests write thousands of small files."""
    memory = Path("/dev/shm")
    where = str(memory) if memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as name:
        yield Path(name)


@cache
def _files(version: int) -> dict[str, bytes]:
    with fast_folder() as folder:
        Patient(folder).start(version)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def patient_at(folder: Path, version: int) -> Patient:
    """Return a patient in this emptied folder whose run is at a version."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in _files(version).items():
        (folder / name).write_bytes(data)
    return Patient(folder)


@cache
def whole_end() -> RunState:
    """Return the end of a run that nobody disturbed."""
    with fast_folder() as folder, patient_at(folder / "whole", 4).session() as store:
        return store.load_state(RUN)


def recovered(store: SQLiteStore) -> Report:
    """Recover the run in the session of a store."""
    return recover(store.connection, RUN, store.session, ticket_agent)


def recover_and_finish(patient: Patient) -> tuple[Report, RunState | None]:
    """Recover the run and let it go on to its end, if it may."""
    with patient.session("session-2") as store:
        report = recovered(store)
        return report, report.state and patient.finish(store, report.state)


def assert_same_end(patient: Patient, end: RunState | None) -> None:
    """Fail unless the run ended as one that nobody disturbed, and no tool was called again."""
    assert end is not None
    assert (end.status, end.context) == ("completed", whole_end().context)
    assert patient.ledger.lines() == CALLS
