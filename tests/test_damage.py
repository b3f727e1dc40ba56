"""Each damage does what its name says, and each of them is noticed or harmless."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from recovery_parts import CALLS, patient_at, recovered, whole_end
from store_parts import rows

from lesson_lib.checkpoints.archive import read_archive
from lesson_lib.checkpoints.codec import decode
from lesson_lib.errors import CheckpointError
from lesson_lib.labs.recovery_path.damages import DAMAGES, DISASTERS, damage
from lesson_lib.labs.recovery_path.figures import ways_back
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

WHOLE = {  # these fit their checksum and their schema: only siblings, events and rivals tell
    *("older schema, signed", "no runbook, signed", "other next action, signed"),
    *("another ticket's, signed", "rows swapped, signed", "row without its event"),
    *("two of one version", "agent_runs one version behind", "a word of agent_runs changed"),
    "row missing",
}


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("name", sorted(DAMAGES.keys() - {"newer schema, signed"}))
def test_every_damage_is_said_and_made_good(tmp_path: Path, name: str, version: int) -> None:
    outcome = patient_at(tmp_path / "at", version).damage_and_recover(name, version)
    assert outcome.end is not None
    assert outcome.end.context["reply"] == whole_end().context["reply"]
    assert [*CALLS[: version - 1], *outcome.calls] == CALLS
    said = version in {refused.version for refused in outcome.report.refused}
    assert said == (name != "older schema, signed")
    assert outcome.report.chosen is not None
    assert version - outcome.report.chosen in (0, 1, 2)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_a_later_package_wrote_waits_for_it(tmp_path: Path, version: int) -> None:
    patient = patient_at(tmp_path / "at", version)
    damage(patient.database, "newer schema, signed", version)
    before = rows(patient.database)
    with patient.session("session-2") as store:
        report = recovered(store)
    assert (report.step, report.state) == ("update first", None)
    assert "update this one" in report.reason
    assert rows(patient.database) == before


def test_what_a_later_package_wrote_before_the_newest_is_history(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "newer schema, signed", 1)
    with patient.session("session-2") as store:
        assert recovered(store).step == "newest checkpoint"


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_a_damage_that_is_signed_decodes_and_no_other_does(tmp_path: Path, name: str) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, name, 3)
    with patient.session() as store:
        kept = read_archive(store.connection, "run-T104")
    if name in WHOLE:
        for stored in kept:
            decode(stored, TICKET_SCHEMA)
    else:
        with pytest.raises(CheckpointError):
            decode(kept[0], TICKET_SCHEMA)


@pytest.mark.parametrize("name", [*DAMAGES, *DISASTERS])
def test_a_damage_changes_something_and_leaves_a_sound_file(tmp_path: Path, name: str) -> None:
    patient = patient_at(tmp_path / "at", 3)
    before = rows(patient.database)
    damage(patient.database, name, 3)
    assert rows(patient.database) != before
    with closing(sqlite3.connect(patient.database, autocommit=True)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_picture_tells_where_each_run_went_on(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    names = [
        "rows swapped",
        "older schema, signed",
        "an event missing",
        "all checkpoints, agent_runs",
    ]
    outcomes = [patient.damage_and_recover(name, 3) for name in names]
    assert ways_back(outcomes).alt == (
        "One line for each damage. rows swapped: refused 2, 3, kept 0, taken 1, written as 4. older"
        " schema, signed: kept 0, 1, 2, taken 3. an event missing: refused 1, 2, 3, kept 0, handed"
        " to a person. all checkpoints, agent_runs: refused 0, 1, 2, 3, made again 3, written as 4."
    )
    assert ways_back(outcomes) == ways_back(outcomes)
