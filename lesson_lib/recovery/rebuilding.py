"""A state made again without a checkpoint: the actions are performed with their saved results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lesson_lib.agent import tool_key
from lesson_lib.errors import CheckpointError, LessonError
from lesson_lib.json_text import JSONValue, from_json
from lesson_lib.model import RunState, Step, input_digest
from lesson_lib.recovery.told import Told


class _NotSavedError(LessonError):
    """A tool has no saved result."""


@dataclass(frozen=True)
class SavedResults:
    """Stands in for `call_tool`: each call gets its saved result, and no tool is called.

    `rows` are those of `tool_effects`, by key. A saved result has no checksum: one that was
    changed and still fits is not noticed.
    """

    run_id: str
    rows: Mapping[str, Any]
    used: list[str] = field(default_factory=list)

    def __call__(self, tool_name: str, label: str = "", /, **tool_input: JSONValue) -> JSONValue:
        """Return the result of a call; a CheckpointError says that it is one of another call."""
        key = tool_key(self.run_id, tool_name, label)
        if key not in self.rows:
            raise _NotSavedError(key)
        row = self.rows[key]
        if (row["tool_name"], row["input_sha256"]) != (tool_name, input_digest(tool_input)):
            raise CheckpointError(f"a saved result is one of another call: that of {key}")
        self.used.append(key)
        return from_json(row["result_json"])


def rebuild(told: Told, saved: SavedResults, begin: RunState, until: str | None) -> RunState:
    """Return the state in which `until` was next, as far as it can be made again.

    The actions before it are performed once more. Where a result is missing, the state before
    that action is returned. Its version is the newest after which the same action was next.
    """
    state = begin
    for _ in range(told.newest):
        if state.next_action in (until, None):
            break
        try:
            state = _performed(told, saved, state) or state
        except (LessonError, ValueError):
            break
    after = [v for v in told.made if v > 0 and told.next_after(v) == state.next_action]
    return replace(state, version=max(after, default=0))


def reused_results(told: Told, saved: SavedResults, state: RunState) -> tuple[str, ...]:
    """Return the keys whose saved results the actions to come will get: they are tried with them.

    Raises:
        CheckpointError: A result is lost although its tool ran, or it does not fit.
    """
    lost = sorted(told.keys_after(state.version) - saved.rows.keys())
    if lost:
        raise CheckpointError(f"a saved result is lost, and its tool ran: {', '.join(lost)}")
    trial = replace(saved, used=[])
    going: RunState | None = state
    for _ in told.agent.actions:  # once each: an agent may go round for ever
        if going is None or going.next_action is None:
            break
        try:
            going = _performed(told, trial, going)
        except _NotSavedError:
            break
        except CheckpointError:
            raise
        except (LessonError, ValueError) as error:
            raise CheckpointError(f"a saved result does not lead on: {error}") from error
    return tuple(trial.used)


def _performed(told: Told, saved: SavedResults, state: RunState) -> RunState | None:
    """Return the state after its next action, None if the run would wait."""
    action = told.agent.actions[str(state.next_action)]
    done = action.perform(state.context, saved)
    if done is None:
        return None
    new = state.after(done if isinstance(done, Step) else Step("", done, action.next_action))
    told.agent.schema.check(new.context)
    return new
