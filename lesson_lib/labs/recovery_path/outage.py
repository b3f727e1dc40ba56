"""A store that is away, and an agent that is killed meanwhile: what it reported, what was lost."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

from lesson_lib.errors import ChildError, StorageError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.labs.recovery_path.patient import RUN, Patient
from lesson_lib.model import RunState, Step, ToolCall, ToolResult
from lesson_lib.processes import Child
from lesson_lib.recovery.buffer import BufferedStore
from lesson_lib.sqlite import connect, read_events
from lesson_lib.tickets import Tools, ticket_agent

MODULE = ("-m", "lesson_lib.labs.recovery_path.outage")
HELD = ("checkpoint_saved", "tool_executed", "tool_reused")


class Outage:
    """While the block lasts, another process holds the lock that writers of the file need."""

    def __init__(self, database: Path) -> None:
        """Take the lock at once.

        Raises:
            ChildError: Another process has it.
        """
        self._child = Child(*MODULE, "hold", database)
        if self._child.read() != "held":
            try:
                self.end()  # says why
            finally:
                self.__exit__()

    def end(self) -> None:
        """Give the lock back."""
        self._child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__()


class WatchedBuffer(BufferedStore):
    """A buffer that knows what its agent was given."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """See `BufferedStore`."""
        super().__init__(*arguments, **more)
        self.given: list[str] = []

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """See `BufferedStore`."""
        new = super().save_checkpoint(state, step)
        self.given.append(f"version {new.version}")
        return new

    def execute_once(self, call: ToolCall) -> ToolResult:
        """See `BufferedStore`."""
        result = super().execute_once(call)
        self.given.append(result.idempotency_key)
        return result


def points() -> list[str]:
    """Return the points at which an agent of `kill_at` may be killed, in their order."""
    found = []
    for action in ticket_agent.actions:
        calls = ["tool_ran"] if hasattr(Tools, action) else []
        within = ("begin", *calls, "before_checkpoint", "checkpoint_saved")
        found += [f"{action}:{point}" for point in within]
    return [*found, "flushed"]


def kill_at(
    folder: Path,
    point: str,
    *,
    away: str = "lookup_runbook:begin",
    back: str | None = None,
    limit: int = 8,
) -> dict[str, str]:
    """Kill an agent at a point, and compare what it reported before with what is gone.

    Args:
        folder: A folder for its files, made if it is missing.
        point: One of `points()`.
        away: The point at which another process takes the lock.
        back: The point at which it gives it back; None for never.
        limit: See `BufferedStore`.
    """
    patient = Patient(folder)
    patient.start(version=0)
    with ExitStack() as stack:
        child = stack.enter_context(Child(*MODULE, "agent", folder, str(limit)))
        outage: Outage | None = None
        said: dict[str, Any] = {"point": ""}
        while said["point"] != point:
            line = child.read()
            if not line:
                raise ChildError(f"the agent never came to {point}: it {child.end().ended}")
            said = from_json(line)
            if said["point"] == away:
                outage = stack.enter_context(Outage(patient.database))
            if said["point"] == back and outage is not None:
                outage.end()
            if said["point"] != point:
                child.tell()
        child.kill()
        child.end()
    on_disk = names_on_disk(patient.database, RUN)
    lost = [name for name in said["given"] if name not in on_disk]
    return {"killed at": point, "reported": _line(said["not_durable"]), "lost": _line(lost)}


def names_on_disk(database: Path, run_id: str) -> list[str]:
    """Return what the stored events tell of, by the names that `Waiting` uses."""
    with closing(connect(database)) as connection:
        events = [e for e in read_events(connection, run_id) if e.event_type in HELD]
    details = [from_json(event.detail) for event in events]
    return [d["key"] if "key" in d else f"version {d['version']}" for d in details]


def hold(database: Path) -> None:
    """Hold the lock until standard input ends."""
    with closing(sqlite3.connect(database, timeout=1, autocommit=True)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        print("held", flush=True)
        sys.stdin.readline()


def work(folder: Path, limit: int) -> None:
    """Work on the run with a buffer; at each point tell what is not durable, and wait."""
    patient = Patient(folder)
    with patient.session(timeout=0.02) as store:
        buffer = WatchedBuffer(store, limit)

        def passing(point: str) -> None:
            names = [waiting.name for waiting in buffer.not_durable]
            said = {"point": point, "not_durable": names, "given": buffer.given}
            print(to_json(said), flush=True)
            sys.stdin.readline()

        state = buffer.load_state(RUN)
        ticket_agent.run_to_end(buffer, state, patient.tools, passing=passing)
        try:
            buffer.flush()
        except StorageError:
            passing("not flushed")
        else:
            passing("flushed")


def main() -> None:
    """Be the process that holds the lock, or the agent."""
    role, path, *limit = sys.argv[1:]
    if role == "hold":
        hold(Path(path))
    else:
        work(Path(path), *map(int, limit))


def _line(names: list[str]) -> str:
    return ", ".join(name.removeprefix(f"{RUN}:") for name in names) or "nothing"


if __name__ == "__main__":
    main()
