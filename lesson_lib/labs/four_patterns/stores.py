"""The stores that lesson 11 compares: each pattern, some with and without keys or archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lesson_lib.checkpoints.archive import Keep, create_archive, read_kept
from lesson_lib.errors import NotKeptError
from lesson_lib.labs.four_patterns.long_runs import lab_agent
from lesson_lib.model import RunState, ToolCall, ToolResult
from lesson_lib.patterns.ephemeral import Ephemeral
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid, create_snapshots
from lesson_lib.sqlite import AgentConnection, SQLiteStore, create_schema
from lesson_lib.tickets.log_schema import UPCASTERS


@dataclass(frozen=True)
class Checkpoint(SQLiteStore):
    """The store of the first lessons, asked about the past: it has what the archive has."""

    def at(self, run_id: str, version: int) -> RunState:
        """Return the row, or what the archive has."""
        newest = self.load_state(run_id)
        if newest.version == version:
            return newest
        for kept in read_kept(self.connection, run_id, lab_agent.schema, version=version):
            if kept.state is not None:
                return kept.state
        raise NotKeptError(f"{run_id} is at version {newest.version}, {version} is not kept")

    def why(self, run_id: str, version: int) -> str:
        """Raise: a state says what was found, not why."""
        raise NotKeptError("no reason is kept")


class WithoutKeys:
    """Makes of a store one that keeps no results of tools."""

    def execute_once(self, call: ToolCall) -> ToolResult:
        """Call the tool."""
        return ToolResult(call.key, call.tool_name, call.function(), reused=False)


class CheckpointWithoutKeys(WithoutKeys, Checkpoint):
    """A checkpoint is all that it keeps."""


class EventSourcingWithoutKeys(WithoutKeys, EventSourcing):
    """The log is all that it keeps."""


type Store = Ephemeral | Checkpoint | EventSourcing  # each can be asked about the past
type Make = Callable[[AgentConnection, str], Store]


def hybrid(every: int = 2) -> Make:
    """Return the hybrid with snapshots so far apart, in steps."""
    return partial(Hybrid, agent=lab_agent, upcasters=UPCASTERS, every=every)


PATTERNS: dict[str, Make] = {
    "ephemeral": lambda connection, session: Ephemeral(session),
    "checkpoint": CheckpointWithoutKeys,
    "checkpoint + keys": Checkpoint,
    "checkpoint + keys + archive": partial(Checkpoint, riders=(Keep(lab_agent.schema),)),
    "event sourcing, no keys": partial(
        EventSourcingWithoutKeys, agent=lab_agent, upcasters=UPCASTERS
    ),
    "event sourcing": partial(EventSourcing, agent=lab_agent, upcasters=UPCASTERS),
    "hybrid": hybrid(),
}


def open_store(connection: AgentConnection, make: str | Make, session: str) -> Store:
    """Return a store of one of `PATTERNS`, or what makes one; with its tables, if missing."""
    create_schema(connection)
    create_archive(connection)
    create_snapshots(connection)
    return (PATTERNS[make] if isinstance(make, str) else make)(connection, session)
