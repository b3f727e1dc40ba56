"""A store in one JSON file, as one would write it in an evening: it survives, and does not race."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    RunExistsError,
    StaleVersionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult


@dataclass(frozen=True)
class JSONFileStore:
    """Reads the whole file, changes it, and puts a new one in its place: one step, and no lock."""

    path: Path
    session: str

    def start_run(self, state: RunState) -> RunState:
        data = self._read()
        if state.run_id in data["runs"]:
            raise RunExistsError(f"the run {state.run_id} was started before")
        data["runs"][state.run_id] = vars(state)
        data["events"][state.run_id] = []
        self._write(data, state.run_id, "run_started", "start", {})
        return state

    def load_state(self, run_id: str) -> RunState:
        return RunState(**self._run(self._read(), run_id))

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        if step.riders:
            raise InvalidStateError(f"{step.action} has a rider, and a file has no transaction")
        data, new = self._read(), state.after(step)
        if self._run(data, state.run_id)["version"] != state.version:
            raise StaleVersionError(f"{state.run_id} has moved on")
        time.sleep(0.002)  # so that a race is lost for sure
        data["runs"][state.run_id] = vars(new)
        detail = {"version": new.version}
        self._write(data, state.run_id, "checkpoint_saved", step.action, detail)
        return new

    def execute_once(self, call: ToolCall) -> ToolResult:
        data = self._read()
        self._run(data, call.run_id)
        about = [call.run_id, call.tool_name, to_json(call.tool_input, "tool_input")]
        saved, reused = data["effects"].get(call.key), True
        if saved is None:
            saved, reused = [about, from_json(to_json(call.function(), "result"))], False
            data = self._read()
            data["effects"][call.key] = saved
        if saved[0] != about:
            raise IdempotencyConflictError(f"the key {call.key} was used before")
        kind = "tool_reused" if reused else "tool_executed"
        self._write(data, call.run_id, kind, call.tool_name, {"key": call.key})
        return ToolResult(call.key, call.tool_name, saved[1], reused)

    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        data = self._read()
        self._run(data, run_id)
        self._write(data, run_id, event_type, action, dict(detail or {}))

    def read_events(self, run_id: str) -> list[Event]:
        data = self._read()
        self._run(data, run_id)
        return [Event(*event) for event in data["events"][run_id]]

    def unfinished_runs(self) -> list[str]:
        runs = self._read()["runs"]
        return sorted(run_id for run_id in runs if runs[run_id]["status"] != "completed")

    def _read(self) -> Any:
        if not self.path.exists():
            return {"runs": {}, "events": {}, "effects": {}}
        return json.loads(self.path.read_text(encoding="utf-8"))

    def _run(self, data: Any, run_id: str) -> Any:
        if run_id not in data["runs"]:
            raise UnknownRunError(f"{self.path} holds no run {run_id!r}")
        return data["runs"][run_id]

    def _write(
        self, data: Any, run_id: str, event_type: str, action: str, detail: JSONValue
    ) -> None:
        told = data["events"][run_id]
        told.append(
            [run_id, len(told) + 1, self.session, event_type, action, to_json(detail), "no clock"]
        )
        part = self.path.with_name(f"{self.path.name}-{os.getpid()}-{self.session}")
        part.write_text(json.dumps(data), encoding="utf-8")
        part.replace(self.path)
