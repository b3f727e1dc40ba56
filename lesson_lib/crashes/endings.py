"""The ways a session ends: killed, told to stop, interrupted, out of memory."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from lesson_lib.agent import resume_or_start, run_next_action
from lesson_lib.crash import die, run_agent_in_child, run_child
from lesson_lib.errors import ChildError, LessonError
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.show import rows_on_disk
from lesson_lib.stores.sqlite import AgentConnection, connect, create_schema, record_event
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

# What each way does to the process. All but the first arrive as they do from outside: as a signal
# that Python hands to its handler, or as an allocation that the system refuses.
WAYS: dict[str, Callable[[], object]] = {
    "kill": lambda: die("kill"),
    "SIGTERM": lambda: signal.raise_signal(signal.SIGTERM),
    "Ctrl-C": lambda: signal.raise_signal(signal.SIGINT),
    "out of memory": lambda: bytearray(2**62),
}


def run_until_stopped(
    connection: AgentConnection,
    state: RunState,
    session: str,
    tools: Tools,
    *,
    stop: threading.Event,
    passing: Callable[[str], None] = lambda point: None,
) -> RunState:
    """Perform actions until the run is completed or somebody asks to stop.

    An orderly stop leaves the event `run_stopped` with its reason. A request to stop is looked at
    between two actions, so the action under way comes to its checkpoint. Ctrl-C and a lack of
    memory end the action where it is; the event then says so, and the error goes on its way.

    Args:
        connection: An open connection, outside of a transaction.
        state: The run's state as this process loaded it.
        session: Which process life does this.
        tools: The tools to call.
        stop: Set by whoever wants the session to end, such as a signal handler.
        passing: Called with the name of each crash point.

    Returns:
        The last state, completed or not.
    """
    try:
        while state.status != "completed" and not stop.is_set():
            state = run_next_action(connection, state, session, tools, passing=passing)
    except (KeyboardInterrupt, MemoryError) as error:
        # The event is a help for the reader; it must not hide what happened.
        with contextlib.suppress(LessonError, sqlite3.Error, MemoryError):
            _record_stop(connection, state.run_id, session, type(error).__name__)
        raise
    if state.status != "completed":
        _record_stop(connection, state.run_id, session, "asked to stop")
    return state


def _record_stop(connection: AgentConnection, run_id: str, session: str, reason: str) -> None:
    with connection:
        record_event(
            connection,
            run_id=run_id,
            session=session,
            event_type="run_stopped",
            action="stop",
            detail={"reason": reason},
        )


def end_session_in_child(
    database: Path, ledger: Path, session: str, *, way: str, point: str
) -> str:
    """Start or resume the run of T104 in a child that ends in one of `WAYS`; return how, in words.

    Args:
        database: The database file.
        ledger: The witness file.
        session: The child's session name.
        way: One of `WAYS`.
        point: The crash point at which it happens, such as `lookup_runbook:tool_ran`.

    Raises:
        ChildError: The child never came to `point`.
    """
    module = ["-m", "lesson_lib.crashes.endings"]
    try:
        return run_child([*module, str(database), str(ledger), session, way, point]).ended
    except ChildError as error:
        reason = str(error).removeprefix("the child process failed: ")
        if reason not in ("KeyboardInterrupt", "MemoryError"):
            raise
        return f"stopped by {reason}"


def try_way(folder: Path, way: str) -> dict[str, object]:
    """End a session after a tool ran and before its result is saved; let the next one finish.

    Args:
        folder: Where a folder for its files is made.
        way: One of `WAYS`.

    Returns:
        How the process ended, the last event it left, and the look-ups in the ledger at the end.
    """
    folder = folder / way.replace(" ", "-")
    folder.mkdir()
    database, ledger = folder / "agent.db", folder / "ledger.txt"
    point = "lookup_runbook:tool_ran"
    ended = end_session_in_child(database, ledger, "session-1", way=way, point=point)
    last_event = rows_on_disk(database)["agent_events"][-1][3]
    run_agent_in_child(database, ledger, "T104", "session-2")
    calls = Ledger(ledger).count("run-T104:lookup_runbook")
    return {"way": way, "the process": ended, "last event": last_event, "calls": calls}


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the child of `end_session_in_child`."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.crashes.endings", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("session")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("point")
    options = parser.parse_args(arguments)
    stop, passed = threading.Event(), list[str]()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())

    def passing(point: str) -> None:
        passed.append(point)
        if point == options.point:
            WAYS[options.way]()

    tools = Tools(read_runbooks(), Ledger(options.ledger))
    with closing(connect(options.database)) as connection:
        create_schema(connection)
        state = resume_or_start(connection, find_ticket(read_tickets(), "T104"), options.session)
        run_until_stopped(connection, state, options.session, tools, stop=stop, passing=passing)
    if options.point not in passed:
        sys.exit(f"{options.session} never came to {options.point}; it passed {', '.join(passed)}")


if __name__ == "__main__":
    main()
