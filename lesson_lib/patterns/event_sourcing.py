"""Event sourcing: no state is stored at all; it is what the events of the log lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

from lesson_lib.agent import Agent
from lesson_lib.errors import InvalidStateError, NotKeptError, UnknownRunError
from lesson_lib.model import RunState, Step
from lesson_lib.patterns.log import LogEvent, Upcasters, append, read_log
from lesson_lib.patterns.projection import Projection
from lesson_lib.sqlite import AgentConnection, SQLiteStore, record_event, start_run
from lesson_lib.sqlite.records import require_run
from lesson_lib.store import Rider, Saving, prepared


@dataclass(frozen=True)
class EventSourcing(SQLiteStore):
    """A `StateStore` of logs. A run's row holds its name and whether it is over, no context.

    Args:
        agent: Says what the events are called and what they mean.
        upcasters: The steps up from older versions of the events.
    """

    agent: Agent = field(kw_only=True)
    upcasters: Upcasters = field(default=(), kw_only=True)

    @property
    def projection(self) -> Projection:
        """What the events mean."""
        return Projection(self.agent)

    @property
    def event_schema(self) -> int:
        """The version of the schema that this session writes."""
        return len(self.upcasters) + 1

    def start_run(self, state: RunState) -> RunState:
        """Append the first event, which holds the whole state that the run begins with."""
        riders = (*self.riders, _Moved(self))
        return start_run(self.connection, state, session=self.session, riders=riders)

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """Append an event with what the step found, and why."""
        riders = (*self.riders, *step.riders)
        saving = prepared(Saving(state, step, state.after(step), self.session, riders))
        with self.connection:
            for rider in saving.riders:
                rider.check(self.connection, saving)
            self._append(state, saving.step or step, saving.after)
            for rider in saving.riders:
                rider.write(self.connection, saving)
        return saving.after

    def _append(self, state: RunState, step: Step, new: RunState) -> None:
        event = self.projection.event(state, step)
        if self.projection.apply(state, event) != new:
            raise InvalidStateError(f"{event.event_type} does not tell all of {step.action}")
        require_run(self.connection, state.run_id)
        append(self.connection, event, self.event_schema)
        record_event(
            self.connection,
            run_id=state.run_id,
            session=self.session,
            event_type="checkpoint_saved",
            action=step.action,
            detail={"version": new.version},
        )
        if new.status == "completed":
            self.connection.execute(
                "UPDATE agent_runs SET status = 'completed', next_action = NULL WHERE run_id = ?",
                (state.run_id,),
            )

    def load_state(self, run_id: str) -> RunState:
        """Replay the log."""
        return self._replay(run_id, None)

    def at(self, run_id: str, version: int) -> RunState:
        """Replay the log up to a version, or raise `NotKeptError`."""
        state = self._replay(run_id, max(version, 0) + 1)
        if state.version != version:
            raise NotKeptError(f"{run_id} is at version {state.version}, {version} is not there")
        return state

    def why(self, run_id: str, version: int) -> str:
        """Return why the step that led to a version was taken, or raise `NotKeptError`."""
        events = self.read_log(run_id, after=version, up_to=version + 1)
        if not events or version == 0:
            raise NotKeptError(f"{run_id} has no step that led to version {version}")
        return self.projection.step(events[0]).because

    def read_log(self, run_id: str, *, after: int = 0, up_to: int | None = None) -> list[LogEvent]:
        """Return events of a run; see `log.read_log`."""
        return read_log(self.connection, run_id, self.upcasters, after, up_to)

    def _snapshot(self, run_id: str, up_to: int | None) -> RunState | None:
        return None

    def _replay(self, run_id: str, up_to: int | None) -> RunState:
        state = self._snapshot(run_id, up_to)
        after = 0 if state is None else state.version + 1
        for event in self.read_log(run_id, after=after, up_to=up_to):
            state = self.projection.apply(state, event)
        if state is None:
            raise UnknownRunError(f"{self.connection.path} holds no log of {run_id!r}: start it")
        return state


@dataclass(frozen=True)
class _Moved(Rider):
    """Moves what a new run begins with from its row into the log."""

    store: EventSourcing

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        append(connection, self.store.projection.first(saving.after), self.store.event_schema)
        run_id = saving.after.run_id
        connection.execute("UPDATE agent_runs SET context_json = '{}' WHERE run_id = ?", (run_id,))
