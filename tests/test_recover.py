"""Recovery trusts the right checkpoint, whatever byte is changed, and never makes things worse."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from recovery_parts import (
    CALLS,
    assert_same_end,
    fast_folder,
    patient_at,
    recover_and_finish,
    recovered,
    whole_end,
)
from sqlite_bytes import Stored, parts
from store_parts import rows

from lesson_lib.agent import Action, Agent, CallTool
from lesson_lib.checkpoints import archive
from lesson_lib.checkpoints.archive import Keep, create_archive, put, read_archive
from lesson_lib.checkpoints.codec import compress, encode
from lesson_lib.checkpoints.event_guard import guard_events
from lesson_lib.checkpoints.retention import abandon
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import (
    CheckpointConflictError,
    CorruptStateError,
    InvalidStateError,
    SimulatedCrash,
    StorageError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.labs.recovery_path.damages import DISASTERS, damage, edit, sign, write
from lesson_lib.labs.recovery_path.damages import read as stored_at
from lesson_lib.labs.recovery_path.patient import RUN, Patient, restored_under
from lesson_lib.model import Event, RunState, Step
from lesson_lib.recovery.recover import Report, recover
from lesson_lib.recovery.settling import settle_open, without_content
from lesson_lib.recovery.steps import STEPS
from lesson_lib.recovery.told import Told
from lesson_lib.riders.intents import create_intents, intend
from lesson_lib.riders.questions import answer, waiting_questions
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sweep.hooks import statements
from lesson_lib.tickets import ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA


def change(patient: Patient, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(patient.database, autocommit=True)) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute(sql, values)


def kept_versions(store: SQLiteStore) -> list[int]:
    return [stored.version for stored in read_archive(store.connection, RUN)]


# Flipped bytes. What SQLite notices by itself is for a backup; its values are for the checksum.


def flipped(patient: Patient, version: int, part: Stored, table: str, at: int, bit: int) -> str:
    """Flip a bit, recover, finish, and say in a word what came of it."""
    data = patient.database.read_bytes()
    patient_at(patient.folder, version)
    patient.database.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
    where = f"{table} {part.part}, byte {at - part.start}, bit {bit}, version {version}"
    try:
        report, end = recover_and_finish(patient)
    except (CorruptStateError, StorageError) as error:
        return "a backup" if "a backup" in str(error) else f"{where}: {error}"
    assert_same_end(patient, end)
    newest = version - 1 if table == "run_checkpoints" else version
    assert version in {refused.version for refused in report.refused}, where
    assert report.chosen == newest, where
    return "the one before" if newest < version else "the kept one"


def newest_values(version: int) -> list[tuple[str, Stored]]:
    """Return the parts of the newest checkpoint, and of the run's row, as they lie in the file."""
    with fast_folder() as folder:
        database = patient_at(folder / "at", version).database
        kept = parts(database, "run_checkpoints")
        newest = max(part.rowid for part in kept)
        found = [("run_checkpoints", part) for part in kept if part.rowid == newest]
        return found + [("agent_runs", part) for part in parts(database, "agent_runs")]


