"""The agent: its actions are data, one checkpoint follows each, and no line knows the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    RunCompletedError,
    RunExistsError,
    SimulatedCrash,
    UnknownActionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.store import StateStore

type Context = Mapping[str, Any]
type Passing = Callable[[str], None]


class CallTool(Protocol):
    """Calls a tool of this run, once for its key, and returns its value."""

    def __call__(self, tool_name: str, label: str = "", /, **tool_input: JSONValue) -> JSONValue:
        """Call the tool with these arguments.

        The key is `run-T104:lookup_runbook`. A second call of one tool in a run is another
        intention, and needs a label: `run-T104:lookup_runbook:again`.
        """


@dataclass(frozen=True)
class Action:
    """Something an agent can do.

    Args:
        perform: Gets the context and `call_tool`; returns what it found, by name. It may return a
            whole `Step`, to choose what comes next or what rides with the checkpoint; or None:
            nothing can be done now, the run waits.
        makes: The field of the context that it adds.
        event: The name of its event in a log of events (`patterns`).
        next_action: The action to do next; None completes the run.
        because: Says what the step rests on, from the context before it.
    """

    perform: Callable[[Context, CallTool], JSONObject | Step | None]
    makes: str
    event: str
    next_action: str | None
    because: Callable[[Context], str] = lambda context: ""


@dataclass(frozen=True)
class Agent:
    """An agent. The first of its actions is the first that a run does.

    Args:
        actions: The actions by name, in the order of an undisturbed run.
        begin: Returns the state that the run of an id begins with, from what is durable elsewhere.
        schema: What its contexts look like, today and in older versions.
    """

    actions: Mapping[str, Action]
    begin: Callable[[str], RunState]
    schema: ContextSchema

    def start(self, store: StateStore, run_id: str) -> RunState:
        """Start the run of this id.

        Raises:
            RunExistsError: It was started before: resume it.
            InvalidStateError: The agent knows this run by another id.
        """
        state = self.begin(run_id)
        if state.run_id != run_id:
            raise InvalidStateError(f"{run_id} is known as {state.run_id}: ask for that one")
        return store.start_run(state)

    def resume(self, store: StateStore, run_id: str) -> RunState:
        """Load the checkpoint of an unfinished run and record that this session goes on with it.

        A session that saves at the same moment leaves this one with a stale state, as at any other
        time: its next save is refused.

        Raises:
            UnknownRunError: There is no such run.
            CorruptStateError: Its stored state cannot be trusted.
            RunCompletedError: It is finished. No event was recorded.
        """
        state = store.load_state(run_id)
        state.require_unfinished()
        store.record_event(run_id, "run_resumed", "resume", {"version": state.version})
        return state

    def resume_or_start(self, store: StateStore, run_id: str) -> RunState:
        """Resume a run, start it where there is none, or load it when it is finished."""
        try:
            return self.resume(store, run_id)
        except UnknownRunError:
            with suppress(RunExistsError):  # another process may have been faster
                return self.start(store, run_id)
            return self.resume(store, run_id)
        except RunCompletedError:  # an earlier session died after its last checkpoint
            return store.load_state(run_id)

    def run_next_action(
        self,
        store: StateStore,
        state: RunState,
        tools: object,
        *,
        crash_after_tool: bool = False,
        passing: Passing = lambda point: None,
    ) -> RunState:
        """Perform the next action of a run and save a checkpoint; return the new state.

        Args:
            store: What keeps the run.
            state: The run's state as this process loaded or saved it last.
            tools: Has a method for each tool, which takes the key and the tool's input.
            crash_after_tool: Raise `SimulatedCrash` after the action's tool result is saved and
                before the checkpoint is.
            passing: Called with the name of each crash point the action comes to, such as
                `lookup_runbook:before_checkpoint`.

        Returns:
            The new state; `state` itself while the run waits.

        Raises:
            RunCompletedError: The run is finished.
            UnknownActionError: The checkpoint names an action this agent does not have, or the
                action leads to one: nothing was saved.
            CorruptStateError: The context lacks what the action needs.
            SimulatedCrash: On demand.
            StaleVersionError: Another worker saved a checkpoint meanwhile.
        """
        state.require_unfinished()
        name = str(state.next_action)
        self._require_known(name, f"{state.run_id} wants to do")
        action = self.actions[name]

        def call_tool(tool_name: str, label: str = "", /, **tool_input: JSONValue) -> JSONValue:
            key = tool_key(state.run_id, tool_name, label)

            def function() -> JSONValue:
                value = getattr(tools, tool_name)(key, **tool_input)
                passing(f"{name}:tool_ran")
                return value

            call = ToolCall(state.run_id, key, tool_name, tool_input, function)
            return store.execute_once(call).value

        passing(f"{name}:begin")
        try:
            done = action.perform(state.context, call_tool)
        except CorruptStateError as error:
            raise CorruptStateError(
                f"{name} of {state.run_id}: {error}. Restore a backup"
            ) from error
        if done is None:
            return state
        if not isinstance(done, Step):
            done = Step(name, done, action.next_action, action.because(state.context))
        self._require_known(done.next_action, f"{name} of {state.run_id} leads to")
        passing(f"{name}:before_checkpoint")
        if crash_after_tool:
            raise SimulatedCrash(f"the process died after {name} and before its checkpoint")
        saved = store.save_checkpoint(state, done)
        passing(f"{name}:checkpoint_saved")
        return saved

    def run_to_end(
        self,
        store: StateStore,
        state: RunState,
        tools: object,
        *,
        passing: Passing = lambda point: None,
    ) -> RunState:
        """Perform actions until the run is completed, or waits; return its last state."""
        while state.status != "completed":
            before, state = state, self.run_next_action(store, state, tools, passing=passing)
            if state is before:
                break
        return state

    def _require_known(self, action: str | None, what: str) -> None:
        if action is not None and action not in self.actions:
            raise UnknownActionError(
                f"{what} {action!r}, this agent knows {', '.join(self.actions)}"
            )


def tool_key(run_id: str, tool_name: str, label: str = "") -> str:
    """Return the idempotency key of a tool call; see `CallTool`."""
    return ":".join(filter(None, (run_id, tool_name, label)))
