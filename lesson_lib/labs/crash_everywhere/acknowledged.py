"""A store that tells outside what it acknowledged, as a client would remember it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import override

from lesson_lib.json_text import JSONValue, to_json
from lesson_lib.model import RunState, Step, ToolCall, ToolResult
from lesson_lib.sqlite import SQLiteStore


@dataclass(frozen=True, kw_only=True)
class Acknowledging(SQLiteStore):
    """A store whose answers are written down elsewhere: what it returned must never be lost.

    Args:
        tell: Gets a line for each checkpoint, tool result and event that was acknowledged.
    """

    tell: Callable[[str], None]

    @override
    def start_run(self, state: RunState) -> RunState:
        return self._saved(super().start_run(state))

    @override
    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        return self._saved(super().save_checkpoint(state, step))

    @override
    def execute_once(self, call: ToolCall) -> ToolResult:
        result = super().execute_once(call)
        self.tell(f"effect {result.idempotency_key} {to_json(result.value)}")
        return result

    @override
    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        super().record_event(run_id, event_type, action, detail)
        self.tell(f"event {event_type} of {self.session} {to_json(dict(detail or {}))}")

    def _saved(self, state: RunState) -> RunState:
        self.tell(f"version {state.version}")
        return state
