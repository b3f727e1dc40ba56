"""A repair desk to try things out on: a database with some runs, and workers that share them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from lesson_lib.clock import utc_now
from lesson_lib.errors import StorageError
from lesson_lib.json_text import JSONValue
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.labs.several_workers.worker_process import command
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, ToolCall
from lesson_lib.riders.claims import Claim, claim_run, create_claims
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema, load_state
from lesson_lib.tickets import (
    Tools,
    find_ticket,
    new_run,
    read_runbooks,
    read_tickets,
    ticket_agent,
)


@dataclass(frozen=True)
class RepairDesk:
    """A database with some runs and the ledger of its tools, in a folder of their own."""

    database: Path
    run_ids: tuple[str, ...]
    connection: AgentConnection
    tools: Tools

    @classmethod
    def open(
        cls, folder: Path, *names: str, copies: int = 0, clock: Callable[[], datetime] = utc_now
    ) -> RepairDesk:
        """Make the folder and the database, and start the runs.

        Args:
            folder: A folder that does not exist yet.
            names: The tickets, such as `T104`.
            copies: How many runs each ticket gets, `run-T104-1` and so on; 0 for `run-T104`.
            clock: The clock of the connection.
        """
        tickets = [find_ticket(read_tickets(), name) for name in names]
        if copies:
            numbers = range(1, copies + 1)
            tickets = [replace(t, ticket_id=f"{t.ticket_id}-{n}") for t in tickets for n in numbers]
        folder.mkdir()
        connection = connect(folder / "agent.db", clock=clock)
        create_schema(connection)
        create_claims(connection)
        store = SQLiteStore(connection, "session-1")
        run_ids = [store.start_run(new_run(ticket)).run_id for ticket in tickets]
        tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
        return cls(folder / "agent.db", tuple(run_ids), connection, tools)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def store(self, session: str) -> SQLiteStore:
        """Return the store of a session on the connection of the desk."""
        return SQLiteStore(self.connection, session)

    def calls(self, tool_name: str) -> int:
        """Return how often the ledger says that a tool was called for the first run."""
        return self.tools.ledger.count(f"{self.run_ids[0]}:{tool_name}")

    def act(self, session: str, state: RunState | None = None) -> RunState:
        """Perform one action of the first run; from `state`, if it was loaded before."""
        state = state or load_state(self.connection, self.run_ids[0])
        return ticket_agent.run_next_action(self.store(session), state, self.tools)

    def once(self, tool_name: str, function: Callable[[], JSONValue]) -> JSONValue:
        """Call a tool through `execute_once` for the first run; return its value."""
        run_id = self.run_ids[0]
        call = ToolCall(run_id, f"{run_id}:{tool_name}", tool_name, {}, function)
        return self.store("worker-1").execute_once(call).value

    def ask(self, worker: str, lease: timedelta = timedelta(seconds=30)) -> Claim | None:
        """Try to claim the first run, and print how that went."""
        claim = claim_run(self.connection, self.run_ids[0], worker=worker, lease=lease)
        second = (self.connection.clock() - HandClock.start).total_seconds()
        got = f"gets token {claim.token}" if claim else "is told to wait"
        print(f"second {second:.0f}: {worker} {got}")
        return claim

    def meanwhile(self, run_id: str) -> str:
        """Let another worker act on a run, one that waits 0.05 s at most for a locked file."""
        with closing(connect(self.database, timeout=0.05)) as other:
            store = SQLiteStore(other, "worker-2")
            try:
                ticket_agent.run_next_action(store, store.load_state(run_id), self.tools)
            except StorageError as error:
                return f"worker-2: {error.__cause__}"
            return "worker-2 saved its checkpoint"

    def worker(self, name: str, **options: object) -> list[str]:
        """Return the command of a worker process; see `worker_process.main` for its options."""
        return command(self.database, self.tools.ledger.path, name, **options)

    def rival(self, name: str) -> list[str]:
        """Return the command of a process that acts on the first run without a claim."""
        return self.worker(name, unclaimed=self.run_ids[0])
