"""A power cut at any moment: what it may leave, and that the package's own setting loses nothing.

The survey is made at two widths, the lesson's and a wider one; they must tell the same story.
"""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from store_parts import Rows, rows

from lesson_lib.labs.crash_everywhere.powerloss.disk import FOLDER, Operation
from lesson_lib.labs.crash_everywhere.powerloss.recording import (
    DATABASE,
    LEVELS,
    MEMORY,
    SETTINGS,
    Recording,
    operations,
    record,
)
from lesson_lib.labs.crash_everywhere.powerloss.states import DiskState, disk_states
from lesson_lib.labs.crash_everywhere.powerloss.surveys import first_loss, go_on, survey
from lesson_lib.labs.crash_everywhere.powerloss.verdicts import (
    Verdict,
    examined,
    judge,
    look,
    write_files,
)
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.tickets import Tools, ticket_agent

WIDE, LESS_WIDE = 10, 4  # what is never corrupt is looked at longer
REPLY = (
    "Priority: urgent. Next step: Check the gateway heartbeat, then ask a technician to inspect the"
    " sensor."
)
KEYS = ("run-T104:lookup_runbook", "run-T104:draft_reply")

# journal_mode, synchronous: the verdict, the most checkpoints lost at once, syncs of a checkpoint
TABLE = {
    ("DELETE", "OFF"): ("corrupts", 5, 0),
    ("DELETE", "NORMAL"): ("corrupts", 1, 3),
    ("DELETE", "FULL"): ("loses what it acknowledged", 1, 4),
    ("DELETE", "EXTRA"): ("loses nothing", 0, 5),
    ("WAL", "OFF"): ("corrupts", 5, 0),
    ("WAL", "NORMAL"): ("loses what it acknowledged", 5, 0),
    ("WAL", "FULL"): ("loses nothing", 0, 1),
}
NEVER_CORRUPT = [setting for setting, row in TABLE.items() if row[0] != "corrupts"]


def whole(recording: Recording) -> DiskState:
    """Return the disk that has every operation."""
    places = tuple(i for i in range(len(recording.log)) if is_on_disk(recording.log[i]))
    return DiskState(recording, len(recording.log), 4, frozenset(KEYS), (), places, None)


def without(recording: Recording, place: int) -> Recording:
    """Return a recording in which SQLite never did the operation at this place of the log."""
    return replace(recording, log=recording.log[:place] + recording.log[place + 1 :])


def examine(state: DiskState) -> Verdict:
    """Open a disk state as a new process would and judge what is there."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        return judge(state, look(state.files(), Path(folder)))


def is_on_disk(operation: Operation) -> bool:
    return operation.kind in ("create", "write", "truncate", "delete")


def left(*log: Operation) -> set[tuple[tuple[str, bytes], ...]]:
    """Return what a power cut after the last of these operations may leave, as sorted files."""
    states = disk_states(Recording("DELETE", "FULL", log), width=64)
    return {tuple(sorted(s.files().items())) for s in states if s.point == len(log)}


# The recording


@pytest.mark.parametrize(("journal_mode", "synchronous"), SETTINGS)
def test_sqlite_took_the_pragmas(journal_mode: str, synchronous: str) -> None:
    found = record(journal_mode, synchronous)
    assert (found.journal_mode, found.synchronous) == (journal_mode, synchronous)


def test_a_setting_that_sqlite_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="WAL, SAFE is no known setting"):
        record("WAL", "SAFE")


def test_in_wal_mode_extra_does_what_full_does() -> None:
    assert record("WAL", "EXTRA").log == record("WAL", "FULL").log


@pytest.mark.parametrize(("journal_mode", "synchronous"), SETTINGS)
def test_what_was_recorded_is_the_agents_run(
    journal_mode: str, synchronous: str, tmp_path: Path, tools: Tools
) -> None:
    recording = record(journal_mode, synchronous)
    write_files(whole(recording).files(), tmp_path)
    path = tmp_path / "real.db"
    with closing(connect(path)) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, "session-1")
        ticket_agent.run_to_end(store, ticket_agent.start(store, "run-T104"), tools)
    recorded, real = rows(tmp_path / DATABASE), rows(path)
    for found in (recorded, real):
        found["agent_events"] = [row[:-1] for row in found["agent_events"]]
    assert recorded == real
    told = [
        (each.kind, each.at or each.name) for each in recording.log if not on_disk_or_sync(each)
    ]
    assert told == [
        ("checkpoint", DATABASE),
        ("checkpoint", 1),
        ("tool", KEYS[0]),
        ("checkpoint", 2),
        ("tool", KEYS[1]),
        ("checkpoint", 3),
        ("checkpoint", 4),
    ]


def on_disk_or_sync(operation: Operation) -> bool:
    return is_on_disk(operation) or operation.kind == "sync"


def test_pages_are_written_whole() -> None:
    writes = [o for o in record("WAL", "FULL").log if (o.kind, o.name) == ("write", DATABASE)]
    assert writes
    assert {(o.at % 4096, len(o.data)) for o in writes} == {(0, 4096)}


FINGERPRINT = """
import hashlib
from lesson_lib.labs.crash_everywhere.powerloss import record
digest = hashlib.sha256()
for setting in (("DELETE", "FULL"), ("WAL", "FULL")):
    for each in record(*setting).log:
        digest.update(f"{each} {each.file}".encode() + each.data)
