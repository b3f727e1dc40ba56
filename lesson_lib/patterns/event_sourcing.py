"""Event sourcing: no state is stored at all; it is what the events of the log lead to."""

from __future__ import annotations

from lesson_lib.checkpoints.archive import create_archive
from lesson_lib.errors import (
    InvalidStateError,
    NotKeptError,
    ReplayError,
    RunExistsError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.model import RunState
from lesson_lib.patterns.event_schema import NOT_RECORDED, LogEvent
from lesson_lib.patterns.log import append, create_log, read_log
from lesson_lib.patterns.projection import apply, project
from lesson_lib.patterns.protocol import Step, ToolCall, after, call_once
from lesson_lib.stores.sqlite import AgentConnection, create_schema, record_event

EVENT_OF = {
    "classify_priority": "priority_set",
    "lookup_runbook": "runbook_found",
    "draft_reply": "reply_drafted",
    "finish": "run_finished",
    "read_page": "page_read",
    "find_document": "document_found",
}


class EventSourcing:
    """Keep runs as logs. The row in `agent_runs` holds a run's name and whether it is over."""

    def __init__(self, connection: AgentConnection, session: str) -> None:
        """Make the tables where they are missing; see `Checkpoint`."""
        self._connection, self._session = connection, session
        create_schema(connection)
        create_archive(connection)  # guards the runs; stays empty
        create_log(connection)

    def start(self, state: RunState) -> None:
        """Append the first event: it holds the whole state that the run begins with."""
        context: JSONObject = dict(state.context)
        first = {"ticket_id": state.ticket_id, "next_action": state.next_action, "context": context}
        with self._connection:
            find = "SELECT 1 FROM agent_runs WHERE run_id = ?"
            if self._connection.execute(find, (state.run_id,)).fetchone():
                raise RunExistsError(f"the run {state.run_id} was started before: load it")
            self._connection.execute(
                "INSERT INTO agent_runs VALUES (?, ?, 'running', ?, '{}', 0)",
                (state.run_id, state.ticket_id, state.next_action),
            )
            record_event(
                self._connection,
                run_id=state.run_id,
                session=self._session,
                event_type="run_started",
                action="start",
            )
            append(self._connection, LogEvent(state.run_id, 1, "run_started", first))

    def call(self, state: RunState, call: ToolCall) -> JSONValue:
        """Call the tool, once for its key."""
        return call_once(self._connection, self._session, state, call)

    def save(self, state: RunState, step: Step) -> RunState:
        """Append an event with what the step found, and why."""
        with self._connection:
            return self._append(state, step)

    def _append(self, state: RunState, step: Step) -> RunState:
        state.require_unfinished()
        event_type, payload = EVENT_OF[step.action], step.found | {"because": step.because}
        event = LogEvent(state.run_id, state.version + 2, event_type, payload)
        new = apply(state, event)
        if new != after(state, step):
            raise InvalidStateError(f"{event_type} does not tell all of the step {step.action}")
        append(self._connection, event)
        if step.next_action is None:
            self._connection.execute(
                "UPDATE agent_runs SET status = 'completed', next_action = NULL WHERE run_id = ?",
                (state.run_id,),
            )
        return new

    def load(self, run_id: str) -> RunState:
        """Replay the log."""
        return self._replay(run_id, None)

    def at(self, run_id: str, version: int) -> RunState:
        """Replay the log up to a version."""
        state = self._replay(run_id, max(version, 0) + 1)
        if state.version != version:
            raise NotKeptError(f"{run_id} is at version {state.version}, {version} is not there")
        return state

    def why(self, run_id: str, version: int) -> str:
        """Return what the event of that step says."""
        events = read_log(self._connection, run_id, after=version, up_to=version + 1)
        if not events or version == 0:
            raise NotKeptError(f"{run_id} has no step that led to version {version}")
        return str(events[0].payload.get("because", NOT_RECORDED))

    def snapshot(self, run_id: str, up_to: int | None) -> RunState | None:
        """Return a state to begin the replay with: none here."""
        return None

    def verify(self, run_id: str) -> RunState:
        """Load a run as a check does; its row must say of its end what the log says.

        Raises:
            ReplayError: It does not: the log has lost its end. The end of a run that is still
                under way leaves no such trace.
        """
        state = self._replay(run_id, None)
        find = "SELECT status FROM agent_runs WHERE run_id = ?"
        (status,) = self._connection.execute(find, (run_id,)).fetchone()
        if status != state.status:
            raise ReplayError(
                f"{run_id} is {status}, and its log ends at version {state.version}, where it was"
                f" {state.status}: restore it from a backup"
            )
        return state

    def _replay(self, run_id: str, up_to: int | None) -> RunState:
        begin = self.snapshot(run_id, up_to)
        after = 0 if begin is None else begin.version + 1
        events = read_log(self._connection, run_id, after=after, up_to=up_to)
        if begin is None and not events:
            raise UnknownRunError(f"{self._connection.path} holds no log of {run_id!r}: start it")
        return project(events, begin)
