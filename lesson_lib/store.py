"""What every way to keep a run can be asked, and what may ride in the transaction of a save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lesson_lib.errors import InvalidStateError
from lesson_lib.json_text import JSONValue
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult


class StateStore(Protocol):
    """Keeps runs for one session, which is one process life.

    An agent knows this protocol and no store. `tests/test_conformance.py` has a test for each
    promise, and a store of one's own joins it by a line in `tests/conformance.py`.
    """

    @property
    def session(self) -> str:
        """The name of this process life."""

    def start_run(self, state: RunState) -> RunState:
        """Keep a new run, with the event `run_started`; return its state.

        Raises:
            RunExistsError: A run of this id is kept already.
        """

    def load_state(self, run_id: str) -> RunState:
        """Return the newest state that was acknowledged.

        Raises:
            UnknownRunError: There is no such run.
            CorruptStateError: What is stored cannot be trusted.
        """

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """Keep what a step did to `state`, with the event `checkpoint_saved`: both or neither.

        Returns:
            The new state, one version on. Once it is returned, it is acknowledged.

        Raises:
            StaleVersionError: The run is no longer at `state.version`. Nothing changed.
            InvalidStateError: The step has riders, and this store has no transaction for them.
            RunCompletedError, UnknownRunError, JSONValueError: Nothing changed.
        """

    def execute_once(self, call: ToolCall) -> ToolResult:
        """Return the saved result of the call's key, or make the call and save what it returns.

        The event is `tool_executed` or `tool_reused`.

        Raises:
            IdempotencyConflictError: Another run used the key, or another tool or input.
            UnknownRunError: There is no such run. The tool was not called.
            Exception: Whatever the tool raises. Nothing was saved; the next call tries again.
        """

    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """Append an event to a run.

        Raises:
            UnknownRunError: There is no such run.
        """

    def read_events(self, run_id: str) -> list[Event]:
        """Return all events of a run in the order of their sequence.

        Raises:
            UnknownRunError: There is no such run.
        """

    def unfinished_runs(self) -> list[str]:
        """Return the ids of the runs that a new process should resume, in order."""


@dataclass(frozen=True)
class Saving:
    """A save that is under way.

    Args:
        before: The state that it follows; None at the start of a run.
        step: What led to the new state; None at the start of a run.
        after: The state that will be stored.
        session: Which process life saves.
        riders: What rides with it: those of the store, then those of the step.
    """

    before: RunState | None
    step: Step | None
    after: RunState
    session: str
    riders: tuple[Rider, ...] = ()


class Rider:
    """Something that must be true together with a checkpoint: it rides in its transaction.

    A store with transactions calls the three for each of its riders, in their order, and then for
    those of the step. Each does nothing unless a rider says otherwise. What one of them raises
    rolls all back. `connection` is the store's own.
    """

    def prepare(self, saving: Saving) -> Saving:
        """Return what is to be saved instead, such as a redacted state.

        `save_checkpoint` asks before it opens the transaction, so it may take its time.
        """
        return saving

    def check(self, connection: Any, saving: Saving) -> None:
        """Raise where this save must not be: nothing is written yet."""

    def write(self, connection: Any, saving: Saving) -> None:
        """Write what belongs to the save: checkpoint and event are written already."""


def prepared(saving: Saving) -> Saving:
    """Return what is to be saved, as its riders want it.

    Raises:
        InvalidStateError: A rider has changed more than what the run knows.
    """
    ready = saving
    for rider in saving.riders:
        ready = rider.prepare(ready)
    for name in ("run_id", "ticket_id", "status", "next_action", "version"):
        wanted, found = getattr(saving.after, name), getattr(ready.after, name)
        if wanted != found:
            raise InvalidStateError(
                f"a rider has made {name} {found!r} of {wanted!r}: it may change the context only"
            )
    return ready
