"""Group commit: the checkpoints of several runs in one transaction, when many come at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from lesson_lib.errors import InvalidStateError, LessonError, StorageError
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite.claims import Claim, require_claim, require_cover
from lesson_lib.stores.sqlite.connection import AgentConnection
from lesson_lib.stores.sqlite.records import write_checkpoint

type Outcome = RunState | LessonError


class CheckpointBatch:
    """Collects checkpoints and commits them together, at most once per `delay`.

    A checkpoint that comes after a quiet time is committed at once; in a storm each waits for
    others, for as long as `delay` and until `limit` of them wait. Only what `add`, `poll` or
    `flush` has returned is on disk: when the process dies, the checkpoints that wait are lost.

    Args:
        connection: An open connection; its clock is asked for the time.
        limit: How many may wait. The caller who brings the last one waits for the commit itself,
            so a flood is slowed down instead of piling up in memory.
        delay: How long a checkpoint waits at most, if `poll` is called when `due` says so.
    """

    def __init__(self, connection: AgentConnection, *, limit: int, delay: timedelta) -> None:
        """Begin with an empty batch."""
        if limit < 1 or delay < timedelta(0):
            raise InvalidStateError(
                f"a batch of at most {limit} checkpoints that wait for {delay} cannot be: choose a"
                " limit of 1 or more and a delay of 0 or more"
            )
        self._connection, self._limit, self._delay = connection, limit, delay
        self._waiting: list[tuple[RunState, Claim | None, dict[str, JSONValue]]] = []
        self._last_commit: datetime | None = None

    def __len__(self) -> int:
        """Return how many checkpoints wait."""
        return len(self._waiting)

    @property
    def due(self) -> datetime | None:
        """When `poll` must be called at the latest; None while nothing waits."""
        if not self._waiting or self._last_commit is None:
            return None
        return self._last_commit + self._delay

    def add(
        self,
        state: RunState,
        *,
        session: str,
        action: str,
        next_action: str | None,
        context: Mapping[str, JSONValue],
        claim: Claim | None = None,
    ) -> list[Outcome]:
        """Put a checkpoint into the batch, with the arguments of `save_checkpoint`.

        Args:
            state: The checkpoint this one follows.
            session: Which process life saves.
            action: The action that was completed.
            next_action: The action to do next; None completes the run.
            context: The whole new context. A copy is kept.
            claim: The claim that must still count at the commit; None for none.

        Returns:
            What `flush` returns if this checkpoint made the batch ready, else an empty list.

        Raises:
            JSONValueError: The context would not survive the round trip. Nothing was added.
            InvalidStateError: The claim is one of another run. Nothing was added.
            StorageError: The commit failed. All wait on, this one too unless `limit` of them waited
                already.
        """
        if not isinstance(state, RunState):
            raise InvalidStateError(f"a checkpoint follows a RunState, not {state!r:.40}")
        if claim is not None:
            require_cover(claim, state)
        copy = from_json(to_json(dict(context), "context"))
        # Full already: an earlier commit failed, and no more than `limit` may wait.
        outcomes = self.flush() if len(self._waiting) >= self._limit else []
        self._waiting.append(
            (
                state,
                claim,
                dict(session=session, action=action, next_action=next_action, context=copy),
            )
        )
        full = len(self._waiting) >= self._limit
        return outcomes + (self.flush() if full else self.poll())

    def poll(self) -> list[Outcome]:
        """Commit what waits if the last commit was long enough ago; see `flush`."""
        now, due = self._connection.clock(), self.due
        # A last commit that lies in the future was before the clock was set back.
        if self._last_commit is None or due is None or not self._last_commit <= now < due:
            return self.flush()
        return []

    def flush(self) -> list[Outcome]:
        """Commit all that wait in one transaction.

        Returns:
            For each, in the order of adding: its new state, or the error that refused it alone.

        Raises:
            StorageError: The commit failed. All wait on.
        """
        if not self._waiting:
            return []
        with self._connection:
            outcomes = [self._write(*checkpoint) for checkpoint in self._waiting]
        self._waiting = []
        self._last_commit = self._connection.clock()
        return outcomes

    def _write(
        self, state: RunState, claim: Claim | None, checkpoint: dict[str, JSONValue]
    ) -> Outcome:
        """Write one checkpoint; take back its own writes, and no others, if it is refused."""
        self._connection.execute("SAVEPOINT one_checkpoint")
        try:
            if claim is not None:
                require_claim(self._connection, claim)
            outcome: Outcome = write_checkpoint(self._connection, state, **checkpoint)
        except StorageError:
            raise
        except LessonError as error:
            self._connection.execute("ROLLBACK TO one_checkpoint")
            outcome = error
        self._connection.execute("RELEASE one_checkpoint")
        return outcome
