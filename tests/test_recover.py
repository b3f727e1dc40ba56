"""Recovery trusts the right checkpoint, whatever byte is changed, and never makes things worse."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
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
    recover_and_finish,
    trial_at,
    whole_end,
)
from sqlite_bytes import Stored, parts
from store_parts import rows

from lesson_lib import agent
from lesson_lib.checkpoints import archive
from lesson_lib.checkpoints.archive import create_archive, keep, read_archive, save_kept
from lesson_lib.checkpoints.codec import compress, digest
from lesson_lib.checkpoints.privacy import guard_events
from lesson_lib.checkpoints.retention import abandon
from lesson_lib.errors import (
    CheckpointConflictError,
    CorruptStateError,
    StorageError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import Event
from lesson_lib.recovery.backups import back_up
from lesson_lib.recovery.damage import DISASTERS, damage, edit, write
from lesson_lib.recovery.damage import read as stored_at
from lesson_lib.recovery.effects import settle_open
from lesson_lib.recovery.person import without_content
from lesson_lib.recovery.recover import recover
from lesson_lib.recovery.report import Report
from lesson_lib.recovery.story import Story
from lesson_lib.recovery.trials import RUN, Trial, restored_under
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    load_state,
    read_events,
    record_event,
    save_checkpoint,
    start_run,
)
from lesson_lib.stores.sqlite.connection import AgentCursor
from lesson_lib.stores.sqlite.intents import create_intents, intend
from lesson_lib.stores.sqlite.questions import answer, waiting_questions
from lesson_lib.tickets import find_ticket, read_tickets


def change(trial: Trial, sql: str, *values: object) -> None:
    with closing(connect(trial.database)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(sql, values)


def flips(version: int) -> list[tuple[str, Stored, int]]:
    """Return where each byte of each kept checkpoint, and of the current one, lies in the file."""
    with fast_folder() as folder:
        database = trial_at(folder / "at", version).database
        found = [
            (table, part, at)
            for table in ("run_checkpoints", "agent_runs")
            for part in parts(database, table)
            for at in range(part.start, part.end)
        ]
        with closing(connect(database)) as connection:
            query = "SELECT checkpoint_id FROM run_checkpoints WHERE version = ?"
            (newest,) = connection.execute(query, (version,)).fetchone()
    # The older rows lie the same in each of the files: once is enough.
    return [
        (table, part, at)
        for table, part, at in found
        if version == 3 or (table == "run_checkpoints" and part.rowid == newest)
    ]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_any_byte_of_any_stored_checkpoint_may_change(version: int) -> None:
    classes: Counter[str] = Counter()
    with fast_folder() as folder:
        trial = trial_at(folder / "flipped", version)
        data = trial.database.read_bytes()
        with closing(connect(trial.database)) as connection:
            query = "SELECT checkpoint_id, version FROM run_checkpoints"
            versions = dict(tuple(row) for row in connection.execute(query))
        for table, part, at in flips(version):
            hit = versions[part.rowid] if table == "run_checkpoints" else version
            values = [data[at] ^ 0x01, data[at] ^ 0x80, data[at] ^ 0xFF]
            # Nine hundred bytes of text need not be changed in three ways each.
            for value in values if part.part.startswith("head") else [values[at % 3]]:
                trial_at(trial.folder, version)
                trial.database.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
                where = f"{table} {part.part}, byte {at - part.start}, {data[at]} to {value}"
                classes[_one_byte(trial, part, hit, version, table, where)] += 1
    for kind, count in sorted(classes.items()):
        print(f"run at version {version}: {count:5} {kind}")


def _one_byte(trial: Trial, part: Stored, hit: int, version: int, table: str, where: str) -> str:
    head = part.part.startswith("head")
    try:
        report, end = recover_and_finish(trial)
    except (StorageError, CorruptStateError) as error:
        # Only what SQLite needs to find its way in the page may be beyond us.
        if not head or "backup" not in str(error):
            raise AssertionError(where) from error
        return f"{part.part} of {table}: SQLite refuses the page, a backup is asked for"
    assert hit in {refused.version for refused in report.refused}, f"{where}: nothing is said"
    assert_same_end(trial, end)
    if head:
        return f"{part.part} of {table}: said, and the other checkpoints were used"
    wanted = version - 1 if table == "run_checkpoints" and hit == version else version
    assert report.chosen == wanted, where
    place = "the one before" if wanted < version else "the newest kept"
    return f"value in {table}, version {hit}: said, and went on from {place}"


def test_any_byte_of_the_archives_index_may_change() -> None:
    with fast_folder() as folder:
        trial = trial_at(folder / "flipped", 3)
        data = trial.database.read_bytes()
        with closing(connect(trial.database)) as connection:
            stored = {kept.version: kept for kept in read_archive(connection, RUN)}
        for version in (2, 3):
            # In the index the checksum follows the version; in the row it does not.
            entry = RUN.encode() + bytes([version]) + stored[version].sha256.encode()
            start = data.index(entry)
            for at in range(start, start + len(RUN) + 1):
                trial_at(trial.folder, 3)
                flipped = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
                trial.database.write_bytes(flipped)
                report, end = recover_and_finish(trial)
                assert_same_end(trial, end)
                # The row is whole, and says by itself which one it is.
                assert (report.step, report.chosen) == ("newest checkpoint", 3)


def test_an_undamaged_run_is_only_resumed(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    before = rows(trial.database)
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        assert report.state == load_state(connection, RUN)
        last = read_events(connection, RUN)[-1]
    assert (report.step, report.chosen, report.refused) == ("newest checkpoint", 2, ())
    assert (last.event_type, last.detail) == ("run_resumed", '{"version": 2}')
    after = rows(trial.database)
    assert after["agent_events"][:-1] == before["agent_events"]
    assert {k: v for k, v in after.items() if k != "agent_events"} == {
        k: v for k, v in before.items() if k != "agent_events"
    }


def test_a_saved_result_that_no_checkpoint_has_is_reused(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    with closing(connect(trial.database)) as connection:
        state = load_state(connection, RUN)
        with pytest.raises(BaseException, match="process died"):
            agent.run_next_action(
                connection, state, "session-1", trial.tools, crash_after_tool=True
            )
        report = recover(connection, RUN, "session-2")
    assert report.reused == (f"{RUN}:draft_reply",)


def test_a_completed_run_is_not_resumed(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 4)
    before = rows(trial.database)
    report, end = recover_and_finish(trial)
    assert (report.chosen, end) == (4, whole_end())
    assert rows(trial.database) == before


def test_falling_back_writes_a_new_version_and_says_so(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        state = load_state(connection, RUN)
        events = read_events(connection, RUN)
        kept = [stored.version for stored in read_archive(connection, RUN)]
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
    assert kept == [4, 3, 2, 1, 0]  # what was refused stays


@pytest.mark.parametrize("name", ["rows swapped", "two of one version", "row without its event"])
def test_recovering_twice_changes_nothing_more(tmp_path: Path, name: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, name, 3)
    with closing(connect(trial.database)) as connection:
        first = recover(connection, RUN, "session-2")
        before = rows(trial.database)
        second = recover(connection, RUN, "session-3")
    after = rows(trial.database)
    assert second.state == first.state
    assert after.pop("agent_events")[:-1] == before.pop("agent_events")
    assert after == before


def test_falling_back_again_goes_behind_the_first_recovery(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    with closing(connect(trial.database)) as connection:
        recover(connection, RUN, "session-2")
    damage(trial.database, "truncated", 4)
    report, end = recover_and_finish(trial)
    assert report.state is not None
    assert (report.chosen, report.state.version, report.redo) == (2, 5, ("draft_reply",))
    assert [refused.version for refused in report.refused] == [4, 3]
    assert_same_end(trial, end)


def test_what_was_done_twice_is_to_be_redone_once(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    recover_and_finish(trial)  # version 4 is 2 again, 5 and 6 are its end
    for version in (4, 5, 6):
        damage(trial.database, "truncated", version)
    report, end = recover_and_finish(trial)
    assert (report.chosen, report.redo) == (2, ("draft_reply", "finish"))
    assert_same_end(trial, end)


def test_a_version_that_two_events_tell_of_is_not_trusted(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "UPDATE agent_events SET detail = replace(detail, '2}', '3}')")
    report, end = recover_and_finish(trial)
    assert [refused.reason for refused in report.refused] == [
        "several events tell of it",
        "no event tells of it",
    ]
    assert report.chosen == 1
    assert_same_end(trial, end)


@pytest.mark.parametrize(
    ("name", "step", "chosen"),
    [
        ("all checkpoints", "agent_runs alone", 3),
        ("all checkpoints, agent_runs", "rebuilt from events", 3),
        ("all checkpoints, agent_runs, details", "restarted from the ticket", 0),
    ],
)
def test_without_a_checkpoint_it_goes_down_in_steps(
    tmp_path: Path, name: str, step: str, chosen: int
) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, name, 3)
    report, end = recover_and_finish(trial)
    assert (report.step, report.chosen) == (step, chosen)
    assert report.reason
    assert_same_end(trial, end)
    with closing(connect(trial.database)) as connection:
        steps = [
            from_json(event.detail)["step"]
            for event in read_events(connection, RUN)
            if event.event_type == "recovery_degraded"
        ]
    assert steps == [step]


def test_a_rebuilt_run_goes_as_far_as_its_saved_results(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "all checkpoints, agent_runs", 3)
    change(trial, "DELETE FROM tool_effects WHERE tool_name = 'draft_reply'")
    with closing(connect(trial.database)) as connection, connection:
        record_event(  # as a full buffer does
            connection,
            run_id=RUN,
            session="session-1",
            event_type="payload_not_kept",
            action="draft_reply",
            detail={"key": CALLS[1]},
        )
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
    assert report.state is not None
    assert (report.step, report.chosen) == ("rebuilt from events", 2)
    assert report.state.next_action == "draft_reply"


@pytest.mark.parametrize(
    "change_of",
    [
        *("input_sha256 = 'x'", "tool_name = 'other'", "run_id = 'run-T101'"),
        *("result_json = '{}'", "result_json = '{'", "idempotency_key = 'other'"),
    ],
)
@pytest.mark.parametrize(
    "name", ["truncated", "all checkpoints, agent_runs", "all checkpoints, agent_runs, details"]
)
def test_a_result_that_cannot_be_reused_is_for_a_person(
    tmp_path: Path, name: str, change_of: str
) -> None:
    trial = trial_at(tmp_path / "at", 2)
    damage(trial.database, name, 2)
    change(trial, f"UPDATE tool_effects SET {change_of} WHERE tool_name = 'lookup_runbook'")
    reason = handed_over(trial).reason
    assert "a saved result" in reason or "what is saved: context.runbook lacks code" in reason
    assert trial.ledger.lines() == CALLS[:1]


def test_a_checkpoint_that_was_archived_alone_gives_way(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    with closing(connect(trial.database)) as connection:
        state = load_state(connection, RUN)
        with connection:
            other = {"runbook": state.context["runbook"] | {"step": "Wait."}}
            context = dict(state.context) | other
            keep(connection, replace(state, version=3, context_json=to_json(context)))
        first = recover(connection, RUN, "session-2")
        second = recover(connection, RUN, "session-3")
        assert first.state == second.state == state
        assert (first.refused[0].version, second.refused) == (3, ())
        assert_same_end(trial, trial.finish(connection, state, "session-3"))


def test_a_run_of_part_one_is_checked_against_its_events(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "DROP TABLE run_checkpoints")
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        assert (report.step, report.chosen, report.refused) == ("agent_runs alone", 3, ())
        assert [stored.version for stored in read_archive(connection, RUN)] == [3]
        assert recover(connection, RUN, "session-3").step == "newest checkpoint"
        assert report.state is not None
        assert_same_end(trial, trial.finish(connection, report.state, "session-3"))


def handed_over(trial: Trial) -> Report:
    """Return the report of a run that waits for a person; nothing else may have changed."""
    before = rows(trial.database)
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        again = recover(connection, RUN, "session-3")
        (question,) = waiting_questions(connection)
        (asked, *more) = read_events(connection, RUN)[len(before["agent_events"]) :]
    assert (report.step, report.state) == ("handed to a person", None)
    assert again == report
    assert without_content(report.reason) in question.question
    assert (asked.event_type, more) == ("question_asked", [])
    assert rows(trial.database)["agent_runs"] == before["agent_runs"]
    return report


def test_a_missing_event_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "an event missing", 3)
    assert "an event is missing" in handed_over(trial).reason


def test_a_missing_event_of_a_version_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "UPDATE agent_events SET event_type = 'x' WHERE detail = '{\"version\": 2}'")
    assert "an event is missing" in handed_over(trial).reason


def test_another_agents_run_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "UPDATE agent_events SET action = 'water_plants' WHERE sequence = 2")
    assert "'water_plants'" in handed_over(trial).reason


def test_a_saved_result_that_cannot_be_read_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    change(trial, "UPDATE tool_effects SET result_json = '{' WHERE tool_name = 'draft_reply'")
    assert f"cannot be read: that of {RUN}:draft_reply" in handed_over(trial).reason
    assert trial.ledger.lines() == CALLS


def test_a_run_without_a_ticket_is_for_a_person(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        start_run(
            connection,
            run_id="run-T999",
            ticket_id="T999",
            session="session-1",
            first_action="pay_call_out",
            context={"key": "x"},
        )
        report = recover(connection, "run-T999", "session-2")
    assert report.step == "handed to a person"


def test_another_agents_row_is_for_a_person(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        start_run(
            connection,
            run_id=RUN,
            ticket_id="T104",
            session="session-1",
            first_action="pay_call_out",
            context={"key": "x"},
        )
        report = recover(connection, RUN, "session-2")
        assert "'pay_call_out'" in report.reason
        assert load_state(connection, RUN).next_action == "pay_call_out"


def test_an_unknown_run_is_an_error(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 1)
    with closing(connect(trial.database)) as connection, pytest.raises(UnknownRunError):
        recover(connection, "run-T105", "session-2")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE agent_events SET detail = CAST(x'ff' AS TEXT) WHERE sequence = 2",
        "ALTER TABLE agent_events RENAME COLUMN session TO seshion",
        "ALTER TABLE agent_runs RENAME COLUMN version TO verseon",
    ],
)
def test_rows_that_cannot_be_read_are_an_error_of_ours(tmp_path: Path, sql: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, sql)
    before = trial.database.read_bytes()
    with (
        closing(connect(trial.database)) as connection,
        pytest.raises((CorruptStateError, StorageError), match=r"[Rr]estore (a|it from a) backup"),
    ):
        recover(connection, RUN, "session-2")
    assert trial.database.read_bytes() == before


def test_a_value_of_the_content_stands_in_no_event(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    with closing(connect(trial.database)) as connection:
        guard_events(connection)
    secrets = {"ticket_id": "Mrs Miller " * 40, f"context_{'Miller' * 60}": "1"}
    with closing(sqlite3.connect(trial.database, autocommit=True)) as plain:
        for version, (name, value) in enumerate(secrets.items(), 2):
            write(plain, version, edit(stored_at(plain, version), **{name: value}), signed=True)
    report, end = recover_and_finish(trial)
    assert_same_end(trial, end)
    assert "Miller" in str(report)
    with closing(connect(trial.database)) as connection:
        assert "Miller" not in str(read_events(connection, RUN))


def test_the_newest_row_alone_is_no_older_state(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    damage(trial.database, "agent_runs one version behind", 3)
    report, end = recover_and_finish(trial)
    assert report.state is not None
    assert (report.chosen, report.state.version) == (2, 4)
    assert_same_end(trial, end)


def test_any_byte_of_the_index_of_events_may_change() -> None:
    with fast_folder() as folder:
        trial = trial_at(folder / "flipped", 3)
        data = trial.database.read_bytes()
        # In the index the rowid follows; in the row the session does.
        starts = [data.index(RUN.encode() + bytes([n, n])) for n in (2, 5, 6)]
        for start in starts:
            for at in range(start, start + len(RUN) + 2):
                trial_at(trial.folder, 3)
                trial.database.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                report, end = recover_and_finish(trial)
                assert (report.step, report.chosen) == ("newest checkpoint", 3)
                assert_same_end(trial, end)


def test_what_reads_otherwise_than_it_was_written_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    before = rows(trial.database)
    for name in ("keep", "agree"):
        with monkeypatch.context() as patch, closing(connect(trial.database)) as connection:
            patch.setattr(archive, name, lambda *_: None)
            with pytest.raises(CorruptStateError, match="does not read as it was"):
                recover(connection, RUN, "session-2")
        assert rows(trial.database) == before


@pytest.mark.parametrize("name", ["other next action, signed", "two of one version"])
def test_the_row_alone_stands_beside_no_other_content(tmp_path: Path, name: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "DELETE FROM run_checkpoints WHERE version < 3")
    damage(trial.database, name, 3)
    with closing(connect(trial.database)) as connection:
        report = recover(connection, RUN, "session-2")
        assert report.state is not None
        assert (report.step, report.state.version) == ("agent_runs alone", 4)
        before = len(read_events(connection, RUN))
        assert recover(connection, RUN, "session-3").step == "newest checkpoint"
        assert len(read_events(connection, RUN)) == before + 1  # it was resumed
    assert_same_end(trial, recover_and_finish(trial)[1])


@pytest.mark.parametrize("version", [2, 4])
def test_a_version_that_nobody_kept_is_no_damage(tmp_path: Path, version: int) -> None:
    trial = trial_at(tmp_path / "at", 1)
    with closing(connect(trial.database)) as connection:
        state = load_state(connection, RUN)
        while state.version < version:
            state = agent.run_next_action(connection, state, "session-1", trial.tools)
        report = recover(connection, RUN, "session-2")
        assert (report.step, report.state) == ("agent_runs alone", state)
        assert recover(connection, RUN, "session-3").step == "newest checkpoint"
    assert_same_end(trial, recover_and_finish(trial)[1])


def test_a_version_that_nobody_kept_must_agree(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "row missing", 3)
    damage(trial.database, "a word of agent_runs changed", 3)
    report, end = recover_and_finish(trial)
    assert (report.step, report.chosen) == ("older checkpoint", 2)
    assert_same_end(trial, end)


def hide_newest_row(trial: Trial, version: int) -> None:
    """Change the run's name in the index entry of a row: the row itself stays whole."""
    with closing(connect(trial.database)) as connection:
        (stored,) = read_archive(connection, RUN, version=version)
    entry = RUN.encode() + bytes([version]) + stored.sha256.encode()
    data = bytearray(trial.database.read_bytes())
    data[data.index(entry)] ^= 1
    trial.database.write_bytes(data)