def flip_all(version: int, each: int) -> dict[str, Counter[str]]:
    ends: dict[str, Counter[str]] = {}
    with fast_folder() as folder:
        for table, part in newest_values(version):
            counted = ends.setdefault(f"{table} {part.part}", Counter())
            for at in range(part.start, part.end, each if part.part in LONG else max(1, each // 4)):
                patient = patient_at(folder / "flipped", version)
                bit = 1 << (at - part.start) % 8
                counted[flipped(patient, version, part, table, at, bit)] += 1
    return ends


LONG = ("body", "context_json", "sha256")


def assert_right(ends: dict[str, Counter[str]]) -> None:
    assert set(ends["run_checkpoints body"]) == {"the one before"}
    assert set(ends["run_checkpoints compression"]) == {"the one before"}
    assert set(ends["run_checkpoints schema_version"]) == {"the one before"}
    assert set.union(*map(set, ends.values())) == {"the one before", "the kept one", "a backup"}
    # What stands in an index as well does not fit that any more.
    for name in ("run_checkpoints run_id", "run_checkpoints sha256", "agent_runs run_id"):
        assert set(ends[name]) == {"a backup"}
    assert "the kept one" in ends["agent_runs context_json"]


def test_a_flipped_byte_of_the_newest_checkpoint_is_noticed() -> None:
    assert_right(flip_all(3, each=60))


@pytest.mark.prove
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_any_flipped_byte_of_the_newest_checkpoint_is_noticed(version: int) -> None:
    ends = flip_all(version, each=1)
    for name, counted in ends.items():
        print(f"version {version}, {name}: {dict(counted)}")
    assert_right(ends)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE agent_events SET detail = CAST(x'ff' AS TEXT) WHERE sequence = 2",
        "UPDATE agent_events SET detail = '{' WHERE sequence = 2",
        "UPDATE agent_runs SET status = 'lost'",
    ],
)
def test_a_value_that_sqlite_refuses_is_for_a_backup(tmp_path: Path, sql: str) -> None:
    patient = patient_at(tmp_path / "at", 3)
    change(patient, sql)
    before = patient.database.read_bytes()
    with patient.session() as store, pytest.raises(CorruptStateError, match="restore a backup"):
        recovered(store)
    assert patient.database.read_bytes() == before


