"""Ephemeral: the state lives in the memory of the process, and dies with it."""

from __future__ import annotations

from lesson_lib.errors import NotKeptError, RunExistsError, StaleVersionError, UnknownRunError
from lesson_lib.json_text import JSONValue
from lesson_lib.model import RunState
from lesson_lib.patterns.protocol import Step, ToolCall, after


class Ephemeral:
    """Keep runs in a dict."""

    def __init__(self) -> None:
        """Begin without any run."""
        self._runs: dict[str, RunState] = {}

    def start(self, state: RunState) -> None:
        """Keep a new run."""
        if state.run_id in self._runs:
            raise RunExistsError(f"the run {state.run_id} was started before: load it")
        self._runs[state.run_id] = state

    def call(self, state: RunState, call: ToolCall) -> JSONValue:
        """Call the tool."""
        return call.function()

    def save(self, state: RunState, step: Step) -> RunState:
        """Keep the new state instead of the old one."""
        state.require_unfinished()
        if self.load(state.run_id) != state:
            raise StaleVersionError(f"{state.run_id} has moved on: load the state again")
        self._runs[state.run_id] = after(state, step)
        return self._runs[state.run_id]

    def load(self, run_id: str) -> RunState:
        """Return the state, in the process that began the run."""
        if run_id not in self._runs:
            raise UnknownRunError(f"this process knows no run {run_id!r}: start it first")
        return self._runs[run_id]

    def at(self, run_id: str, version: int) -> RunState:
        """Return the state if it is the newest."""
        state = self.load(run_id)
        if state.version != version:
            raise NotKeptError(f"{run_id} is at version {state.version}, older ones are not kept")
        return state

    def why(self, run_id: str, version: int) -> str:
        """Raise: no reason is kept."""
        raise NotKeptError("no reason is kept")
