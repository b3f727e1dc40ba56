"""Bad input, by name: each gets an error of our own that names place and cure; nothing is lost."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from store_parts import files, new_database, rows

from lesson_lib.errors import (
    CorruptStateError,
    ForeignFileError,
    InvalidStateError,
    JSONValueError,
    LessonError,
    RunCompletedError,
    SchemaVersionError,
    StorageError,
    ToolResultError,
    UnknownActionError,
    UnknownRunbookError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import Child
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    create_schema,
    delete_run,
    execute_once,
    load_state,
    read_events,
    save_checkpoint,
    start_run,
)
from lesson_lib.tickets import Tools, find_ticket, new_run, read_tickets, ticket_agent

TICKET = find_ticket(read_tickets(), "T104")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database that holds the run of T104 at version 1, about to look up its runbook."""
    path = new_database(tmp_path)
    with closing(connect(path)) as connection:
        store = SQLiteStore(connection, "s1")
        state = ticket_agent.start(store, "run-T104")
        ticket_agent.run_next_action(store, state, Tools({}, Ledger(tmp_path / "none")))
    return path


@pytest.fixture
def connection(database: Path) -> Iterator[AgentConnection]:
    with closing(connect(database, timeout=0.1)) as opened:
        yield opened


@pytest.fixture
def store(connection: AgentConnection) -> SQLiteStore:
    return SQLiteStore(connection, "s1")


@contextmanager
def refused(error: type[LessonError], place: str, cure: str, database: Path) -> Iterator[None]:
    """Expect an error that names place and cure, and all rows as they were."""
    before = rows(database)
    with pytest.raises(error) as caught:
        yield
    assert place in str(caught.value)
    assert cure in str(caught.value)
    assert rows(database) == before


def save(connection: AgentConnection, state: RunState, context: JSONObject) -> RunState:
    return save_checkpoint(connection, state, Step("a", context, "b"), session="s1")


def once(connection: AgentConnection, run_id: str) -> object:
    call = ToolCall(run_id, "k", "t", None, lambda: 1)
    return execute_once(connection, call, session="s1", wait=0.1)


def by_hand(database: Path, change: str) -> None:
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute(f"UPDATE agent_runs SET {change}")


# The path.


def test_a_folder(database: Path) -> None:
    before = files(database.parent)
    with refused(StorageError, str(database.parent), "is a folder: name a file in it", database):
        connect(database.parent)
    assert files(database.parent) == before


@pytest.mark.parametrize("path", ["missing/agent.db", "agent.db/agent.db"])
def test_a_path_in_no_folder(database: Path, path: str) -> None:
    with refused(StorageError, str((database.parent / path).parent), "make it first", database):
        connect(database.parent / path)


