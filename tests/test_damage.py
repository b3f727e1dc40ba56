"""Each damage does what its name says, and each of them is noticed or harmless."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from recovery_parts import CALLS, trial_at, whole_end
from store_parts import rows

from lesson_lib.checkpoints.archive import read_archive
from lesson_lib.checkpoints.codec import decode
from lesson_lib.errors import CheckpointError
from lesson_lib.recovery.damage import DAMAGES, DISASTERS, damage
from lesson_lib.recovery.figures import ways_back
from lesson_lib.recovery.recover import recover
from lesson_lib.recovery.trials import RUN, Outcome
from lesson_lib.stores.sqlite import connect

WHOLE = {  # these fit their checksum and their schema: only siblings, events and rivals tell
    *("older schema, signed", "no runbook, signed", "other next action, signed"),
    *("another ticket's, signed", "rows swapped, signed", "row without its event"),
    *("two of one version", "agent_runs one version behind", "a word of agent_runs changed"),
    "row missing",
}


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("name", sorted(DAMAGES.keys() - {"newer schema, signed"}))
def test_every_damage_is_said_and_made_good(tmp_path: Path, name: str, version: int) -> None:
    outcome = trial_at(tmp_path / "at", version).damage_and_recover(name, version)
    assert outcome.end is not None
    assert outcome.end.context["reply"] == whole_end().context["reply"]
    assert [*CALLS[: version - 1], *outcome.calls] == CALLS
    said = version in {refused.version for refused in outcome.report.refused}
    assert said == (name != "older schema, signed")
    assert outcome.report.chosen is not None
    assert version - outcome.report.chosen in (0, 1, 2)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_a_later_package_wrote_waits_for_it(tmp_path: Path, version: int) -> None:
    trial = trial_at(tmp_path / "at", version)
    damage(trial.database, "newer schema, signed", version)
    before = rows(trial.database)
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
    assert (report.step, report.state) == ("update first", None)
    assert "update this one" in report.reason
    assert rows(trial.database) == before


def test_what_a_later_package_wrote_before_the_newest_is_history(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "newer schema, signed", 1)
    with closing(connect(trial.database)) as connection:
        assert recover(connection, RUN, "session-2").step == "newest checkpoint"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_signed_damage_decodes(tmp_path: Path, name: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, name, 3)
    with closing(connect(trial.database)) as connection:
        for stored in read_archive(connection, RUN):
            decode(stored)


@pytest.mark.parametrize("name", sorted(DAMAGES.keys() - WHOLE))
def test_any_other_does_not(tmp_path: Path, name: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, name, 3)
    with closing(connect(trial.database)) as connection:
        stored = read_archive(connection, RUN, version=3)
    with pytest.raises(CheckpointError):
        decode(stored[0])


@pytest.mark.parametrize("name", [*DAMAGES, *DISASTERS])
def test_a_damage_changes_something_and_leaves_a_sound_file(tmp_path: Path, name: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    before = rows(trial.database)
    damage(trial.database, name, 3)
    assert rows(trial.database) != before
    with closing(sqlite3.connect(trial.database, autocommit=True)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_picture_tells_where_each_run_went_on(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    names = [
        "rows swapped",
        "older schema, signed",
        "an event missing",
        "all checkpoints, agent_runs",
    ]
    outcomes: list[Outcome] = [trial.damage_and_recover(name, 3) for name in names]
    assert ways_back(outcomes).alt == (
        "One line for each damage. rows swapped: refused 2, 3, kept 0, taken 1, written as 4. older"
        " schema, signed: kept 0, 1, 2, taken 3. an event missing: refused 1, kept 0, 2, 3, handed"
        " to a person. all checkpoints, agent_runs: refused 0, 1, 2, 3, made again 3, written as 4."
    )
    assert ways_back(outcomes) == ways_back(outcomes)