def test_an_index_that_says_otherwise_than_its_row_is_for_a_backup(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    with patient.session() as store:
        (stored,) = read_archive(store.connection, RUN, version=3)
    # In the index the checksum follows the version; in the row it does not.
    entry = RUN.encode() + bytes([3]) + stored.sha256.encode()
    data = bytearray(patient.database.read_bytes())
    data[data.index(entry)] ^= 1
    patient.database.write_bytes(data)
    with closing(sqlite3.connect(patient.database)) as plain:
        assert plain.execute("PRAGMA quick_check").fetchall() == [("ok",)]  # this would pass it by
    with patient.session() as store, pytest.raises(CorruptStateError, match="restore a backup"):
        recovered(store)


# The steps


def test_an_undamaged_run_is_only_resumed(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 2)
    before = rows(patient.database)
    with patient.session("session-2") as store:
        report = recovered(store)
        assert report.state == store.load_state(RUN)
        last = store.read_events(RUN)[-1]
    assert (report.step, report.chosen, report.refused) == ("newest checkpoint", 2, ())
    assert (last.event_type, last.detail) == ("run_resumed", '{"version": 2}')
    after = rows(patient.database)
    assert after.pop("agent_events")[:-1] == before.pop("agent_events")
    assert after == before


@pytest.mark.parametrize("version", [0, 3, 4])
def test_recovering_an_undamaged_run_takes_a_handful_of_statements(
    tmp_path: Path, version: int
) -> None:
    patient, made = patient_at(tmp_path / "at", version), list[str]()
    with patient.session() as store:
        store.connection.set_trace_callback(made.append)
        recovered(store)
    assert len(made) == (10 if version == 4 else 11)


def test_a_saved_result_that_no_checkpoint_has_is_reused(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 2)
    with patient.session() as store:
        state = store.load_state(RUN)
        with pytest.raises(SimulatedCrash):
            ticket_agent.run_next_action(store, state, patient.tools, crash_after_tool=True)
        assert recovered(store).reused == (f"{RUN}:draft_reply",)


def test_a_completed_run_is_not_resumed(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 4)
    before = rows(patient.database)
    report, end = recover_and_finish(patient)
    assert (report.chosen, end) == (4, whole_end())
    assert rows(patient.database) == before


def test_falling_back_writes_a_new_version_and_says_so(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    with patient.session("session-2") as store:
        report = recovered(store)
        state, events = store.load_state(RUN), store.read_events(RUN)
        assert kept_versions(store) == [4, 3, 2, 1, 0]  # what was refused stays
    assert report.state == state
    assert (report.step, report.chosen, state.version) == ("older checkpoint", 2, 4)
    assert (report.redo, report.reused) == (("draft_reply",), (f"{RUN}:draft_reply",))
    told = [(event.event_type, event.action, from_json(event.detail)) for event in events[-3:]]
    reason = "its bytes are not those that were stored"
    assert report.refused[0].reason == f"{reason}: the checksum differs"
    assert told == [
        ("checkpoint_refused", "recover", {"version": 3, "reason": reason}),
        ("checkpoint_saved", "recover", {"version": 4, "from_version": 2}),
        ("run_resumed", "resume", {"version": 4}),
    ]


@pytest.mark.parametrize(
    "name", ["rows swapped", "two of one version", "row without its event", "row missing"]
)
def test_recovering_twice_changes_nothing_more(tmp_path: Path, name: str) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, name, 3)
    with patient.session("session-2") as store:
        first = recovered(store)
        before = rows(patient.database)
        second = recovered(store)
    after = rows(patient.database)
    assert second.state == first.state
    assert after.pop("agent_events")[:-1] == before.pop("agent_events")
    assert after == before


def test_falling_back_again_goes_behind_the_first_recovery(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    with patient.session("session-2") as store:
        recovered(store)
    damage(patient.database, "truncated", 4)
    report, end = recover_and_finish(patient)
    assert report.state is not None
    assert (report.chosen, report.state.version, report.redo) == (2, 5, ("draft_reply",))
    assert [refused.version for refused in report.refused] == [4, 3]
    assert_same_end(patient, end)


def test_what_a_recovery_brought_back_is_to_be_redone_by_the_next_one_too(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    with patient.session("session-2") as store:
        first, second = recovered(store), recovered(store)
    assert (second.step, second.chosen) == ("newest checkpoint", 4)
    assert (second.redo, second.reused) == (first.redo, first.reused)


def test_what_was_done_twice_is_to_be_redone_once(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    recover_and_finish(patient)  # version 4 is 2 again, 5 and 6 are its end
    for version in (4, 5, 6):
        damage(patient.database, "truncated", version)
    report, end = recover_and_finish(patient)
    assert (report.chosen, report.redo) == (2, ("draft_reply", "finish"))
    assert_same_end(patient, end)


def test_a_version_whose_event_says_another_is_not_trusted(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "truncated", 3)
    change(patient, "UPDATE agent_events SET detail = replace(detail, '2}', '3}')")
    report, end = recover_and_finish(patient)
    assert report.refused[-1].reason == "its event does not say what was done"
    assert report.chosen == 1
    assert_same_end(patient, end)


@pytest.mark.parametrize(
    ("name", "step", "chosen"),
    [
        ("all checkpoints", "agent_runs alone", 3),
        ("all checkpoints, agent_runs", "rebuilt from events", 3),
        ("all checkpoints, agent_runs, details", "restarted from the ticket", 0),
    ],
)
def test_without_a_checkpoint_it_goes_on_step_by_step(
    tmp_path: Path, name: str, step: str, chosen: int
) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, name, 3)
    report, end = recover_and_finish(patient)
    assert report.state is not None
    assert (report.step, report.chosen, report.state.version) == (step, chosen, 4)
    assert report.reason
    assert_same_end(patient, end)
    with patient.session() as store:
        events = [e for e in store.read_events(RUN) if e.event_type == "recovery_degraded"]
    assert [from_json(event.detail)["step"] for event in events] == [step]


def test_the_steps_are_a_list_that_can_be_read() -> None:
    assert [step.name for step in STEPS] == [
        *("effects first", "update first", "handed to a person", "newest checkpoint"),
        *("agent_runs alone", "older checkpoint", "rebuilt from events"),
        *("restarted from the ticket", "handed to a person"),
    ]
    assert all(step.when for step in STEPS)


def test_a_rebuilt_run_goes_as_far_as_its_saved_results(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 2)
    with patient.session() as store:  # a person answered in the place of the tool
        state = store.load_state(RUN)
        step = Step("draft_reply", {"draft": "Wait."}, "finish")
        store.save_checkpoint(state, step)
    damage(patient.database, "all checkpoints, agent_runs", 3)
    with patient.session("session-2") as store:
        report = recovered(store)
    assert report.state is not None
    assert (report.step, report.chosen) == ("rebuilt from events", 2)
    assert report.state.next_action == "draft_reply"


@pytest.mark.parametrize(
    "change_of",
    [
        *("input_sha256 = 'x'", "tool_name = 'other'", "run_id = 'run-T101'"),
        *("result_json = '{}'", "result_json = '[1e999]'", "idempotency_key = 'other'"),
    ],
)
@pytest.mark.parametrize(
    "name", ["truncated", "all checkpoints, agent_runs", "all checkpoints, agent_runs, details"]
)
def test_a_result_that_cannot_be_reused_is_for_a_person(
    tmp_path: Path, name: str, change_of: str
) -> None:
    patient = patient_at(tmp_path / "at", 2)
    damage(patient.database, name, 2)
    change(patient, f"UPDATE tool_effects SET {change_of} WHERE tool_name = 'lookup_runbook'")
    assert "a saved result" in handed_over(patient).reason
    assert patient.ledger.lines() == CALLS[:1]


def test_a_result_that_is_not_needed_any_more_is_not_missed(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    change(patient, "DELETE FROM tool_effects WHERE tool_name = 'lookup_runbook'")
    report, end = recover_and_finish(patient)
    assert report.step == "newest checkpoint"
    assert_same_end(patient, end)


def test_a_checkpoint_that_was_archived_alone_gives_way(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 2)
    with patient.session("session-2") as store:
        state = store.load_state(RUN)
        other = {"runbook": state.context["runbook"] | {"step": "Wait."}}
        stray = replace(state, version=3, context_json=to_json({**state.context, **other}))
        put(store.connection, encode(stray, TICKET_SCHEMA))
        first, second = recovered(store), recovered(store)
        assert first.state == second.state == state
        assert (first.refused[0].version, second.refused) == (3, ())
        assert_same_end(patient, patient.finish(store, state))


def test_a_run_of_part_one_is_checked_against_its_events(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    change(patient, "DROP TABLE run_checkpoints")
    with patient.session("session-2") as store:
        report = recovered(store)
        assert (report.step, report.chosen, report.refused) == ("agent_runs alone", 3, ())
        assert kept_versions(store) == [4]
        assert recovered(store).step == "newest checkpoint"
        assert report.state is not None
        assert_same_end(patient, patient.finish(store, report.state))


def handed_over(patient: Patient) -> Report:
    """Return the report of a run that waits for a person; nothing else may have changed."""
    before = rows(patient.database)
    with patient.session("session-2") as store:
        report, again = recovered(store), recovered(store)
        (question,) = waiting_questions(store.connection)
        (asked, *more) = store.read_events(RUN)[len(before["agent_events"]) :]
    assert (report.step, report.state) == ("handed to a person", None)
    assert again == report
    assert without_content(report.reason) in question.question
    assert (asked.event_type, more) == ("question_asked", [])
    assert rows(patient.database)["agent_runs"] == before["agent_runs"]
    return report


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("DELETE FROM agent_events WHERE sequence = 2", "an event is missing"),
        ("UPDATE agent_events SET event_type = 'x' WHERE sequence = 4", "an event is missing"),
        ("UPDATE agent_events SET event_type = 'x' WHERE sequence = 6", "event of version 3"),
        ("UPDATE agent_events SET action = 'water_plants' WHERE sequence = 2", "'water_plants'"),
    ],
)
def test_events_that_do_not_tell_what_was_acknowledged_are_for_a_person(
    tmp_path: Path, sql: str, reason: str
) -> None:
    patient = patient_at(tmp_path / "at", 3)
    change(patient, sql)
    assert reason in handed_over(patient).reason
    assert len(rows(patient.database)["run_checkpoints"]) == 4


def test_a_lost_result_of_a_tool_that_ran_is_for_a_person(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    change(patient, "DELETE FROM tool_effects WHERE tool_name = 'draft_reply'")
    assert f"its tool ran: {RUN}:draft_reply" in handed_over(patient).reason
    assert patient.ledger.lines() == CALLS


@pytest.mark.parametrize(
    ("run_id", "ticket_id", "reason"),
    [("run-T999", "T999", "nobody knows"), (RUN, "T104", "'pay_call_out'")],
)
def test_another_agents_run_is_for_a_person(
    tmp_path: Path, run_id: str, ticket_id: str, reason: str
) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, "session-1")
        begun = store.start_run(RunState.begin(run_id, ticket_id, "pay_call_out", {"key": "x"}))
        if reason == "nobody knows":
            connection.execute("UPDATE agent_runs SET next_action = 'finish'")
        report = recover(connection, run_id, "session-2", ticket_agent)
        assert report.step == "handed to a person"
        assert reason in report.reason
        assert store.load_state(run_id).context == begun.context


def test_an_unknown_run_is_an_error(tmp_path: Path) -> None:
    with patient_at(tmp_path / "at", 1).session() as store, pytest.raises(UnknownRunError):
        recover(store.connection, "run-T105", "session-2", ticket_agent)


def test_a_run_that_is_kept_as_a_log_is_none_of_recoverys(tmp_path: Path) -> None:
    with patient_at(tmp_path / "at", 1).session() as store:
        store.connection.execute("CREATE TABLE run_log (run_id TEXT)")
        store.connection.execute("INSERT INTO run_log VALUES (?)", (RUN,))
        with pytest.raises(InvalidStateError, match="replay"):
            recovered(store)


def test_a_value_of_the_content_stands_in_no_event(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    with patient.session() as store:
        guard_events(store.connection)
    secrets = {"ticket_id": "Mrs Miller " * 40, f"context_{'Miller' * 60}": "1"}
    with closing(sqlite3.connect(patient.database, autocommit=True)) as plain:
        for version, (name, value) in enumerate(secrets.items(), 2):
            write(plain, version, edit(stored_at(plain, version), **{name: value}), signed=True)
    report, end = recover_and_finish(patient)
    assert_same_end(patient, end)
    assert "Miller" in str(report)
    with patient.session() as store:
        assert "Miller" not in str(store.read_events(RUN))


def test_the_newest_row_alone_is_no_older_state(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    damage(patient.database, "agent_runs one version behind", 3)
    report, end = recover_and_finish(patient)
    assert report.state is not None
    assert (report.chosen, report.state.version) == (2, 4)
    assert_same_end(patient, end)


def test_what_reads_otherwise_than_it_was_written_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    before = rows(patient.database)

    def put_another(connection: AgentConnection, stored: Any) -> None:
        put(connection, sign(edit(stored, context_priority="normal")))

    monkeypatch.setattr(archive, "put", put_another)
    with patient.session() as store, pytest.raises(CorruptStateError, match="does not read as"):
        recovered(store)
    assert rows(patient.database) == before


@pytest.mark.parametrize("name", ["other next action, signed", "two of one version"])
def test_the_row_alone_stands_beside_no_other_content(tmp_path: Path, name: str) -> None:
    patient = patient_at(tmp_path / "at", 3)
    change(patient, "DELETE FROM run_checkpoints WHERE version < 3")
    damage(patient.database, name, 3)
    with patient.session("session-2") as store:
        report = recovered(store)
        assert report.state is not None
        assert (report.step, report.state.version) == ("agent_runs alone", 4)
        before = len(store.read_events(RUN))
        assert recovered(store).step == "newest checkpoint"
        assert len(store.read_events(RUN)) == before + 1  # it was resumed
    assert_same_end(patient, recover_and_finish(patient)[1])


@pytest.mark.parametrize("version", [2, 4])
def test_a_version_that_nobody_kept_is_taken_all_the_same(tmp_path: Path, version: int) -> None:
    patient = patient_at(tmp_path / "at", 1)
    with patient.session(riders=()) as store:
        state = store.load_state(RUN)
        while state.version < version:
            state = ticket_agent.run_next_action(store, state, patient.tools)
        report = recovered(store)
        assert report.state is not None
        assert (report.step, report.state.context) == ("agent_runs alone", state.context)
        assert recovered(store).step == "newest checkpoint"
    assert_same_end(patient, recover_and_finish(patient)[1])


def test_a_version_that_nobody_kept_must_agree(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "row missing", 3)
    damage(patient.database, "a word of agent_runs changed", 3)
    report, end = recover_and_finish(patient)
    assert (report.step, report.chosen) == ("older checkpoint", 2)
    assert_same_end(patient, end)


def test_a_question_that_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "an event missing", 3)
    with patient.session("session-2") as store:
        for _ in range(3):
            assert recovered(store).state is None
            for question in waiting_questions(store.connection):
                answer(store.connection, question.question_id, question.choices[1], person="Ada")
        (asked,) = store.connection.execute("SELECT count(*) FROM run_questions").fetchone()
    assert asked == 1


def test_a_later_damage_is_asked_about_anew(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    first = "UPDATE agent_events SET action = '{}' WHERE sequence = 2"
    for times in (1, 2):
        change(patient, first.format("water_plants"))
        with patient.session("session-2") as store:
            for _ in range(2):
                assert recovered(store).state is None
            (question,) = waiting_questions(store.connection)
            answer(store.connection, question.question_id, question.choices[0], person="Ada")
            (asked,) = store.connection.execute("SELECT count(*) FROM run_questions").fetchone()
            assert asked == times
            change(patient, first.format("classify_priority"))
            assert recovered(store).state is not None


def test_a_run_that_was_recovered_a_thousand_times_is_read_at_once() -> None:
    first = Event(RUN, 1, "s", "run_started", "start", "{}", "")
    events = [
        replace(
            first,
            sequence=version + 1,
            event_type="checkpoint_saved",
            action="recover" if version > 1 else "classify_priority",
            detail=f'{{"from_version": {version - 1}, "version": {version}}}',
        )
        for version in range(1, 3_001)
    ]
    told = Told(RUN, (first, *events), ticket_agent)
    assert {told.next_after(version) for version in range(1, 3_001)} == {"lookup_runbook"}
    assert not told.problem


@pytest.mark.parametrize("kept", [True, False])
def test_an_abandoned_run_is_not_revived(tmp_path: Path, kept: bool) -> None:
    patient = patient_at(tmp_path / "at", 2)
    later = datetime.now(UTC) + timedelta(days=9)
    with closing(connect(patient.database, clock=lambda: later)) as connection:
        store = SQLiteStore(connection, "s", (Keep(TICKET_SCHEMA),) if kept else ())
        end = abandoned(store)
        report = recovered(store)
        assert report.state is not None
        assert (report.state.status, report.state.context) == ("completed", end.context)
        assert report.step == ("newest checkpoint" if kept else "agent_runs alone")
        last = store.read_events(RUN)[-1].event_type
        assert last == ("run_abandoned" if kept else "checkpoint_saved")
    change(patient, "UPDATE agent_runs SET context_json = '{}'")
    change(patient, "UPDATE run_checkpoints SET body = x'00' WHERE version > 2")
    assert "it was given up" in handed_over(patient).reason


def abandoned(store: SQLiteStore) -> RunState:
    return abandon(
        store.connection,
        store.load_state(RUN),
        session=store.session,
        reason="nobody goes on",
        riders=store.riders,
    )


def test_a_state_too_large_to_be_kept_goes_on(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 2)
    change(patient, "DELETE FROM run_checkpoints")
    large = "json_set(context_json, '$.plan', json_object('x', hex(zeroblob(600000))))"
    change(patient, f"UPDATE agent_runs SET context_json = {large}")
    with patient.session("session-2") as store:
        report = recovered(store)
        assert report.state == store.load_state(RUN)
        assert kept_versions(store) == []


# Other agents: recovery knows an agent only from what it is given.


def look(context: Mapping[str, Any], call_tool: CallTool) -> JSONObject:
    return {"looks": [call_tool("look", "", n=1), call_tool("look", "again", n=2)]}


GARDEN = Agent(
    {
        "look": Action(look, "looks", "looked", "tell"),
        "tell": Action(lambda context, call_tool: {"told": True}, "told", "told_it", None),
    },
    lambda run_id: RunState.begin(run_id, "garden", "look", {}),
    ContextSchema({"looks": list, "told": bool}),
)


class Eyes:
    """A tool that is called twice in a run, with different input."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def look(self, key: str, n: int) -> int:
        self.calls.append(key)
        return n * 10


@pytest.mark.parametrize("lost", [False, True])
def test_any_agent_is_recovered_with_each_of_its_saved_results(tmp_path: Path, lost: bool) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        create_archive(connection)
        store, eyes = SQLiteStore(connection, "s", (Keep(GARDEN.schema),)), Eyes()
        GARDEN.run_to_end(store, GARDEN.start(store, "garden-1"), eyes)
        connection.execute("UPDATE run_checkpoints SET body = x'00' WHERE version > 0")
        connection.execute("UPDATE agent_runs SET context_json = '{}'")
        if lost:
            connection.execute("DELETE FROM tool_effects WHERE idempotency_key LIKE '%again'")
        report = recover(connection, "garden-1", "s2", GARDEN)
        keys = ("garden-1:look", "garden-1:look:again")
        if lost:
            assert (report.state, report.step) == (None, "handed to a person")
            assert report.reason.endswith(": garden-1:look:again")
            return
        assert report.state is not None
        assert (report.chosen, report.redo, report.reused) == (0, ("look", "tell"), keys)
        end = GARDEN.run_to_end(store, report.state, eyes)
    assert (end.context["looks"], end.version) == ([10, 20], 5)
    assert eyes.calls == list(keys)


def test_the_recovery_of_an_agent_that_goes_round_comes_to_an_end(tmp_path: Path) -> None:
    turn = Action(lambda context, call_tool: {"turns": 1}, "turns", "turned", "turn")
    mill = Agent(
        {"turn": turn},
        lambda run_id: RunState.begin(run_id, "mill", "turn", {}),
        ContextSchema({"turns": int}),
    )
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        store, state = SQLiteStore(connection, "s"), mill.begin("mill-1")
        state = store.start_run(state)
        for _ in range(3):
            state = mill.run_next_action(store, state, None)
        assert recover(connection, "mill-1", "s2", mill).state is not None


# Conflicts


def collide(patient: Patient, store: SQLiteStore) -> tuple[RunState, RunState, RunState]:
    first, second = restored_under(patient, store)
    return first, second, ticket_agent.run_next_action(store, first, patient.tools)


def test_a_number_alone_lets_two_histories_mix(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 1)
    with patient.session(riders=()) as store:
        first, second, mixed = collide(patient, store)
    assert first.version == second.version == 3
    assert mixed.context["reply"] == first.context["draft"] != second.context["draft"]


def test_a_kept_state_refuses_another_history(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 1)
    with patient.session() as store:
        with pytest.raises(CheckpointConflictError, match="version 3 of run-T104"):
            collide(patient, store)
        state = store.load_state(RUN)
        assert state.context["draft"].endswith("Call the new contractor.")
        assert recovered(store).state == state


def test_the_same_content_twice_is_no_conflict(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    with patient.session() as store:
        (stored,) = read_archive(store.connection, RUN, version=3)
        packed = replace(stored, compression="gzip", body=compress(stored.body, "gzip"))
        put(store.connection, sign(packed))
        report = recovered(store)
    assert (report.step, report.chosen, report.refused) == ("newest checkpoint", 3, ())


# Effects first


class Desk:
    """A service that knows what it was asked before, or cannot tell."""

    def __init__(self, known: dict[str, JSONValue]) -> None:
        self.known, self.calls = known, list[str]()

    def pay(self, key: str, request: JSONObject) -> JSONValue:
        self.calls.append(key)
        return {"made": key}

    def outcome(self, key: str) -> JSONValue:
        return self.known.get(key)


def with_intent(store: SQLiteStore, run_id: str = RUN) -> None:
    create_intents(store.connection)
    about = {"run_id": run_id, "session": "session-1", "key": "K", "tool_name": "pay_call_out"}
    intend(store.connection, **about, request={})


def settled(store: SQLiteStore, desk: Desk, key_lives: timedelta) -> list[str]:
    left = settle_open(store.connection, RUN, "session-2", desk, key_lives)
    return [intent.idempotency_key for intent in left]


def test_an_open_intent_comes_before_everything(tmp_path: Path) -> None:
    patient = patient_at(tmp_path / "at", 3)
    damage(patient.database, "a byte flipped", 3)
    with patient.session("session-2") as store:
        with_intent(store)
        before = rows(patient.database)
        report = recovered(store)
        assert (report.step, report.state) == ("effects first", None)
        assert rows(patient.database) == before
        desk = Desk({"K": {"made": "K"}})
        assert settled(store, desk, timedelta(hours=1)) == []
        assert desk.calls == []
        assert recovered(store).chosen == 2


def test_another_runs_intent_does_not_stop_this_one(tmp_path: Path) -> None:
    with patient_at(tmp_path / "at", 3).session() as store:
        ticket_agent.start(store, "run-T105")
        with_intent(store, "run-T105")
        assert recovered(store).chosen == 3


@pytest.mark.parametrize(
    ("choice", "status"), [("it happened", "confirmed"), ("it did not happen", "refused")]
)
def test_what_no_service_can_tell_is_asked_once(tmp_path: Path, choice: str, status: str) -> None:
    desk = Desk({})
    with patient_at(tmp_path / "at", 3).session() as store:
        with_intent(store)
        for _ in range(2):
            assert settled(store, desk, timedelta()) == ["K"]
            assert recovered(store).state is None
        (question,) = waiting_questions(store.connection)
        answer(store.connection, question.question_id, choice, person="Ada")
        assert settled(store, desk, timedelta()) == []
        (found,) = store.connection.execute("SELECT status FROM tool_intents").fetchone()
        assert recovered(store).chosen == 3
    assert (found, desk.calls) == (status, [])


# Kills


def prove(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.prove) for name in names]


@pytest.mark.parametrize("name", ["a byte flipped", *prove("row without its event", *DISASTERS)])
def test_a_recovery_that_is_killed_anywhere_comes_to_the_same_end(name: str) -> None:
    with fast_folder() as folder:
        patient = patient_at(folder / "at", 3)
        damage(patient.database, name, 3)
        shots: list[Path] = []

        def point(label: str) -> None:
            shots.append(folder / f"{len(shots)}")
            shutil.copytree(patient.folder, shots[-1])  # what a kill here leaves on disk

        with patient.session("session-2") as store, statements(AgentCursor, point):
            whole = recovered(store)
        assert len(shots) > 20
        for shot in shots:
            with Patient(shot).session("session-2") as store:
                report = recovered(store)
                assert report.state == whole.state
                assert report.step in (whole.step, "newest checkpoint")
                events = [event.event_type for event in store.read_events(RUN)]
            assert events.count("checkpoint_saved") == (
                whole.state.version if whole.state else 3 - (name == "an event missing")
            )