UNPRIVILEGED = """
import os, sys
from lesson_lib.model import RunState
from lesson_lib.sqlite import connect, create_schema, start_run
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    connection = connect(sys.argv[1])
    create_schema(connection)
    start_run(connection, RunState.begin("r", "T1", "a", {}), session="s")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555), (None, 0o555)]
)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_read_only(database: Path, file_mode: int | None, folder_mode: int) -> None:
    before = rows(database)
    with tempfile.TemporaryDirectory() as open_to_all:  # no other user may enter tmp_path
        path = Path(open_to_all, "agent.db")
        if file_mode is not None:
            shutil.copy(database, path)
            path.chmod(file_mode)
        path.parent.chmod(folder_mode)
        said = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, path],
            check=True,
            capture_output=True,
            text=True,
            env={n: v for n, v in os.environ.items() if not n.startswith("COVERAGE_")},
        ).stdout
        path.parent.chmod(0o777)
        assert said.startswith(f"StorageError {path} cannot be ")
        assert "check the permissions of the file and its folder" in said
        assert path.exists() == (file_mode is not None)
        if file_mode is not None:
            assert rows(path) == before


FOREIGN = {
    "a text": b"ticket_id,area\nT1,packing\n",
    "a short text": b"hi",
    "a text of many pages": b"a line of text\n" * 10_000,
    "zeros": bytes(4096),
    "a damaged header": b"SQLite format 3\x00" + bytes(4080),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_database(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(FOREIGN[kind])
    with pytest.raises(ForeignFileError) as caught:
        connect(path)
    assert str(caught.value) == f"{path} is not an SQLite database: choose another file name"
    assert files(tmp_path) == {"agent.db": FOREIGN[kind]}


@pytest.mark.parametrize(
    "script",
    ["CREATE TABLE t (a)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"],
)
def test_a_database_of_another_program(tmp_path: Path, script: str) -> None:
    path = tmp_path / "agent.db"
    with closing(sqlite3.connect(path, autocommit=True)) as plain:
        plain.execute(script)
    before = files(tmp_path)
    for _ in range(2):
        with pytest.raises(ForeignFileError, match="of another program: choose another file name"):
            connect(path)
    assert files(tmp_path) == before


def test_a_file_that_another_program_makes_at_the_same_moment(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with closing(sqlite3.connect(path, autocommit=True, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE t (a, b)")
        end = threading.Timer(0.2, other.execute, ["COMMIT"])
        end.start()
        with pytest.raises(ForeignFileError, match="of another program"):
            connect(path)
        end.join()
        assert other.execute("PRAGMA application_id").fetchone() == (0,)
    assert rows(path) == {"t": []}


def test_a_refused_file_is_let_go(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "agent.db", autocommit=True)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE t (a, b)")
        with pytest.raises(ForeignFileError) as kept:  # its traceback keeps what was left open
            connect(tmp_path / "agent.db")
        assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    assert kept.tb


KILLED = """
import sqlite3, sys
plain = sqlite3.connect(sys.argv[1], autocommit=True)
plain.execute("PRAGMA journal_mode = WAL")
plain.execute("CREATE TABLE t (a, b)")
plain.execute("INSERT INTO t VALUES (1, 2)")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_database_of_another_program_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with Child("-c", KILLED, path) as child:
        assert child.read() == "ready"
    before = files(tmp_path)
    assert before["agent.db-wal"]
    with pytest.raises(ForeignFileError, match=r"agent\.db is an SQLite database of another"):
        connect(path)
    after = files(tmp_path)
    assert after.keys() == before.keys()
    for name in ("agent.db", "agent.db-wal"):  # the -shm is an index that SQLite makes anew
        assert after[name] == before[name]
    assert rows(path) == {"t": [(1, 2)]}


def test_a_later_schema_version(connection: AgentConnection, database: Path) -> None:
    connection.execute("PRAGMA user_version = 2")
    cure = "schema version 2, this package knows versions up to 1: update the package"
    with refused(SchemaVersionError, str(database), cure, database):
        connect(database)
    connection.close()
    before = database.read_bytes()
    with refused(SchemaVersionError, str(database), cure, database):
        connect(database)
    assert database.read_bytes() == before


def test_a_damaged_database(database: Path) -> None:
    with database.open("r+b") as file:
        file.seek(4096)  # the page after the first, where a table begins
        file.write(b"\xff" * 4096)
    damaged = pytest.raises(StorageError, match=r"agent\.db is damaged: restore it from a backup")
    with closing(connect(database)) as connection, damaged:
        load_state(connection, "run-T104")


def test_a_text_that_is_not_utf_8_is_named_and_not_quoted(database: Path) -> None:
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        plain.execute("UPDATE agent_runs SET ticket_id = CAST(x'ff736563726574' AS TEXT)")
    damaged = pytest.raises(StorageError, match="a text in it is not UTF-8")
    with closing(connect(database)) as connection, damaged as caught:
        load_state(connection, "run-T104")
    assert "secret" not in str(caught.value)


LOCK = """
import sqlite3, sys
plain = sqlite3.connect(sys.argv[1], autocommit=True)
plain.execute(sys.argv[2])
print("locked", flush=True)
sys.stdin.readline()
"""
WRITES: dict[str, Callable[[AgentConnection, RunState], object]] = {
    "create_schema": lambda c, _: create_schema(c),
    "start_run": lambda c, _: start_run(
        c, new_run(find_ticket(read_tickets(), "T105")), session="s1"
    ),
    "save_checkpoint": lambda c, state: save(c, state, {}),
    "resume": lambda c, _: ticket_agent.resume(SQLiteStore(c, "s2"), "run-T104"),
    "delete_run": lambda c, _: delete_run(c, "run-T104"),
    "execute_once": lambda c, _: once(c, "run-T104"),
}


def test_locked_by_another_process_for_longer_than_the_timeout(
    connection: AgentConnection, database: Path
) -> None:
    state = load_state(connection, "run-T104")
    with Child("-c", LOCK, database, "BEGIN EXCLUSIVE") as other:
        assert other.read() == "locked"
        for write in WRITES.values():
            with refused(StorageError, str(database), "let it finish, or wait longer", database):
                write(connection, state)
        assert load_state(connection, "run-T104") == state
    assert save(connection, state, {}).version == 2


