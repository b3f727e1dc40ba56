"""Ephemeral: the state lives in the memory of the process, and dies with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import RLock

from lesson_lib.clock import utc_now, utc_text
from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    NotKeptError,
    RunExistsError,
    StaleVersionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult


@dataclass(frozen=True)
class Ephemeral:
    """A `StateStore` in dictionaries: it keeps every promise but to outlive its process.

    `replace(store, session="session-2")` is the same memory for another session.
    """

    session: str
    _runs: dict[str, RunState] = field(default_factory=dict)
    _events: dict[str, list[Event]] = field(default_factory=dict)
    _effects: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)  # each call is one step for other threads

    def start_run(self, state: RunState) -> RunState:
        """Keep a new run."""
        with self._lock:
            if state.run_id in self._runs:
                raise RunExistsError(f"the run {state.run_id} was started before: resume it")
            self._runs[state.run_id], self._events[state.run_id] = state, []
            self.record_event(state.run_id, "run_started", "start")
            return state

    def load_state(self, run_id: str) -> RunState:
        """Return the state, in the process that began the run."""
        if run_id not in self._runs:
            raise UnknownRunError(f"this process knows no run {run_id!r}: start it first")
        return self._runs[run_id]

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """Keep the new state instead of the old one."""
        if step.riders:
            raise InvalidStateError(f"{step.action} has a rider, and memory has no transaction")
        new = state.after(step)
        with self._lock:
            found = self.load_state(state.run_id).version
            if found != state.version:
                raise StaleVersionError(
                    f"{state.run_id} is at version {found}, this worker loaded version"
                    f" {state.version}: load the state again"
                )
            self._runs[state.run_id] = new
            detail = {"version": new.version}
            self.record_event(state.run_id, "checkpoint_saved", step.action, detail)
            return new

    def execute_once(self, call: ToolCall) -> ToolResult:
        """Call the tool, once for its key."""
        self.load_state(call.run_id)
        about = (call.run_id, call.tool_name, to_json(call.tool_input, "tool_input"))
        with self._lock:
            reused = call.key in self._effects
            if not reused:
                self._effects[call.key] = about, to_json(call.function(), "result")
            used_for, result = self._effects[call.key]
            if used_for != about:
                raise IdempotencyConflictError(
                    f"the key {call.key} was used before, and run, tool or input differ now: a new"
                    " intention needs a new key"
                )
            kind = "tool_reused" if reused else "tool_executed"
            self.record_event(call.run_id, kind, call.tool_name, {"key": call.key})
            return ToolResult(call.key, call.tool_name, from_json(result), reused)

    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """Append an event."""
        said, now = to_json(dict(detail or {}), "detail"), utc_text(utc_now())
        with self._lock:
            self.load_state(run_id)
            told = self._events[run_id]
            told.append(Event(run_id, len(told) + 1, self.session, event_type, action, said, now))

    def read_events(self, run_id: str) -> list[Event]:
        """Return the events."""
        self.load_state(run_id)
        return list(self._events[run_id])

    def unfinished_runs(self) -> list[str]:
        """Return the ids of the runs that have a next action."""
        return sorted(run_id for run_id, state in self._runs.items() if state.next_action)

    def at(self, run_id: str, version: int) -> RunState:
        """Return the state if it is the newest."""
        state = self.load_state(run_id)
        if state.version != version:
            raise NotKeptError(f"{run_id} is at version {state.version}, {version} is not kept")
        return state

    def why(self, run_id: str, version: int) -> str:
        """Raise: no reason is kept."""
        raise NotKeptError("no reason is kept")
