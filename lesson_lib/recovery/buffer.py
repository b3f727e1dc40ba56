"""A buffer for what cannot be stored now: bounded, in order, and never taken for stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lesson_lib.checkpoints.archive import following, keep, save_kept
from lesson_lib.checkpoints.codec import encode
from lesson_lib.errors import (
    CheckpointConflictError,
    IdempotencyConflictError,
    InvalidStateError,
    StaleVersionError,
    StorageError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.model import RunState, ToolResult, require_text
from lesson_lib.recovery.waiting import (
    Waiting,
    digest_of,
    is_on_disk,
    record,
    result_json,
    result_of,
    write_tool_event,
)
from lesson_lib.stores.sqlite import AgentConnection, execute_once, load_state, write_checkpoint

# Another process has the file locked, the disk is full, or it fails: all of that may pass.
AWAY = ("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


class Buffer:
    """Stands between one run and its store: an agent gets its `save` and its `execute`.

    The first call says which run that is; a second run needs a buffer of its own.

    While the store can be reached, both write at once. While it cannot, they remember, and the
    run goes on with working copies; each call tries again, first with all that waits. A call
    meets the closed store once, and waits for it as long as its connection does
    (`connect(timeout=…)`).

    Nothing in here is on disk. When the process dies, of all that its caller was given exactly
    `not_durable` is lost, and a tool whose result is in there, or which was just being called,
    will be called again. So whoever tells the world about a state calls
    `flush` first, and tells it only if that raises nothing.

    When more than `limit` payloads wait, the oldest are dropped and leave a summary: those of
    checkpoints first, since a later one holds the whole state, then those of results, which that
    state holds as well. The newest of each stays whole. The archive will lack what was dropped:
    a recovery that must fall back falls back further, and calls the tool of such a result again.

    Args:
        limit: How many payloads may wait, 2 or more. A summary takes a few hundred bytes.

    Raises:
        InvalidStateError: `limit` is too small.
    """

    def __init__(self, limit: int = 8) -> None:
        """Begin with nothing that waits."""
        if limit < 2:
            raise InvalidStateError(f"a buffer for {limit} payloads is too small: 2 is the least")
        self._limit = limit
        self._run_id: str | None = None
        self._waiting: list[Waiting] = []
        self._parent: RunState | None = None  # of the first checkpoint that waits
        self._newest: RunState | None = None

    @property
    def not_durable(self) -> tuple[Waiting, ...]:
        """What would be lost now, oldest first."""
        return tuple(self._waiting)

    def save(
        self,
        connection: AgentConnection,
        state: RunState,
        *,
        session: str,
        action: str,
        next_action: str | None,
        context: Mapping[str, JSONValue],
    ) -> RunState:
        """Save the next checkpoint as `save_kept` does, or remember it.

        Raises:
            StaleVersionError, CheckpointConflictError, IdempotencyConflictError: Somebody else
                went on with the run. Nothing that waits was written; this worker must stop.
            InvalidStateError, JSONValueError, CheckpointSizeError, UnknownRunError: The store
                would not take this state, ever. It was not remembered either.
        """
        self._require(state.run_id, session=session, action=action)
        if self._is_flushed(connection):
            try:
                return save_kept(
                    connection,
                    state,
                    session=session,
                    action=action,
                    next_action=next_action,
                    context=context,
                )
            except StorageError as error:
                _require_away(error)
        state.require_unfinished()
        if self._newest not in (None, state):
            raise StaleVersionError(
                f"a later state of {state.run_id} than version {state.version} waits already: go"
                " on from the one that was returned last"
            )
        new = following(state, next_action, context)
        encode(new)  # what the store would refuse later is refused now
        with suppress(StorageError):  # nobody can look now
            _require_run(connection, state.run_id)
        self._parent, self._newest = self._parent or state, new
        self._remember(
            Waiting(
                run_id=new.run_id,
                session=session,
                event_type="checkpoint_saved",
                action=action,
                name=f"version {new.version}",
                next_action=next_action,
                sha256=digest_of(new.context_json),
                payload=new,
            )
        )
        return new

    def execute(
        self,
        connection: AgentConnection,
        function: Callable[[], JSONValue],
        *,
        run_id: str,
        session: str,
        key: str,
        tool_name: str,
        tool_input: JSONValue,
    ) -> ToolResult:
        """Call a tool as `execute_once` does, or remember its result.

        Raises:
            StorageError: The store cannot even be read, so that nobody knows whether the key has
                a result: the tool was not called. Or its result was dropped. Or the tool raised
                it: it was called once.
            Exception: Those of `execute_once` and of `flush`.
        """
        self._require(run_id, session=session, key=key, tool_name=tool_name)
        is_flushed = self._is_flushed(connection)
        digest = digest_of(to_json(tool_input, "tool_input"))
        for waiting in self._waiting:
            if waiting.name == key:
                return result_of(waiting, tool_name, digest)
        started: list[str] = []
        values: list[JSONValue] = []

        def call() -> JSONValue:
            started.append(key)
            values.append(function())
            return values[0]

        if is_flushed:
            try:
                return execute_once(
                    connection,
                    call,
                    run_id=run_id,
                    session=session,
                    key=key,
                    tool_name=tool_name,
                    tool_input=tool_input,
                    wait=0,
                )
            except StorageError as error:
                if started and not values:
                    raise  # by the tool: what it did before that is not known
                _require_away(error)
        saved = None
        if not values:
            _require_run(connection, run_id)
            saved = connection.execute(
                "SELECT * FROM tool_effects WHERE idempotency_key = ?", (key,)
            ).fetchone()
            if saved is None:
                call()
        event = Waiting(
            run_id=run_id if saved is None else saved["run_id"],
            session=session,
            event_type="tool_executed" if saved is None else "tool_reused",
            action=tool_name if saved is None else saved["tool_name"],
            name=key,
            next_action=None,
            sha256=digest if saved is None else saved["input_sha256"],
            payload=result_json(key, values[0]) if saved is None else saved["result_json"],
        )
        if event.run_id != run_id:
            raise IdempotencyConflictError(f"the key {key} is one of {event.run_id}: use a new key")
        result = replace(result_of(event, tool_name, digest), reused=saved is not None)
        self._remember(event)
        return result

    def flush(self, connection: AgentConnection) -> None:
        """Write all that waits, in its order, in one transaction: all of it or nothing.

        The events get the time of this call, not that of what they tell of.

        Raises:
            StorageError: The store is still away.
            StaleVersionError, CheckpointConflictError, IdempotencyConflictError: Somebody else
                went on with the run meanwhile. All of it still waits.
        """
        if self._waiting:
            try:
                self._write(connection)
            except (StaleVersionError, CheckpointConflictError, IdempotencyConflictError):
                # Interrupted after its COMMIT, an earlier flush had no time to forget.
                if not (
                    is_on_disk(connection, self._waiting)
                    and self._newest in (None, load_state(connection, self._waiting[0].run_id))
                ):
                    raise
        self._waiting, self._parent, self._newest = [], None, None

    def _write(self, connection: AgentConnection) -> None:
        with connection:
            at, newest = self._parent, self._newest
            if at is not None:
                keep(connection, at)
            for waiting in self._waiting:
                detail: JSONObject = {"key": waiting.name}
                if waiting.event_type != "checkpoint_saved":
                    write_tool_event(connection, waiting)
                elif at is not None and newest is not None:
                    # A summary borrows the newest context: only the last row is ever seen.
                    at = write_checkpoint(
                        connection,
                        at,
                        session=waiting.session,
                        action=waiting.action,
                        next_action=waiting.next_action,
                        context=newest.context,
                    )
                    detail = {"version": at.version}
                    if isinstance(waiting.payload, RunState):
                        at = waiting.payload
                        keep(connection, at)
                if waiting.form == "summary" and waiting.event_type != "tool_reused":
                    record(connection, waiting, "payload_not_kept", detail)

    def _require(self, run_id: str, **texts: str) -> None:
        """Refuse what no store would ever take: remembered, it would stop each flush."""
        for name, text in {"run_id": run_id, **texts}.items():
            require_text(name, text)
        if self._run_id not in (None, run_id):
            raise InvalidStateError(
                f"this buffer is that of {self._run_id}: {run_id} needs one of its own"
            )
        self._run_id = run_id

    def _is_flushed(self, connection: AgentConnection) -> bool:
        try:
            self.flush(connection)
        except StorageError as error:
            _require_away(error)
            return False
        return True

    def _remember(self, event: Waiting) -> None:
        self._waiting.append(event)
        whole = [at for at, each in enumerate(self._waiting) if each.form == "whole"]
        checkpoints = [at for at in whole if isinstance(self._waiting[at].payload, RunState)]
        results = [at for at in whole if at not in checkpoints]
        if len(whole) > self._limit:
            oldest = (checkpoints[:-1] or results)[0]
            self._waiting[oldest] = replace(self._waiting[oldest], payload=None)


def _require_away(error: StorageError) -> None:
    """Raise the error again, unless it tells of something that may pass by itself."""
    cause = error.__cause__
    name = getattr(cause, "sqlite_errorname", "")
    if not isinstance(cause, OSError) and not name.startswith(AWAY):
        raise error


def _require_run(connection: AgentConnection, run_id: str) -> None:
    if not connection.execute("SELECT 1 FROM agent_runs WHERE run_id = ?", (run_id,)).fetchone():
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