def test_a_new_file_locked_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with Child("-c", LOCK, path, "BEGIN EXCLUSIVE") as other:
        assert other.read() == "locked"
        with pytest.raises(StorageError, match=r"agent\.db is locked by another process: let it"):
            connect(path, timeout=0.1)
    connect(path).close()


# The disk.


def test_a_full_disk(connection: AgentConnection, database: Path) -> None:
    state = load_state(connection, "run-T104")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with refused(StorageError, str(database), "the disk is full: free some space", database):
        save(connection, state, {"text": "x" * 100_000})
    assert load_state(connection, "run-T104") == state
    connection.execute("PRAGMA max_page_count = 1000000")
    assert save(connection, state, {"text": "x" * 100_000}).version == 2


@pytest.mark.skipif(
    not (ROOT and sys.platform == "linux"), reason="only root on Linux may mount a small disk"
)
def test_a_disk_that_is_really_full(tmp_path: Path, tools: Tools) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        path = disk / "agent.db"
        with closing(connect(path)) as connection:
            create_schema(connection)
            store = SQLiteStore(connection, "s1")
            state = ticket_agent.start(store, "run-T104")
            filler = disk / "filler"
            with pytest.raises(OSError, match="No space left"), filler.open("wb", 0) as file:
                while True:
                    file.write(bytes(1024))
            with pytest.raises(StorageError) as caught:
                save(connection, state, {"text": "x" * 100_000})
            assert str(path) in str(caught.value)
            assert load_state(connection, "run-T104") == state
            filler.unlink()
            end = ticket_agent.run_to_end(store, state, tools)
        with closing(connect(path)) as other:
            assert load_state(other, "run-T104") == end
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_a_disk_that_reports_an_error(database: Path) -> None:
    code = """
import resource, sys
from lesson_lib.sqlite import connect
connection = connect(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    connection.execute("UPDATE agent_runs SET version = 7")
except Exception as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    print(type(error).__name__, error)
"""
    before = rows(database)
    with Child("-c", code, database) as child:
        said = child.read()
    assert said.startswith(f"StorageError {database} cannot be read or written, the disk reports")
    assert "check the disk" in said
    assert rows(database) == before


# The context.

CONTEXTS: dict[str, tuple[Any, str, str]] = {
    "NaN": ({"t": {"x": math.nan}}, "context.t.x is nan", "use null"),
    "a datetime": ({"at": datetime(2024, 5, 1, tzinfo=UTC)}, "context.at is a datetime", "convert"),
    "an int key beside the same string key": (
        {1: "a", "1": "b"},
        "context has the key 1",
        "str(1)",
    ),
    "a lone surrogate": ({"t": ["\ud83d"]}, "context.t[0] holds a lone surrogate", "UTF-8"),
    "a lone surrogate in a key": ({"\ud83d": 1}, "context key holds a lone surrogate", "UTF-8"),
    "a tuple": ({"t": (1, 2)}, "context.t is a tuple", "convert it to text, a number, a list"),
    "a set": ({"t": {1}}, "context.t is a set", "convert it"),
    "bytes": ({"t": b"a"}, "context.t is a bytes", "convert it"),
    "an int of 70 bits": ({"t": 2**70}, "context.t does not fit into 64 bits", "store it as text"),
}


def nested(depth: int) -> JSONObject:
    value: JSONObject = {}
    for _ in range(depth):
        value = {"k": value}
    return value


def cycle() -> JSONObject:
    value: JSONObject = {}
    value["k"] = value
    return value


DEEP = {"a cycle": cycle(), "101 levels": nested(101), "200,000 levels": nested(200_000)}
CONTEXTS |= {k: (v, "context.k.k.k", "100 levels: flatten it") for k, v in DEEP.items()}


@pytest.mark.parametrize("kind", CONTEXTS)
def test_a_context_that_would_not_come_back(
    connection: AgentConnection, database: Path, kind: str
) -> None:
    state = load_state(connection, "run-T104")
    context, place, cure = CONTEXTS[kind]
    with refused(JSONValueError, place, cure, database):
        save(connection, state, context)
    with refused(JSONValueError, place, cure, database):
        start_run(connection, RunState.begin("r", "T", "a", context), session="s1")
    assert save(connection, state, {}).version == 2


def test_a_text_of_5_mb_is_fine(connection: AgentConnection, database: Path) -> None:
    state = load_state(connection, "run-T104")
    saved = save(connection, state, {"text": "Ä🔥" * 850_000})
    assert len(saved.context_json.encode()) > 5_000_000
    with closing(connect(database)) as other:
        assert load_state(other, "run-T104") == saved


