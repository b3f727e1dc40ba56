"""A store that is away, and an agent that is killed meanwhile: what it reported, what was lost."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

from lesson_lib import agent
from lesson_lib.checkpoints.archive import create_archive
from lesson_lib.children import Child
from lesson_lib.errors import ChildError, StorageError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, ToolResult
from lesson_lib.recovery.buffer import Buffer
from lesson_lib.stores.sqlite import connect, create_schema, read_events
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

MODULE = ("-m", "lesson_lib.recovery.outage")
RUN_ID = "run-T104"
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


class Watched(Buffer):
    """A buffer that remembers what its caller was given."""

    def __init__(self, limit: int) -> None:
        """See `Buffer`."""
        super().__init__(limit)
        self.given: list[str] = []

    def save(self, *arguments: Any, **more: Any) -> RunState:
        """See `Buffer.save`."""
        new = super().save(*arguments, **more)
        self.given.append(f"version {new.version}")
        return new

    def execute(self, *arguments: Any, **more: Any) -> ToolResult:
        """See `Buffer.execute`."""
        result = super().execute(*arguments, **more)
        self.given.append(result.idempotency_key)
        return result


def points() -> list[str]:
    """Return the points at which an agent of `kill_at` may be killed, in their order."""
    found = []
    for action in agent.ACTIONS:
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
        limit: See `Buffer`.
    """
    folder.mkdir(exist_ok=True)
    database, ledger = folder / "agent.db", folder / "ledger.txt"
    with ExitStack() as stack:
        command = (*MODULE, "agent", database, ledger, "--limit", str(limit))
        child = stack.enter_context(Child(*command))
        outage: Outage | None = None
        said: dict[str, Any] = {"point": ""}
        while said["point"] != point:
            line = child.read()
            if not line:
                raise ChildError(f"the agent never came to {point}: it {child.end().ended}")
            said = from_json(line)
            if said["point"] == away:
                outage = stack.enter_context(Outage(database))
            if said["point"] == back and outage is not None:
                outage.end()
            if said["point"] != point:
                child.tell()
        child.kill()
        child.end()
    on_disk = names_on_disk(database, RUN_ID)
    lost = [name for name in said["given"] if name not in on_disk]
    return {"killed at": point, "reported": _line(said["not_durable"]), "lost": _line(lost)}


def _line(names: list[str]) -> str:
    return ", ".join(name.removeprefix(f"{RUN_ID}:") for name in names) or "nothing"


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


def work(database: Path, ledger: Path, limit: int) -> None:
    """Work on ticket T104 with a buffer; at each point tell what is not durable, and wait."""
    buffer = Watched(limit)
    tools = Tools(read_runbooks(), Ledger(ledger))

    def passing(point: str) -> None:
        names = [waiting.name for waiting in buffer.not_durable]
        print(to_json({"point": point, "not_durable": names, "given": buffer.given}), flush=True)
        sys.stdin.readline()

    with closing(connect(database, timeout=0.02)) as connection:
        create_schema(connection)
        create_archive(connection)
        state = agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")
        agent.run_to_end(
            connection,
            state,
            "session-1",
            tools,
            passing=passing,
            save=buffer.save,
            execute=buffer.execute,
        )
        try:
            buffer.flush(connection)
        except StorageError:
            passing("not flushed")
        else:
            passing("flushed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the process that holds the lock, or the agent."""
    parser = argparse.ArgumentParser(prog="python -m lesson_lib.recovery.outage")
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("hold").add_argument("database", type=Path)
    role = roles.add_parser("agent")
    role.add_argument("database", type=Path)
    role.add_argument("ledger", type=Path)
    role.add_argument("--limit", type=int, default=8)
    options = vars(parser.parse_args(arguments))
    if options.pop("role") == "hold":
        hold(**options)
    else:
        work(**options)


if __name__ == "__main__":
    main()