def test_a_row_that_was_kept_twice_behind_a_damaged_index_is_no_hindrance(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    hide_newest_row(trial, 2)
    with closing(connect(trial.database)) as connection:
        state = agent.resume(connection, RUN, "session-2")
        agent.run_next_action(connection, state, "session-2", trial.tools, save=save_kept)
        assert recover(connection, RUN, "session-3").refused
        assert recover(connection, RUN, "session-3").refused == ()
        assert [kept.version for kept in read_archive(connection, RUN)] == [3, 2, 1, 0]
        back_up(connection, tmp_path / "backup.db")


def test_an_index_that_cannot_be_mended_now_is_no_damage(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    hide_newest_row(trial, 2)
    with closing(connect(trial.database, timeout=0)) as connection:
        create_archive(connection)
        before = rows(trial.database)

        def lock_it(sql: str) -> None:
            """Hold the lock while the index would be mended, and no longer."""
            if "run_checkpoints NOT INDEXED WHERE run_id" in sql:
                other.execute("BEGIN IMMEDIATE")
            elif other.in_transaction and "BETWEEN" in sql:
                other.execute("ROLLBACK")

        with closing(sqlite3.connect(trial.database, autocommit=True)) as other:
            connection.set_trace_callback(lock_it)
            with pytest.raises(StorageError, match="is locked"):
                recover(connection, RUN, "session-2")
            connection.set_trace_callback(None)
        assert rows(trial.database) == before
        assert recover(connection, RUN, "session-2").chosen == 2


def test_a_save_of_another_session_is_no_damaged_index(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    saved: list[bool] = []
    with (
        closing(connect(trial.database)) as connection,
        closing(connect(trial.database)) as other,
    ):

        def save(sql: str) -> None:
            if "run_checkpoints NOT INDEXED WHERE run_id" in sql and not saved:
                saved.append(True)
                state = load_state(other, RUN)
                agent.run_next_action(other, state, "session-2", trial.tools, save=save_kept)

        connection.set_trace_callback(save)
        assert recover(connection, RUN, "session-3").refused == ()
    assert saved


def test_a_question_that_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "an event missing", 3)
    with closing(connect(trial.database)) as connection:
        for _ in range(3):
            assert recover(connection, RUN, "session-2").state is None
            for question in waiting_questions(connection):
                answer(connection, question.question_id, question.choices[1], person="Ada")
        (asked,) = connection.execute("SELECT count(*) FROM run_questions").fetchone()
    assert asked == 1


def test_a_lost_result_of_a_tool_that_ran_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    change(trial, "DELETE FROM tool_effects WHERE tool_name = 'draft_reply'")
    assert f"its tool ran: {RUN}:draft_reply" in handed_over(trial).reason


def test_a_lost_event_of_a_version_that_two_rows_hold_is_for_a_person(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    change(trial, "UPDATE agent_events SET event_type = 'checkpoint_savee' WHERE sequence = 6")
    assert "the event of version 3 is missing" in handed_over(trial).reason
    assert len(rows(trial.database)["run_checkpoints"]) == 4


def test_a_run_at_version_0_needs_no_event_of_its_start(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 0)
    change(trial, "UPDATE agent_events SET event_type = 'run_startee'")
    change(trial, "UPDATE agent_runs SET context_json = '{}'")
    with closing(connect(trial.database)) as connection:
        versions = [recover(connection, RUN, "session-2").state for _ in range(3)]
    assert [state and state.version for state in versions] == [1, 1, 1]
    assert_same_end(trial, recover_and_finish(trial)[1])


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
    story = Story(RUN, (first, *events), 3_000)
    assert {story.next_after(version) for version in range(1, 3_001)} == {"lookup_runbook"}
    assert not story.has_gap


@pytest.mark.parametrize("kept", [True, False])
def test_an_abandoned_run_stays_abandoned(tmp_path: Path, kept: bool) -> None:
    trial = trial_at(tmp_path / "at", 2)
    later = datetime.now(UTC) + timedelta(days=9)
    with closing(connect(trial.database, clock=lambda: later)) as connection:
        abandon(connection, load_state(connection, RUN), session="s", reason="nobody goes on")
        if not kept:
            connection.execute("DELETE FROM run_checkpoints WHERE version = 3")
        before = rows(trial.database)
        report = recover(connection, RUN, "session-2")
        assert report.state == load_state(connection, RUN)
        assert report.state is not None
        assert report.state.status == "completed"
        assert rows(trial.database) == before
    change(trial, "UPDATE agent_runs SET context_json = '{}'")
    if kept:
        report, end = recover_and_finish(trial)
        assert (report.chosen, end and end.status) == (3, "completed")
        change(trial, "UPDATE run_checkpoints SET body = x'00' WHERE version > 2")
        change(trial, "UPDATE agent_runs SET context_json = '{}'")
    assert "it was given up" in handed_over(trial).reason


def test_a_state_too_large_to_be_kept_goes_on(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 2)
    change(trial, "DELETE FROM run_checkpoints")
    change(
        trial,
        """UPDATE agent_runs SET context_json =
        json_set(context_json, '$.plan', json_object('x', hex(zeroblob(600000))))""",
    )
    with closing(connect(trial.database)) as connection:
        for count in (1, 2):
            report = recover(connection, RUN, "session-2")
            assert report.state == load_state(connection, RUN)
            assert "too large to be kept" in report.reason
            resumed = [e.event_type for e in read_events(connection, RUN)[-count:]]
            assert resumed == ["run_resumed"] * count


def test_a_later_damage_is_asked_about_anew(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    first = "UPDATE agent_events SET action = '{}' WHERE sequence = 2"
    for times in (1, 2):
        change(trial, first.format("water_plants"))
        with closing(connect(trial.database)) as connection:
            for _ in range(2):
                assert recover(connection, RUN, "session-2").state is None
            (question,) = waiting_questions(connection)
            answer(connection, question.question_id, question.choices[0], person="Ada")
            (asked,) = connection.execute("SELECT count(*) FROM run_questions").fetchone()
            assert asked == times
            change(trial, first.format("classify_priority"))
            assert recover(connection, RUN, "session-2").state is not None


def test_another_reason_is_not_asked_about_while_a_question_waits(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "an event missing", 3)
    with closing(connect(trial.database)) as connection:
        recover(connection, RUN, "session-2")
        change(trial, "DELETE FROM tool_effects")
        change(trial, "UPDATE agent_events SET action = 'water_plants' WHERE sequence = 3")
        recover(connection, RUN, "session-2")
        assert len(waiting_questions(connection)) == 1


# Conflicts


def test_a_number_alone_lets_two_histories_mix(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 1)
    with closing(connect(trial.database)) as connection:
        first, second = restored_under(trial, connection, save_checkpoint)
        assert first.version == second.version == 3
        mixed = agent.run_next_action(connection, first, "session-1", trial.tools)
    assert mixed.context["reply"] == first.context["draft"] != second.context["draft"]


def test_a_kept_state_refuses_another_history(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 1)
    with closing(connect(trial.database)) as connection:
        first, second = restored_under(trial, connection, save_kept)
        before = rows(trial.database)
        with pytest.raises(CheckpointConflictError, match="version 3 of run-T104"):
            agent.run_next_action(connection, first, "session-1", trial.tools, save=save_kept)
        assert rows(trial.database) == before
        assert recover(connection, RUN, "session-3").state == second


def test_the_same_content_twice_is_no_conflict(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    with closing(connect(trial.database)) as connection:
        (stored,) = read_archive(connection, RUN, version=3)
        packed = replace(stored, compression="gzip", body=compress(stored.body, "gzip"))
        connection.execute(
            """INSERT INTO run_checkpoints
            (run_id, version, schema_version, compression, body, sha256)
            VALUES (:run_id, :version, :schema_version, :compression, :body, :sha256)""",
            vars(replace(packed, sha256=digest(packed))),
        )
        report = recover(connection, RUN, "session-2")
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


def with_intent(connection: AgentConnection) -> None:
    create_intents(connection)
    intend(
        connection,
        run_id=RUN,
        session="session-1",
        key="K",
        tool_name="pay_call_out",
        request={},
    )


def test_an_open_intent_comes_before_everything(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    damage(trial.database, "a byte flipped", 3)
    with closing(connect(trial.database)) as connection:
        with_intent(connection)
        before = rows(trial.database)
        report = recover(connection, RUN, "session-2")
        assert (report.step, report.state) == ("effects first", None)
        assert rows(trial.database) == before
        desk = Desk({"K": {"made": "K"}})
        assert settle_open(connection, RUN, "session-2", desk, timedelta(hours=1)) == []
        assert desk.calls == []
        assert recover(connection, RUN, "session-2").chosen == 2


def test_a_damaged_intent_stops_no_other_run(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    with closing(connect(trial.database)) as connection:
        agent.start(connection, find_ticket(read_tickets(), "T105"), "session-1")
        with_intent(connection)
    change(trial, "UPDATE tool_intents SET request_json = '{', intended_at_utc = 'never'")
    with closing(connect(trial.database)) as connection:
        assert recover(connection, RUN, "session-2").step == "effects first"
    change(trial, "UPDATE tool_intents SET run_id = 'run-T105'")
    with closing(connect(trial.database)) as connection:
        assert recover(connection, RUN, "session-2").chosen == 3


def test_another_runs_intent_does_not_stop_this_one(tmp_path: Path) -> None:
    trial = trial_at(tmp_path / "at", 3)
    with closing(connect(trial.database)) as connection:
        agent.start(connection, find_ticket(read_tickets(), "T105"), "session-1")
        with_intent(connection)
        connection.execute("UPDATE tool_intents SET run_id = 'run-T105'")
        assert recover(connection, RUN, "session-2").chosen == 3


@pytest.mark.parametrize(
    ("choice", "status"), [("it happened", "confirmed"), ("it did not happen", "refused")]
)
def test_what_no_service_can_tell_is_asked_once(tmp_path: Path, choice: str, status: str) -> None:
    trial = trial_at(tmp_path / "at", 3)
    desk = Desk({})
    with closing(connect(trial.database)) as connection:
        with_intent(connection)
        for _ in range(2):
            left = settle_open(connection, RUN, "session-2", desk, timedelta())
            assert [intent.idempotency_key for intent in left] == ["K"]
            assert recover(connection, RUN, "session-2").state is None
        (question,) = waiting_questions(connection)
        answer(connection, question.question_id, choice, person="Ada")
        assert settle_open(connection, RUN, "session-2", desk, timedelta()) == []
        (found,) = connection.execute("SELECT status FROM tool_intents").fetchone()
        assert recover(connection, RUN, "session-2").chosen == 3
    assert (found, desk.calls) == (status, [])


# Kills


@pytest.mark.parametrize("name", ["a byte flipped", "row without its event", *DISASTERS])
def test_a_recovery_that_is_killed_anywhere_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with fast_folder() as folder:
        trial = trial_at(folder / "at", 3)
        damage(trial.database, name, 3)
        shots: list[Path] = []
        plain = AgentCursor.execute

        def execute(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
            shots.append(folder / f"{len(shots)}")
            shutil.copytree(trial.folder, shots[-1])  # what a kill here leaves on disk
            return plain(cursor, sql, parameters)

        with monkeypatch.context() as patch, closing(connect(trial.database)) as connection:
            patch.setattr(AgentCursor, "execute", execute)
            whole = recover(connection, RUN, "session-2")
        assert len(shots) > 10
        for shot in shots:
            with closing(connect(shot / "agent.db")) as connection:
                report = recover(connection, RUN, "session-2")
            assert (report.state, report.step) == (whole.state, whole.step)
            with closing(connect(shot / "agent.db")) as connection:
                events = [e.event_type for e in read_events(connection, RUN)]
            assert events.count("checkpoint_saved") == (
                whole.state.version if whole.state else 3 - (name == "an event missing")
            )