@pytest.mark.parametrize(
    "text",
    [
        'it\'s "quoted" and \\ back-quoted `',
        "'); DROP TABLE agent_runs; --",
        ":run_id ? ?1 @x $y %s {n}",
        "🔥 e\u0301 \u202e Störung",
        "before\x00after",
        "\ufeff\r\n\t\x1b[31m\u2028",
        '{"next_action": null}',
        "NULL",
    ],
)
def test_a_ticket_text_is_data_from_start_to_finish(
    connection: AgentConnection, database: Path, tools: Tools, text: str
) -> None:
    before = rows(database)
    ticket = replace(TICKET, ticket_id=f"T9 {text}", issue=text)
    store = SQLiteStore(connection, text)
    end = ticket_agent.run_to_end(store, store.start_run(new_run(ticket)), tools)
    with closing(connect(database)) as other:
        loaded = load_state(other, f"run-T9 {text}")
        assert [event.session for event in read_events(other, loaded.run_id)] == [text] * 7
    assert loaded == end
    assert (loaded.ticket_id, loaded.context["ticket"]["issue"]) == (ticket.ticket_id, text)
    assert loaded.context["reply"].startswith("Priority: urgent. Next step: Check the gateway")
    after = rows(database)
    assert [row for row in after["agent_runs"] if row[0] == "run-T104"] == before["agent_runs"]


# The run and its tools.

UNKNOWN: dict[str, Callable[[AgentConnection], object]] = {
    "resume": lambda c: ticket_agent.resume(SQLiteStore(c, "s2"), "run-T999"),
    "load_state": lambda c: load_state(c, "run-T999"),
    "read_events": lambda c: read_events(c, "run-T999"),
    "save_checkpoint": lambda c: save(c, RunState("run-T999", "T", "running", "a", "{}", 0), {}),
    "execute_once": lambda c: once(c, "run-T999"),
}


@pytest.mark.parametrize("ask", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_run(
    connection: AgentConnection, database: Path, ask: Callable[[AgentConnection], object]
) -> None:
    with refused(UnknownRunError, str(database), "'run-T999'", database):
        ask(connection)


def test_an_unknown_action(store: SQLiteStore, database: Path, tools: Tools) -> None:
    by_hand(database, "next_action = 'send_mail'")
    state = store.load_state("run-T104")
    known = "this agent knows classify_priority, lookup_runbook, draft_reply, finish"
    with refused(UnknownActionError, "run-T104 wants to do 'send_mail'", known, database):
        ticket_agent.run_next_action(store, state, tools)
    assert tools.ledger.lines() == []


def test_a_run_that_is_completed(store: SQLiteStore, database: Path, tools: Tools) -> None:
    end = ticket_agent.run_to_end(store, store.load_state("run-T104"), tools)
    cure = "its reply is in the context"
    with refused(RunCompletedError, "run-T104 is completed", cure, database):
        ticket_agent.resume(store, "run-T104")
    with refused(RunCompletedError, "run-T104 is completed", cure, database):
        ticket_agent.run_next_action(store, end, tools)
    assert len(tools.ledger.lines()) == 2


def test_a_tool_that_raises(store: SQLiteStore, database: Path, tools: Tools) -> None:
    state = store.load_state("run-T104")
    place, cure = "no runbook has the code", "add a row to runbooks.csv"
    with refused(UnknownRunbookError, place, cure, database):
        ticket_agent.run_next_action(store, state, replace(tools, runbooks={}))
    assert ticket_agent.run_to_end(store, state, tools).status == "completed"


def test_a_tool_whose_result_is_not_json(store: SQLiteStore, database: Path, tools: Tools) -> None:
    class Odd(Tools):
        def lookup_runbook(self, key: str, code: str) -> JSONObject:
            return super().lookup_runbook(key, code) | {"asked": {key, code}}

    state = store.load_state("run-T104")
    place, cure = "tool of run-T104:lookup_runbook ran", "result.asked is a set, which does not"
    with refused(ToolResultError, place, cure, database):
        ticket_agent.run_next_action(store, state, Odd(tools.runbooks, tools.ledger))
    assert ticket_agent.run_to_end(store, state, tools).status == "completed"


def test_a_negative_version(store: SQLiteStore, database: Path) -> None:
    state = store.load_state("run-T104")
    with refused(InvalidStateError, "version -1", "is not a whole number from 0 up", database):
        replace(state, version=-1)
    by_hand(database, "version = -1")
    with refused(CorruptStateError, "run-T104 is at version -1", "from a backup", database):
        store.load_state("run-T104")
