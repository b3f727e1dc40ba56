"""However a session ends, the next one resumes the same way; an orderly stop says so."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from lesson_lib.errors import ChildError
from lesson_lib.labs.crash_everywhere.endings import WAYS, end_session_in_child, run_until_stopped
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import AgentConnection, SQLiteStore, load_state, read_events
from lesson_lib.sqlite.on_disk import rows_on_disk
from lesson_lib.tickets import Tools, ticket_agent

RUN = "run-T104"
LOOK_UP = "run-T104:lookup_runbook"


@pytest.fixture
def store(connection: AgentConnection) -> SQLiteStore:
    return SQLiteStore(connection, "session-1")


def go_on(connection: AgentConnection, tools: Tools) -> str:
    """Resume the run as another session, go on to the end, and return the status."""
    again = SQLiteStore(connection, "session-2")
    return ticket_agent.run_to_end(again, ticket_agent.resume(again, RUN), tools).status


def stops(connection: AgentConnection) -> list[tuple[str, str]]:
    events = read_events(connection, RUN)
    return [(e.session, e.detail) for e in events if e.event_type == "run_stopped"]


def at(point: str, act: Callable[[], object]) -> Callable[[str], None]:
    def passing(passed: str) -> None:
        if passed == point:
            act()

    return passing


@pytest.mark.parametrize(
    ("way", "ended", "calls", "last_event"),
    [
        ("kill", "died without cleanup", 2, "checkpoint_saved"),
        ("SIGTERM", "finished", 1, "run_stopped"),
        ("Ctrl-C", "stopped by KeyboardInterrupt", 2, "run_stopped"),
        ("out of memory", "stopped by MemoryError", 2, "run_stopped"),
    ],
)
def test_after_any_ending_the_run_comes_to_the_same_end(
    way: str, ended: str, calls: int, last_event: str, tmp_path: Path
) -> None:
    files = tmp_path / "agent.db", tmp_path / "ledger.txt"
    point = "lookup_runbook:tool_ran"
    assert end_session_in_child(*files, "session-1", way=way, point=point) == ended
    assert rows_on_disk(files[0])["agent_events"][-1][3] == last_event
    run_agent_in_child(*files, "T104", "session-2")
    assert Ledger(files[1]).count(LOOK_UP) == calls
    run_agent_in_child(tmp_path / "good.db", tmp_path / "good.txt", "T104", "session-1")
    rows, good = rows_on_disk(files[0]), rows_on_disk(tmp_path / "good.db")
    assert rows["agent_runs"] == good["agent_runs"]
    assert rows["tool_effects"] == good["tool_effects"]


@pytest.mark.skipif(os.name == "nt", reason="Windows hands no ignored signals down to a child.")
def test_ctrl_c_reaches_a_session_of_a_job_in_the_background(tmp_path: Path) -> None:
    plain = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts such jobs
    try:
        point = "lookup_runbook:tool_ran"
        files = tmp_path / "agent.db", tmp_path / "ledger.txt"
        ended = end_session_in_child(*files, "session-1", way="Ctrl-C", point=point)
    finally:
        signal.signal(signal.SIGINT, plain)
    assert ended == "stopped by KeyboardInterrupt"


def test_every_way_is_tried_above() -> None:
    tried = test_after_any_ending_the_run_comes_to_the_same_end.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {way for way, *_ in tried} == set(WAYS)


def test_a_point_that_is_never_passed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="session-1 never came to nowhere"):
        end_session_in_child(
            tmp_path / "a.db", tmp_path / "l", "session-1", way="kill", point="nowhere"
        )


def test_a_request_to_stop_lets_the_action_come_to_its_checkpoint(
    store: SQLiteStore, connection: AgentConnection, tools: Tools
) -> None:
    stop = threading.Event()
    state = ticket_agent.start(store, RUN)
    state = run_until_stopped(
        store,
        state,
        tools,
        stop=stop,
        passing=at("lookup_runbook:begin", stop.set),
    )
    assert (state.version, state.next_action) == (2, "draft_reply")
    assert stops(connection) == [("session-1", '{"reason": "asked to stop"}')]
    assert go_on(connection, tools) == "completed"
    assert tools.ledger.lines() == [LOOK_UP, "run-T104:draft_reply"]


def test_a_request_that_comes_after_the_last_action_leaves_no_event(
    store: SQLiteStore, connection: AgentConnection, tools: Tools
) -> None:
    stop = threading.Event()
    state = run_until_stopped(
        store,
        ticket_agent.start(store, RUN),
        tools,
        stop=stop,
        passing=at("finish:before_checkpoint", stop.set),
    )
    assert state.status == "completed"
    assert stops(connection) == []


def test_a_session_asked_to_stop_before_it_began_does_nothing(
    store: SQLiteStore, connection: AgentConnection, tools: Tools
) -> None:
    stop = threading.Event()
    stop.set()
    state = ticket_agent.start(store, RUN)
    assert run_until_stopped(store, state, tools, stop=stop) == state
    assert len(stops(connection)) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("action", ["classify_priority", "lookup_runbook", "draft_reply", "finish"])
@pytest.mark.parametrize("place", ["begin", "before_checkpoint", "checkpoint_saved"])
def test_an_interrupted_action_leaves_the_connection_fit_to_go_on(
    error: type[BaseException],
    action: str,
    place: str,
    store: SQLiteStore,
    connection: AgentConnection,
    tools: Tools,
) -> None:
    def fail() -> NoReturn:
        raise error

    state = ticket_agent.start(store, RUN)
    with pytest.raises(error):
        run_until_stopped(
            store,
            state,
            tools,
            stop=threading.Event(),
            passing=at(f"{action}:{place}", fail),
        )
    assert not connection.in_transaction
    assert stops(connection) == [("session-1", f'{{"reason": "{error.__name__}"}}')]
    if (action, place) != ("finish", "checkpoint_saved"):
        go_on(connection, tools)
    assert load_state(connection, RUN).status == "completed"
    assert tools.ledger.lines() == [LOOK_UP, "run-T104:draft_reply"]


def test_an_event_that_cannot_be_written_does_not_hide_the_interrupt(
    store: SQLiteStore, connection: AgentConnection, tools: Tools
) -> None:
    def refuse_and_interrupt() -> NoReturn:
        connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON agent_events"
            " BEGIN SELECT RAISE(ABORT, 'no more events'); END"
        )
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_until_stopped(
            store,
            ticket_agent.start(store, RUN),
            tools,
            stop=threading.Event(),
            passing=at("lookup_runbook:begin", refuse_and_interrupt),
        )
    assert stops(connection) == []


def test_an_error_of_the_tool_is_no_orderly_stop(
    store: SQLiteStore, connection: AgentConnection, tools: Tools
) -> None:
    def fail() -> NoReturn:
        raise sqlite3.OperationalError("of the tool")

    with pytest.raises(sqlite3.OperationalError, match="of the tool"):
        run_until_stopped(
            store,
            ticket_agent.start(store, RUN),
            tools,
            stop=threading.Event(),
            passing=at("lookup_runbook:begin", fail),
        )
    assert stops(connection) == []


WAITS_IN_A_TOOL = """
import sys
from lesson_lib.labs.crash_everywhere import endings
class Slow(endings.Tools):
    def lookup_runbook(self, key, code):
        print("in the tool", flush=True)
        sys.stdin.readline()
        return super().lookup_runbook(key, code)
endings.Tools = Slow
endings.main([*sys.argv[1:], "session-1", "kill", "never"])
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGTERM: it ends the process.")
def test_a_platform_that_drains_its_containers(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITS_IN_A_TOOL, tmp_path / "agent.db", tmp_path / "ledger.txt"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        assert child.stdout
        assert child.stdout.readline() == "in the tool\n"
        child.send_signal(signal.SIGTERM)
        child.communicate("go on\n")
    rows = rows_on_disk(tmp_path / "agent.db")
    assert rows["agent_runs"][0][5] == 2
    assert [row[3] for row in rows["agent_events"][-2:]] == ["checkpoint_saved", "run_stopped"]
    assert Ledger(tmp_path / "ledger.txt").lines() == [LOOK_UP]
