"""A buffer for what cannot be stored now: bounded, in order, and never taken for stored."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    StaleVersionError,
    StorageError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult, input_digest
from lesson_lib.sqlite import SQLiteStore, record_event, write_checkpoint
from lesson_lib.sqlite.records import require_run
from lesson_lib.store import Saving

# Another process has the file locked, the disk is full, or it fails: all of that may pass.
AWAY = ("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


@dataclass(frozen=True)
class Waiting:
    """An event that is not on disk yet; `name` is `version 2`, or an idempotency key.

    A checkpoint has its step, which in a "summary" has left its content to the next one; a result
    has its row, without the key.
    """

    event_type: str
    action: str
    name: str
    detail: JSONObject
    step: Step | None = field(default=None, repr=False)
    result: tuple[str, str, str, str] | None = field(default=None, repr=False)
    form: str = "whole"


class BufferedStore:
    """Stands between one run and its store; the agent takes it for that store.

    While the store can be reached, all is written at once. While it cannot, this remembers, and
    each call tries again, first with all that waits. It meets the closed store once, and waits for
    it as long as its connection does (`connect(timeout=…)`).

    Nothing in here is on disk. When the process dies, of all that its agent was given exactly
    `not_durable` is lost, and a tool whose result is in there, or which was just being called,
    will be called again. So whoever tells the world about a state calls `flush` first, and tells
    it only if that raises nothing.

    Args:
        store: The store.
        limit: How many steps and results may wait whole, 2 or more. Beyond it the oldest step
            becomes a summary: an archive will lack its version. A result is never dropped: where
            there is no room for one, its tool is not called.
    """

    def __init__(self, store: SQLiteStore, limit: int = 8) -> None:
        """Begin with nothing that waits; an InvalidStateError says that `limit` is too small."""
        if limit < 2:
            raise InvalidStateError(f"a buffer for {limit} payloads is too small: 2 is the least")
        self._store, self._limit = store, limit
        self._run_id = ""
        self._waiting: list[Waiting] = []
        self._parent: RunState | None = None  # of the first checkpoint that waits
        self._given: RunState | None = None  # the last that was given and not yet written
        self._written: RunState | None = None  # what became of that: a rider may have changed it

    @property
    def session(self) -> str:
        """The session of the store."""
        return self._store.session

    @property
    def not_durable(self) -> tuple[Waiting, ...]:
        """What would be lost now, oldest first."""
        return tuple(self._waiting)

    def start_run(self, state: RunState) -> RunState:
        """Start the run: that needs the store."""
        self._require(state.run_id)
        return self._store.start_run(state)

    def load_state(self, run_id: str) -> RunState:
        """Return the newest state, on disk or not."""
        self._require(run_id)
        return (self._parent and self._given) or self._store.load_state(run_id)

    def read_events(self, run_id: str) -> list[Event]:
        """Return the events that are on disk."""
        return self._store.read_events(run_id)

    def unfinished_runs(self) -> list[str]:
        """Return the runs that are unfinished on disk."""
        return self._store.unfinished_runs()

    def record_event(
        self,
        run_id: str,
        event_type: str,
        action: str,
        detail: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """Record an event, or remember it."""
        self._require(run_id)
        try:
            self.flush()
            self._store.record_event(run_id, event_type, action, detail)
        except StorageError as error:
            _require_away(error)
            self._remember(Waiting(event_type, action, event_type, dict(detail or {})))

    def save_checkpoint(self, state: RunState, step: Step) -> RunState:
        """Save the next checkpoint, or remember it.

        Raises:
            StaleVersionError, CheckpointConflictError, IdempotencyConflictError: Somebody else
                went on with the run. Nothing that waits was written; this worker must stop.
            LessonError: A rider refuses one of the states that wait: none was written.
        """
        self._require(state.run_id)
        try:
            self.flush()
            if state == self._given and self._written is not None:
                state = self._written
            return self._store.save_checkpoint(state, step)
        except StorageError as error:
            _require_away(error)
        if self._parent is not None and state != self._given:
            raise StaleVersionError(
                f"a later state of {state.run_id} than version {state.version} waits already: go"
                " on from the one that was returned last"
            )
        new = state.after(step)
        self._parent, self._given, self._written = self._parent or state, new, None
        name, detail = f"version {new.version}", {"version": new.version}
        found, appended = deepcopy((step.found, step.appended))  # the caller's may change
        own = replace(step, found=found, appended=appended)
        self._remember(Waiting("checkpoint_saved", step.action, name, detail, own))
        return new

    def execute_once(self, call: ToolCall) -> ToolResult:
        """Call a tool once, or remember its result.

        Raises:
            StorageError: The store cannot even be read, so that nobody knows whether the key has
                a result; or there is no room for one. The tool was not called. Or the tool raised
                it: it was called once.
            LessonError: As `save_checkpoint`, and as the store.
        """
        self._require(call.run_id)
        started, values = list[str](), list[JSONValue]()

        def function() -> JSONValue:
            started.append(call.key)
            values.append(call.function())
            return values[0]

        try:
            self.flush()
            with self._store.connection:  # a result that cannot be saved is a call too many
                pass
            return self._store.execute_once(replace(call, function=function))
        except StorageError as error:
            if started and not values:
                raise  # by the tool: what it did before that is not known
            _require_away(error)
        digest = input_digest(call.tool_input)
        wanted, detail = (call.run_id, call.tool_name, digest), {"key": call.key}
        found = None if values else self._find(call)
        if found is not None and found[:3] != wanted:
            raise IdempotencyConflictError(
                f"the key {call.key} was used before, and run, tool or input differ now: a new"
                " intention needs a new key"
            )
        if found is not None:
            text, new = found[3], Waiting("tool_reused", call.tool_name, call.key, detail)
        else:
            if not values:
                self._require_room(call)
            text = to_json(values[0] if values else function(), "result")
            result = (*wanted, text)
            new = Waiting("tool_executed", call.tool_name, call.key, detail, result=result)
        self._remember(new)
        return ToolResult(call.key, call.tool_name, from_json(text), reused=found is not None)

    def flush(self) -> None:
        """Write all that waits, in its order, in one transaction: all of it or nothing.

        The events get the time of this call, not that of what they tell of.

        Raises:
            StorageError: The store is still away.
            StaleVersionError, CheckpointConflictError, IdempotencyConflictError: Somebody else
                went on with the run meanwhile. All of it still waits.
        """
        if self._waiting:
            with self._store.connection:
                at = self._parent
                for waiting in self._waiting:
                    at = self._write(waiting, at)
            self._waiting, self._parent, self._written = [], None, at

    def _write(self, waiting: Waiting, at: RunState | None) -> RunState | None:
        """Write what waits after the state `at`; return the state that the run is at then."""
        connection, session, riders = self._store.connection, self.session, self._store.riders
        event_type, step = waiting.event_type, waiting.step
        if step is not None and at is not None:
            if waiting.form == "summary":
                for rider in riders:
                    rider.check(connection, Saving(at, step, at.after(step), session))
                riders, event_type = (), "payload_not_kept"
            at = write_checkpoint(connection, at, step, session=session, riders=riders)
        elif waiting.result is not None:
            insert = "INSERT INTO tool_effects VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
            if connection.execute(insert, (waiting.name, *waiting.result)).rowcount != 1:
                raise IdempotencyConflictError(
                    f"{waiting.name} got a result from another session while this one waited: that"
                    " one counts. Recover the run"
                )
        if event_type != "checkpoint_saved":  # that one came with its checkpoint
            about = {"run_id": self._run_id, "session": session, "action": waiting.action}
            record_event(connection, **about, event_type=event_type, detail=waiting.detail)
        return at

    def _find(self, call: ToolCall) -> Any:
        """Return the row of a key, as it waits or is on disk, without the key itself."""
        for waiting in self._waiting:
            if waiting.name == call.key and waiting.result is not None:
                return waiting.result
        require_run(self._store.connection, call.run_id)
        row = self._store.connection.execute(
            """SELECT run_id, tool_name, input_sha256, result_json FROM tool_effects
            WHERE idempotency_key = ?""",
            (call.key,),
        ).fetchone()
        return row and tuple(row)

    def _require(self, run_id: str) -> None:
        if self._waiting and self._run_id != run_id:
            raise InvalidStateError(
                f"what waits here is of {self._run_id}: {run_id} needs a buffer of its own"
            )
        self._run_id = run_id

    def _require_room(self, call: ToolCall) -> None:
        if self._results + 1 >= self._limit:  # one place is for the newest step
            raise StorageError(
                f"the buffer is full, and the tool of {call.key} was not called: its result would"
                " have no place until the store is back"
            )

    def _remember(self, new: Waiting) -> None:
        self._waiting.append(new)
        whole = [(n, w) for n, w in enumerate(self._waiting) if w.step and w.form == "whole"]
        if len(whole) > 1 and len(whole) + self._results > self._limit:
            (m, old), (n, later) = whole[:2]
            if old.step is not None and later.step is not None:
                self._waiting[n] = replace(later, step=_joined(old.step, later.step))
                bare = replace(old.step, found={}, appended={})
                self._waiting[m] = replace(old, step=bare, form="summary")

    @property
    def _results(self) -> int:
        return sum(waiting.result is not None for waiting in self._waiting)


def _joined(old: Step, later: Step) -> Step:
    """Return the later one of two steps, with what both of them brought."""
    found, appended = {**old.found, **later.found}, {**old.appended, **later.appended}
    for name in old.appended.keys() & later.appended.keys():
        appended[name] = [*old.appended[name], *later.appended[name]]
    for name in old.found.keys() & later.appended.keys():
        found[name] = [*old.found[name], *appended.pop(name)]
    for name in old.appended.keys() & later.found.keys():
        del appended[name]
    return replace(later, found=found, appended=appended)


def _require_away(error: StorageError) -> None:
    """Raise the error again, unless it tells of something that may pass by itself."""
    cause = error.__cause__
    name = getattr(cause, "sqlite_errorname", "")
    if not isinstance(cause, OSError) and not name.startswith(AWAY):
        raise error