print(digest.hexdigest())
"""


def test_a_recording_is_the_same_in_every_process() -> None:
    prints = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert prints[0] == prints[1]
    assert len(prints[0]) == 65


def test_apsw_is_left_as_it_was() -> None:
    before = apsw.vfs_names()
    first = record("WAL", "FULL") and apsw.randomness(16)
    second = record("WAL", "FULL") and apsw.randomness(16)
    assert apsw.vfs_names() == before
    assert "logged" not in before
    assert first != second


def test_operations_are_told_in_words() -> None:
    found = operations(record("WAL", "FULL"), 2)
    assert [str(each) for each in found.values()] == [
        *(f"write agent.db-wal {what}" for what in WAL_WRITES),
        "sync agent.db-wal",
        "acknowledge version 2",
    ]
    assert all(record("WAL", "FULL").log[place] is not None for place in found)
    words = {str(each).split()[0] for each in record("WAL", "FULL").log}
    assert words == {"create", "write", "truncate", "delete", "sync", "acknowledge"}


WAL_WRITES = [
    "24 bytes at 74192",
    "4096 bytes at 74216",
    "24 bytes at 78312",
    "4096 bytes at 78336",
    "24 bytes at 82432",
    "4096 bytes at 82456",
]


# The model: small logs whose states can be counted by hand

NEW, NEW_SAFE = Operation("create", "a", file=1), Operation("sync", FOLDER)
WRITE, SYNC = Operation("write", "a", 0, b"xy", file=1), Operation("sync", "a", file=1)


def test_a_write_is_lost_or_kept_or_leaves_zeros_until_its_file_is_synced() -> None:
    assert left(NEW, NEW_SAFE, WRITE) == {(("a", b""),), (("a", b"xy"),), (("a", b"\0\0"),)}
    assert left(NEW, NEW_SAFE, WRITE, SYNC) == {(("a", b"xy"),)}


def test_a_sync_says_nothing_of_later_writes_and_other_files() -> None:
    later = Operation("write", "a", 1, b"z", file=1)
    assert left(NEW, NEW_SAFE, WRITE, SYNC, later) == {(("a", b"xy"),), (("a", b"xz"),)}
    other = Operation("sync", "b", file=2)
    assert left(NEW, NEW_SAFE, WRITE, other) == left(NEW, NEW_SAFE, WRITE)


def test_a_name_is_new_or_gone_only_when_its_folder_is_synced() -> None:
    assert left(NEW, WRITE, SYNC) == {(), (("a", b"xy"),)}
    delete = Operation("delete", "a", file=1)
    assert left(NEW, NEW_SAFE, WRITE, SYNC, delete) == {(), (("a", b"xy"),)}
    assert left(NEW, NEW_SAFE, WRITE, SYNC, delete, NEW_SAFE) == {()}


def test_an_old_file_may_come_back_under_the_name_of_a_new_one() -> None:
    again = [Operation("delete", "a", file=1), Operation("create", "a", file=2)]
    new = [Operation("write", "a", 0, b"new", file=2), Operation("sync", "a", file=2)]
    log = [NEW, NEW_SAFE, WRITE, SYNC, *again, *new]
    assert left(*log) == {(), (("a", b"xy"),), (("a", b"new"),)}
    assert left(*log, NEW_SAFE) == {(("a", b"new"),)}


def test_a_sync_of_the_new_file_says_nothing_of_the_old_one() -> None:
    new = Operation("create", "a", file=2), Operation("sync", "a", file=2)
    found = left(NEW, NEW_SAFE, WRITE, Operation("delete", "a", file=1), *new)
    assert (("a", b"xy"),) in found
    assert (("a", b"\0\0"),) in found


def test_a_truncation_may_be_lost_while_a_later_write_is_kept() -> None:
    cut = Operation("truncate", "a", 0, file=1)
    later = Operation("write", "a", 0, b"z", file=1)
    contents = {content for ((_, content),) in left(NEW, NEW_SAFE, WRITE, SYNC, cut, later)}
    assert contents == {b"xy", b"", b"zy", b"z"}
    longer = Operation("truncate", "a", 4, file=1)
    assert left(NEW, NEW_SAFE, WRITE, SYNC, longer, SYNC) == {(("a", b"xy\0\0"),)}


def test_writes_are_kept_in_any_mixture_and_a_hole_holds_zeros() -> None:
    two = Operation("write", "a", 2, b"zz", file=1)
    contents = {content for ((_, content),) in left(NEW, NEW_SAFE, WRITE, two)}
    assert {b"", b"xy", b"\0\0zz", b"xyzz", b"xy\0\0"} <= contents


def test_of_many_writes_each_is_lost_alone_and_kept_alone() -> None:
    old = Operation("write", "a", 0, b"o" * 9, file=1)
    new = [Operation("write", "a", i, b"n", file=1) for i in range(9)]
    found = left(NEW, NEW_SAFE, old, SYNC, *new)
    assert len(found) < 2**9
    for i in range(9):
        before, after = b"o" * i, b"o" * (8 - i)
        alone = before + b"n" + after
        swap = bytes.maketrans(b"on", b"no")
        for content in (alone, alone.translate(swap), b"n" * i + b"o" + after, b"n" * 9, b"o" * 9):
            assert (("a", content),) in found


def test_a_write_is_torn_between_sectors_and_nowhere_else() -> None:
    old = Operation("write", "a", 0, b"o" * 1536, file=1)
    new = Operation("write", "a", 256, b"n" * 1024, file=1)
    contents = {content for ((_, content),) in left(NEW, NEW_SAFE, old, SYNC, new)}
    assert contents == {
        b"o" * 1536,
        b"o" * 256 + b"n" * 1024 + b"o" * 256,
        b"o" * 256 + b"n" * 256 + b"o" * 1024,
        b"o" * 256 + b"n" * 768 + b"o" * 512,
        b"o" * 512 + b"n" * 768 + b"o" * 256,
        b"o" * 1024 + b"n" * 256 + b"o" * 256,
    }


def test_what_the_agent_was_told_belongs_to_the_moment() -> None:
    told = [
        Operation("checkpoint", "a", 0),
        Operation("tool", "k"),
        Operation("checkpoint", "a", 1),
    ]
    found = disk_states(Recording("DELETE", "FULL", (NEW, NEW_SAFE, *told)))
    moments = {state.point: (state.version, state.results) for state in found}
    assert moments == {
        0: (-1, frozenset()),
        1: (-1, frozenset()),
        2: (-1, frozenset()),
        3: (0, frozenset()),
        4: (0, {"k"}),
        5: (1, {"k"}),
    }


def test_the_states_are_the_same_each_time() -> None:
    recording = record("WAL", "NORMAL")
    first, second = ([s.reached for s in disk_states(recording)] for _ in range(2))
    assert first == second


# The verdicts


def disk(database: Path) -> DiskState:
    """Return the disk that holds this database, all of it safe."""
    write = Operation("write", DATABASE, 0, database.read_bytes(), file=1)
    recording = Recording("DELETE", "FULL", (Operation("create", DATABASE, file=1), write))
    return DiskState(recording, 2, -1, frozenset(), (), (0, 1), None)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DELETE FROM agent_events WHERE sequence = 1", "no sequence missing"),
        ("DELETE FROM agent_events WHERE sequence = 7", "one event for each checkpoint"),
        ("UPDATE agent_runs SET version = 3", "one event for each checkpoint"),
        ("UPDATE agent_events SET detail = '{\"version\": 9}' WHERE sequence = 7", "checkpoint"),
        (f"DELETE FROM tool_effects WHERE idempotency_key = '{KEYS[0]}'", "each tool result"),
        ("UPDATE tool_effects SET idempotency_key = 'k' || idempotency_key", "each tool result"),
        ("UPDATE agent_runs SET status = 'running', next_action = 'finish'", "next action fits"),
        ("DELETE FROM agent_runs", "rows without their run"),
        ("UPDATE tool_effects SET result_json = '{'", "CHECK constraint"),
        ("UPDATE agent_events SET detail = '{'", "CHECK constraint"),
        ("UPDATE agent_runs SET context_json = '{'", "CHECK constraint"),
        ("DROP TABLE tool_effects", "no such table"),
    ],
)
def test_a_broken_promise_is_called_corrupt(sql: str, problem: str, tmp_path: Path) -> None:
    write_files(whole(record("DELETE", "FULL")).files(), tmp_path)
    assert str(examine(disk(tmp_path / DATABASE))) == "ok"
    with closing(sqlite3.connect(tmp_path / DATABASE, autocommit=True)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(sql)
    verdict = str(examine(disk(tmp_path / DATABASE)))
    assert verdict.startswith("corrupt: ")
    assert problem in verdict


def test_a_damaged_page_is_called_corrupt(tmp_path: Path) -> None:
    files = whole(record("DELETE", "FULL")).files()
    damaged = bytearray(files[DATABASE])
    damaged[4096:8192] = bytes(4096)
    write_files({DATABASE: bytes(damaged)}, tmp_path)
    assert str(examine(disk(tmp_path / DATABASE))).startswith("corrupt: ")


def test_what_is_lost_is_told_in_words() -> None:
    state = whole(record("DELETE", "FULL"))
    empty = DiskState(state.recording, state.point, 4, frozenset(KEYS), (), (), None)
    lost = f"lost: 5 checkpoints, the result of {KEYS[1]}, the result of {KEYS[0]}"
    assert str(examine(empty)) == lost
    one = DiskState(state.recording, state.point, 0, frozenset(), (), (), None)
    assert str(examine(one)) == "lost: 1 checkpoint"
    assert str(examine(state)) == "ok"


def test_a_look_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    files = {DATABASE: b"no database", f"{DATABASE}-journal": b"x", f"{DATABASE}-wal": b"x"}
    assert look(files, tmp_path).problem == "file is not a database"
    assert list(tmp_path.iterdir()) == []


def test_a_state_is_judged_alike_alone_and_among_others() -> None:
    among = list(examined(record("DELETE", "OFF")))[::23]
    assert [examine(state) for state, _ in among] == [verdict for _, verdict in among]


# The surveys


@pytest.mark.prove  # the lesson's own table is as wide as `narrow`
@pytest.mark.parametrize("setting", TABLE)
def test_what_a_setting_can_lose(setting: tuple[str, str]) -> None:
    _, most_lost, fsyncs = TABLE[setting]
    recording = record(*setting)
    narrow = survey(recording)
    wide = survey(recording, WIDE if setting in NEVER_CORRUPT else LESS_WIDE)
    for found in (narrow, wide):
        assert (found.journal_mode, found.synchronous) == setting
        assert (found.verdict, found.most_lost, found.fsyncs) == TABLE[setting]
        assert (found.corrupt > 0) == (setting not in NEVER_CORRUPT)
        assert (found.losing_points > 0) == (most_lost > 0)
    assert narrow.losing_points == wide.losing_points
    assert narrow.corrupt <= wide.corrupt
    assert wide.states > 1.4 * narrow.states > 600
    versions = range(1, 5)
    assert {len(syncs(recording, version)) for version in versions} == {fsyncs}


def test_the_setting_of_the_package_loses_nothing(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    assert first_loss(record(journal_mode.upper(), LEVELS[synchronous])) is None


def test_the_first_loss_under_full_is_one_deleted_name() -> None:
    found = first_loss(record("DELETE", "FULL"), version=2)
    assert found is not None
    state, verdict = found
    (place,) = state.pending
    assert str(state.recording.log[place]) == "delete agent.db-journal"
    assert place not in state.reached
    assert (state.version, verdict.found.version) == (2, 1)
    assert sorted(state.files()) == [DATABASE, f"{DATABASE}-journal"]


# Take away one sync


def syncs(recording: Recording, version: int) -> list[int]:
    """Return the places of the syncs of one checkpoint."""
    found = operations(recording, version)
    return [place for place, each in found.items() if each.kind == "sync"]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_without_the_sync_of_the_wal_its_checkpoint_can_be_lost(version: int) -> None:
    recording = record("WAL", "FULL")
    (place,) = syncs(recording, version)
    found = first_loss(without(recording, place))
    assert found is not None
    state, verdict = found
    # It can be lost from the very moment at which the agent is told.
    assert (state.point, state.version) == (place + 1, version)
    assert str(verdict) == "lost: 1 checkpoint"


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (0, "corrupt: "),  # the journal: what to put back
        (1, "corrupt: "),  # its name
        (2, "corrupt: "),  # its header: how much to put back
        (3, "corrupt: "),  # the database
        (4, "lost: "),  # the name of the journal, which is gone
    ],
)
def test_no_sync_of_a_checkpoint_with_a_journal_can_be_spared(number: int, what: str) -> None:
    recording = record("DELETE", "EXTRA")
    places = syncs(recording, 2)
    assert len(places) == 5
    found = first_loss(without(recording, places[number]))
    assert found is not None
    state, verdict = found
    assert places[number] <= state.point <= places[-1] + 1
    assert str(verdict).startswith(what)


def test_without_the_sync_before_the_wal_is_deleted_the_run_can_be_lost() -> None:
    recording = record("WAL", "FULL")
    (place,) = (
        i
        for i, each in enumerate(recording.log)
        if (each.kind, each.name) == ("sync", DATABASE) and i > max(operations(recording, 4))
    )
    found = first_loss(without(recording, place))
    assert found is not None
    assert found[0].point > place
    assert found[0].version == 4


# The next process


def all_kept(state: DiskState) -> bool:
    return state.torn is None and set(state.pending) <= set(state.reached)


@pytest.mark.parametrize(
    "setting", [pytest.param(("DELETE", "FULL"), marks=pytest.mark.prove), ("WAL", "FULL")]
)
def test_the_package_opens_whatever_is_left_and_finds_a_commit(setting: tuple[str, str]) -> None:
    commits: list[Rows] = []
    others: dict[str, Rows] = {}
    for state, _ in examined(record(*setting)):
        files = state.files()
        key = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        if key in others:
            continue
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            write_files(files, Path(folder))
            path = Path(folder, DATABASE)
            with closing(connect(path)) as connection:
                create_schema(connection)
            others[key] = rows(path)
        if all_kept(state) and others[key] not in commits:
            commits.append(others[key])
    # Nothing, the start, four checkpoints, two tool results.
    assert len(commits) == 8
    assert [found for found in others.values() if found not in commits] == []


@pytest.mark.parametrize(
    "setting", [pytest.param(("DELETE", "FULL"), marks=pytest.mark.prove), ("WAL", "NORMAL")]
)
def test_a_new_process_goes_on_and_calls_only_what_is_lost(setting: tuple[str, str]) -> None:
    kinds: dict[tuple[int, frozenset[str]], DiskState] = {}
    for state, verdict in examined(record(*setting)):
        kinds.setdefault((verdict.found.version, verdict.found.results), state)
    assert len(kinds) == 8
    for (_, results), state in kinds.items():
        assert go_on(state) == (REPLY, [key for key in KEYS if key not in results])
