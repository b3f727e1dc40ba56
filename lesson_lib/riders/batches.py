"""Group commit: the checkpoints of several runs in one transaction, when many come at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime, timedelta

from lesson_lib.errors import InvalidStateError, StorageError
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.records import write_checkpoint
from lesson_lib.store import Rider

type Outcome = RunState | Exception


class CheckpointBatch:
    """Collects checkpoints and commits them together, at most once per `delay`.

    A checkpoint that comes after a quiet time is committed at once; in a storm each waits for
    others, for as long as `delay` and until `limit` of them wait. Only what `add`, `poll` or
    `flush` has returned is on disk: when the process dies, the checkpoints that wait are lost.

    Args:
        connection: An open connection; its clock is asked for the time.
        session: Which process life saves.
        limit: How many may wait. The caller who brings the last one waits for the commit itself,
            so a flood is slowed down instead of piling up in memory.
        delay: How long a checkpoint waits at most, if `poll` is called when `due` says so.
    """

    def __init__(
        self, connection: AgentConnection, session: str, *, limit: int, delay: timedelta
    ) -> None:
        """Begin with an empty batch."""
        if limit < 1 or delay < timedelta(0):
            raise InvalidStateError(
                f"a batch of at most {limit} checkpoints that wait for {delay} cannot be: choose a"
                " limit of 1 or more and a delay of 0 or more"
            )
        self._connection, self._session = connection, session
        self._limit, self._delay = limit, delay
        self._waiting: list[tuple[RunState, Step, Sequence[Rider]]] = []
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

    def add(self, state: RunState, step: Step, riders: Sequence[Rider] = ()) -> list[Outcome]:
        """Put a checkpoint into the batch, with the arguments of `save_checkpoint`.

        Returns:
            What `flush` returns if this checkpoint made the batch ready, else an empty list.

        Raises:
            RunCompletedError, JSONValueError: Nothing was added.
            InvalidStateError: An earlier checkpoint of the run waits. Nothing was added.
            StorageError: The commit failed. All wait on, this one too unless `limit` of them waited
                already.
        """
        state.after(step)  # what can be refused now does not wait for it
        waiting = {each.run_id: each.version for each, _, _ in self._waiting}
        if waiting.get(state.run_id, state.version) != state.version:
            raise InvalidStateError(f"a checkpoint of {state.run_id} waits already: flush first")
        # Full already: an earlier commit failed, and no more than `limit` may wait.
        outcomes = self.flush() if len(self) >= self._limit else []
        self._waiting.append((state, *deepcopy((step, tuple(riders)))))
        return outcomes + (self.flush() if len(self) >= self._limit else self.poll())

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

    def _write(self, state: RunState, step: Step, riders: Sequence[Rider]) -> Outcome:
        """Write one checkpoint; take back its own writes, and no others, if it is refused."""
        connection, session = self._connection, self._session
        connection.execute("SAVEPOINT one_checkpoint")
        try:
            outcome: Outcome = write_checkpoint(
                connection, state, step, session=session, riders=riders
            )
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001  (no checkpoint may keep the others waiting)
            connection.execute("ROLLBACK TO one_checkpoint")
            outcome = error
        connection.execute("RELEASE one_checkpoint")
        return outcome
