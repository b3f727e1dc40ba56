"""Checkpoint: the newest state, whole, in one row; older ones only where the archive has them."""

from __future__ import annotations

from collections.abc import Callable

from lesson_lib.checkpoints.archive import create_archive, read_kept
from lesson_lib.errors import NotKeptError
from lesson_lib.json_text import JSONValue
from lesson_lib.model import RunState
from lesson_lib.patterns.projection import merge
from lesson_lib.patterns.protocol import Step, ToolCall, call_once
from lesson_lib.stores.sqlite import (
    AgentConnection,
    create_schema,
    load_state,
    save_checkpoint,
    start_run,
)


class Checkpoint:
    """Keep runs as part one of this series does."""

    def __init__(
        self,
        connection: AgentConnection,
        session: str,
        *,
        keys: bool = True,
        save: Callable[..., RunState] = save_checkpoint,
    ) -> None:
        """Make the tables where they are missing.

        Args:
            connection: An open connection.
            session: Which process life this is.
            keys: Whether results of tools are kept under idempotency keys.
            save: What saves; `archive.save_kept` keeps the older states too.
        """
        self._connection, self._session, self._keys, self._save = connection, session, keys, save
        create_schema(connection)
        create_archive(connection)

    def start(self, state: RunState) -> None:
        """Keep a new run."""
        start_run(
            self._connection,
            run_id=state.run_id,
            ticket_id=state.ticket_id,
            session=self._session,
            first_action=str(state.next_action),
            context=state.context,
        )

    def call(self, state: RunState, call: ToolCall) -> JSONValue:
        """Call the tool, once for its key where there are keys."""
        if not self._keys:
            return call.function()
        return call_once(self._connection, self._session, state, call)

    def save(self, state: RunState, step: Step) -> RunState:
        """Replace the row of the run, if it is still the one that `state` is."""
        return self._save(
            self._connection,
            state,
            session=self._session,
            action=step.action,
            next_action=step.next_action,
            context=merge(state.context, step.found),
        )

    def load(self, run_id: str) -> RunState:
        """Return the row."""
        return load_state(self._connection, run_id)

    def at(self, run_id: str, version: int) -> RunState:
        """Return the row, or what the archive has."""
        newest = self.load(run_id)
        if newest.version == version:
            return newest
        for kept in read_kept(self._connection, run_id, version=version):
            if kept.state is not None:
                return kept.state
        raise NotKeptError(f"{run_id} is at version {newest.version}, {version} is not kept")

    def why(self, run_id: str, version: int) -> str:
        """Raise: the state says what was found, not why."""
        raise NotKeptError("no reason is kept")
