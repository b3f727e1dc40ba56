"""What the tests of recovery share: a run whose checkpoints are kept, and how it should end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from lesson_lib.model import RunState
from lesson_lib.recovery.recover import recover
from lesson_lib.recovery.report import Report
from lesson_lib.recovery.trials import RUN, Trial
from lesson_lib.stores.sqlite import connect, load_state

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
        Trial(folder).start(version)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def trial_at(folder: Path, version: int) -> Trial:
    """Return a trial in this emptied folder whose run is at a version."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in _files(version).items():
        (folder / name).write_bytes(data)
    return Trial(folder)


@cache
def whole_end() -> RunState:
    """Return the end of a run that nobody disturbed."""
    with fast_folder() as folder:
        trial = trial_at(folder / "whole", 4)
        with closing(connect(trial.database)) as connection:
            return load_state(connection, RUN)


def recover_and_finish(trial: Trial) -> tuple[Report, RunState | None]:
    """Recover the run and let it go on to its end, if it may."""
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        if report.state is None:
            return report, None
        return report, trial.finish(connection, report.state, "session-2")


def assert_same_end(trial: Trial, end: RunState | None) -> None:
    """Fail unless the run ended as one that nobody disturbed, and no tool was called again."""
    assert end is not None
    assert (end.status, end.context) == ("completed", whole_end().context)
    assert trial.ledger.lines() == CALLS
