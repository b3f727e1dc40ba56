"""From a step to an event and back, from events to state, and a fork of it: pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lesson_lib.agent import Agent
from lesson_lib.errors import InvalidStateError, ReplayError, RunCompletedError
from lesson_lib.json_text import JSONValue
from lesson_lib.model import RunState, Step
from lesson_lib.patterns.log import LogEvent

WHOLE = "step_taken"  # the event of a step that did otherwise than its action says
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, InvalidStateError, RunCompletedError)


@dataclass(frozen=True)
class Projection:
    """What the events of an agent's log mean.

    Args:
        agent: Its actions say what their events are called, what they set, and what comes next.
    """

    agent: Agent

    def first(self, state: RunState) -> LogEvent:
        """Return the first event: it holds the whole state that a run begins with."""
        context = dict(state.context)
        start = {"ticket_id": state.ticket_id, "next_action": state.next_action, "context": context}
        return LogEvent(state.run_id, 1, "run_started", start)

    def event(self, state: RunState, step: Step) -> LogEvent:
        """Return what to tell of a step: what it found, and why; or the step as a whole."""
        sequence, action = state.version + 2, self.agent.actions.get(step.action)
        if action is not None:
            plain = Step(step.action, step.found, action.next_action, step.because)
            if [*step.found] == [action.makes] and replace(step, riders=()) == plain:
                found = {**step.found, "because": step.because}
                return LogEvent(state.run_id, sequence, action.event, found)
        grown = {name: [*more] for name, more in step.appended.items()}
        whole = {**vars(step), "appended": grown}
        del whole["riders"]
        return LogEvent(state.run_id, sequence, WHOLE, whole)

    def step(self, event: LogEvent) -> Step:
        """Return the step that an event tells of.

        Raises:
            ReplayError: It is of no known type.
        """
        told = event.payload
        if event.event_type == WHOLE:
            return Step(**told)
        for name, action in self.agent.actions.items():
            if action.event == event.event_type:
                found = {action.makes: told[action.makes]}
                return Step(name, found, action.next_action, told["because"])
        raise ReplayError(f"{event.event_type} is no event type of this agent: update it")

    def apply(self, state: RunState | None, event: LogEvent) -> RunState:
        """Return the state after an event; before the first event it is None.

        Raises:
            ReplayError: It is not the one that follows, is of no known type, or cannot be read.
        """
        run_id, told = event.run_id, event.payload
        wanted = 1 if state is None else state.version + 2
        if event.sequence != wanted:
            raise ReplayError(
                f"the log of {run_id} has the sequence {event.sequence} where {wanted} must follow:"
                " restore it from a backup"
            )
        if state is None and event.event_type != "run_started":
            raise ReplayError(f"the log of {run_id} begins with {event.event_type}")
        try:
            if state is not None:
                return state.after(self.step(event))
            return RunState.begin(run_id, told["ticket_id"], told["next_action"], told["context"])
        except UNREADABLE as error:
            raise ReplayError(
                f"event {event.sequence} of {run_id} is no {event.event_type}: {error!r}. Restore"
                " it from a backup"
            ) from error


def fork(before: RunState, new_run_id: str, **changes: JSONValue) -> RunState:
    """Return what a new run begins with, from an earlier state of another run.

    Its id is its own, and so are the keys of its tool calls.

    Args:
        before: The earlier state, such as `store.at("run-T104", 1)`.
        new_run_id: The id of the new run.
        changes: What differs in its context.

    Raises:
        RunCompletedError: The run was over there: nothing is left to do otherwise.
    """
    before.require_unfinished()
    context = {**before.context, **changes}
    return RunState.begin(new_run_id, before.ticket_id, str(before.next_action), context)
