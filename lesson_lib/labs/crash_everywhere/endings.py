"""The ways a session ends: killed, told to stop, interrupted, out of memory."""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from lesson_lib.agent import Passing
from lesson_lib.errors import ChildError, LessonError
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.processes import die, run_child
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.sqlite.on_disk import rows_on_disk
from lesson_lib.store import StateStore
from lesson_lib.tickets import Tools, read_runbooks, run_id_for, ticket_agent

LONGEST_WAIT = 10.0  # seconds, for a signal on its way
# What each way does to the process. All but the first arrive as they do from outside: as a signal
# that Python hands to its handler, or as an allocation that the system refuses.
WAYS: dict[str, Callable[[], object]] = {
    "kill": lambda: die("kill"),
    "SIGTERM": lambda: signal.raise_signal(signal.SIGTERM),
    "Ctrl-C": lambda: signal.raise_signal(signal.SIGINT),
    "out of memory": lambda: bytearray(2**62),
}


def run_until_stopped(
    store: StateStore,
    state: RunState,
    tools: object,
    *,
    stop: threading.Event,
    passing: Passing = lambda point: None,
) -> RunState:
    """Perform actions until the run is completed or `stop` is set; return the last state.

    An orderly stop leaves the event `run_stopped` with its reason. A request to stop is looked at
    between two actions, so the action under way comes to its checkpoint. Ctrl-C and a lack of
    memory end the action where it is; the event then says so, and the error goes on its way.
    """

    def tell(reason: str) -> None:
        store.record_event(state.run_id, "run_stopped", "stop", {"reason": reason})

    try:
        while state.status != "completed" and not stop.is_set():
            state = ticket_agent.run_next_action(store, state, tools, passing=passing)
    except (KeyboardInterrupt, MemoryError) as error:
        # The event is a help for the reader; it must not hide what happened.
        with suppress(LessonError, sqlite3.Error, MemoryError):
            tell(type(error).__name__)
        raise
    if state.status != "completed":
        tell("asked to stop")
    return state


def end_session_in_child(
    database: Path, ledger: Path, session: str, *, way: str, point: str
) -> str:
    """Start or resume the run of T104 in a child that ends in one of `WAYS`; return how, in words.

    It happens at the crash point `point`, such as `lookup_runbook:tool_ran`.

    Raises:
        ChildError: The child never came to `point`.
    """
    module = ("-m", "lesson_lib.labs.crash_everywhere.endings")
    try:
        return run_child([*module, database, ledger, session, way, point]).ended
    except ChildError as error:
        reason = str(error).removeprefix("the child process failed: ")
        if reason not in ("KeyboardInterrupt", "MemoryError"):
            raise
        return f"stopped by {reason}"


def try_way(folder: Path, way: str) -> dict[str, object]:
    """End a session after a tool ran and before its result is saved; let the next one finish.

    Returns:
        How the process ended, the last event it left, and the look-ups in the ledger at the end.
    """
    folder = folder / way.replace(" ", "-")
    folder.mkdir()
    database, ledger = folder / "agent.db", folder / "ledger.txt"
    point = "lookup_runbook:tool_ran"
    ended = end_session_in_child(database, ledger, "session-1", way=way, point=point)
    last_event = rows_on_disk(database, connected=False)["agent_events"][-1][3]
    run_agent_in_child(database, ledger, "T104", "session-2")
    calls = Ledger(ledger).count("run-T104:lookup_runbook")
    return {"way": way, "the process": ended, "last event": last_event, "calls": calls}


def main(arguments: Sequence[str]) -> None:
    """Be the child of `end_session_in_child`."""
    database, ledger, session, way, point = arguments
    stop, passed = threading.Event(), list[str]()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    # A shell lets the jobs in its background ignore Ctrl-C, and a child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def passing(reached: str) -> None:
        passed.append(reached)
        if reached == point:
            WAYS[way]()
            # A handler may run a little later than its signal comes. That of Ctrl-C ends the wait
            # by its exception.
            if not stop.wait(LONGEST_WAIT):
                sys.exit(f"{way} did not reach {session}")

    tools = Tools(read_runbooks(), Ledger(Path(ledger)))
    with closing(connect(database)) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, session)
        state = ticket_agent.resume_or_start(store, run_id_for("T104"))
        run_until_stopped(store, state, tools, stop=stop, passing=passing)
    if point not in passed:
        sys.exit(f"{session} never came to {point}; it passed {', '.join(passed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
