"""The store in one SQLite file: the protocol of `lesson_lib.store`, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lesson_lib.json_text import JSONValue
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult
from lesson_lib.sqlite import effects, records
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.store import Rider


@dataclass(frozen=True)
class SQLiteStore:
    """A `StateStore` for one session. Arguments, results and errors are those of the functions.

    Args:
        connection: An open connection, outside of a transaction at each call.
        session: Which process life this is, such as `session-1`.
        riders: What must be true together with each checkpoint of this session.
        wait: How long `execute_once` waits for another caller of a key, in seconds.
    """

    connection: AgentConnection
    session: str
    riders: tuple[Rider, ...] = ()
    wait: float = 60.0

    def start_run(self, state: RunState) -> RunState:
        """See `records.start_run`."""
        return records.start_run(self.connection, state, session=self.session, riders=self.riders)

    def load_state(self, run_id: str) -> RunState:
        """See `records.load_state`."""
        return records.load_state(self.connection, run_id)

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """See `records.save_checkpoint`."""
        return records.save_checkpoint(
            self.connection, state, step, session=self.session, riders=self.riders
        )

    def execute_once(self, call: ToolCall) -> ToolResult:
        """See `effects.execute_once`."""
        return effects.execute_once(self.connection, call, session=self.session, wait=self.wait)

    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """See `records.record_event`; in a transaction of its own.

        Raises:
            UnknownRunError: There is no such run.
        """
        with self.connection:
            records.require_run(self.connection, run_id)
            records.record_event(
                self.connection,
                run_id=run_id,
                session=self.session,
                event_type=event_type,
                action=action,
                detail=detail,
            )

    def read_events(self, run_id: str) -> list[Event]:
        """See `records.read_events`."""
        return records.read_events(self.connection, run_id)

    def unfinished_runs(self) -> list[str]:
        """See `records.unfinished_runs`."""
        return records.unfinished_runs(self.connection)
