"""What lesson 07 tries out: a desk with some runs, workers on it, a clock that is set by hand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lesson_lib import agent
from lesson_lib.errors import LessonError, StorageError
from lesson_lib.json_text import JSONValue
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    Claim,
    claim_run,
    connect,
    create_claims,
    create_schema,
    execute_once,
    load_state,
)
from lesson_lib.stores.sqlite.connection import utc_now
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets
from lesson_lib.workers.worker import command


class Clock:
    """A clock that stands still until it is moved."""

    start = datetime(2026, 1, 5, 8, tzinfo=UTC)

    def __init__(self) -> None:
        """Begin at `start`."""
        self.now = self.start

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def move(self, seconds: float) -> None:
        """Set the clock forward by this many seconds, or back."""
        self.now += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Desk:
    """A database with some runs and the ledger of its tools, in a folder of their own."""

    database: Path
    run_ids: tuple[str, ...]
    connection: AgentConnection
    tools: Tools

    @classmethod
    def open(
        cls, folder: Path, *names: str, copies: int = 0, clock: Callable[[], datetime] = utc_now
    ) -> Desk:
        """Make the folder and the database, and start the runs.

        Args:
            folder: A folder that does not exist yet.
            names: The tickets, such as `T104`.
            copies: How many runs each ticket gets, `run-T104-1` and so on; 0 for `run-T104`.
            clock: The clock of the connection.
        """
        folder.mkdir()
        tickets = [find_ticket(read_tickets(), name) for name in names]
        if copies:
            numbers = range(1, copies + 1)
            tickets = [replace(t, ticket_id=f"{t.ticket_id}-{n}") for t in tickets for n in numbers]
        connection = connect(folder / "agent.db", clock=clock)
        create_schema(connection)
        create_claims(connection)
        run_ids = [agent.start(connection, ticket, "session-1").run_id for ticket in tickets]
        tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
        return cls(folder / "agent.db", tuple(run_ids), connection, tools)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def calls(self, tool_name: str) -> int:
        """Return how often the ledger says that a tool was called for the first run."""
        return self.tools.ledger.count(f"{self.run_ids[0]}:{tool_name}")

    def act(self, session: str, state: RunState | None = None) -> RunState:
        """Perform one action of the first run; from `state`, if it was loaded before."""
        state = state or load_state(self.connection, self.run_ids[0])
        return agent.run_next_action(self.connection, state, session, self.tools)

    def once(self, tool_name: str, function: Callable[[], JSONValue]) -> JSONValue:
        """Call a tool through `execute_once` for the first run; return its value."""
        run_id = self.run_ids[0]
        return execute_once(
            self.connection,
            function,
            run_id=run_id,
            session="worker-1",
            key=f"{run_id}:{tool_name}",
            tool_name=tool_name,
            tool_input={},
        ).value

    def ask(self, worker: str, lease: timedelta = timedelta(seconds=30)) -> Claim | None:
        """Try to claim the first run, and print how that went."""
        claim = claim_run(self.connection, self.run_ids[0], worker=worker, lease=lease)
        second = (self.connection.clock() - Clock.start).total_seconds()
        got = f"gets token {claim.token}" if claim else "is told to wait"
        print(f"second {second:.0f}: {worker} {got}")
        return claim

    def meanwhile(self, run_id: str) -> str:
        """Let another worker act on a run, one that waits 0.05 s at most for a locked file."""
        with closing(connect(self.database, timeout=0.05)) as other:
            try:
                agent.run_next_action(other, load_state(other, run_id), "worker-2", self.tools)
            except StorageError as error:
                return f"worker-2: {error.__cause__}"
            return "worker-2 saved its checkpoint"

    def worker(self, name: str, seconds: float = 30, **options: object) -> list[str]:
        """Return the command of a worker process with a lease of so many seconds."""
        lease = timedelta(seconds=seconds)
        return command(self.database, self.tools.ledger.path, name, lease=lease, **options)

    def rival(self, session: str) -> list[str]:
        """Return the command of a process that acts on the first run without a claim."""
        paths = str(self.database), str(self.tools.ledger.path)
        return ["-m", "lesson_lib.workers.trials", *paths, self.run_ids[0], session]


def main(arguments: Sequence[str] | None = None) -> None:
    """Resume a run, get ready, wait for a line, perform one action, and say how that ended."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.workers.trials", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("run_id")
    parser.add_argument("session")
    options = parser.parse_args(arguments)
    tools = Tools(read_runbooks(), Ledger(options.ledger))
    with closing(connect(options.database)) as connection:
        state = agent.resume(connection, options.run_id, options.session)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            state = agent.run_next_action(connection, state, options.session, tools)
        except LessonError as error:
            print(f"refused: {type(error).__name__}")
        else:
            print(f"saved version {state.version}")


if __name__ == "__main__":
    main()
