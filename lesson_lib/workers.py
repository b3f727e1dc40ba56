"""Worker processes: each claims a run, works it to its end while it renews, and takes the next."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from random import Random

from lesson_lib.agent import Agent, Passing
from lesson_lib.errors import LeaseLostError, RunCompletedError, StaleVersionError, StorageError
from lesson_lib.riders.claims import Claim, Claimed, claim_next, release, renew
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, unfinished_runs
from lesson_lib.sqlite.connection import is_locked
from lesson_lib.store import Rider

LOCKED_RUNS = 3  # how often a worker takes up a run again that it lost to a locked file
POLL = 0.02  # seconds between two looks for a run whose holder may have died


def work(
    connection: AgentConnection,
    worker: str,
    agent: Agent,
    tools: object,
    *,
    lease: timedelta,
    riders: tuple[Rider, ...] = (),
    passing: Passing = lambda point: None,
    patience: float = 60.0,
) -> None:
    """Claim one unfinished run after the other and work it to its end, until none is left.

    A line is printed for each run: `completed run-T104`, `left run-T104: LeaseLostError`, or `left
    run-T104: waits`. A run that fails or waits keeps this worker from no other: it takes it up no
    more, and leaves it to others.

    Args:
        connection: An open connection, outside of a transaction.
        worker: The worker's name, also its session's.
        agent: The agent that performs the actions.
        tools: See `Agent.run_next_action`.
        lease: How long a claim counts unless it is renewed.
        riders: What must be true together with each checkpoint, besides the claim.
        passing: See `Agent.run_next_action`.
        patience: How long to wait for runs that others hold, in seconds.
    """
    leave, failures = set[str](), Counter[str]()
    take = partial(claim_next, connection, worker=worker, lease=lease, skip=leave)
    rng, waiting_since = Random(worker), time.monotonic()
    while set(unfinished_runs(connection)) - leave:
        claim = retry_locked(take, rng=rng)
        if claim is None:
            if time.monotonic() - waiting_since > patience:
                return
            time.sleep(POLL)
            continue
        run_id, store = claim.run_id, SQLiteStore(connection, worker, (Claimed(claim), *riders))
        try:
            with heartbeat(connection, claim):
                state = agent.resume(store, run_id)
                state = agent.run_to_end(store, state, tools, passing=passing)
            end = "completed"
            if state.status != "completed":
                end = "waits"
                leave.add(run_id)
        except (LeaseLostError, StaleVersionError, RunCompletedError) as error:
            end = type(error).__name__  # it is in other hands
        except Exception as error:  # noqa: BLE001  (no run may keep a worker from the others)
            end = type(error).__name__
            failures[run_id] += 1
            passes = isinstance(error, StorageError) and is_locked(error)
            if not passes or failures[run_id] == LOCKED_RUNS:
                leave.add(run_id)
        print(f"completed {run_id}" if end == "completed" else f"left {run_id}: {end}", flush=True)
        with suppress(StorageError):  # the lease will end by itself
            release(connection, claim)
        waiting_since = time.monotonic()


@contextmanager
def heartbeat(connection: AgentConnection, claim: Claim) -> Iterator[None]:
    """Renew a claim at each third of its lease, until the block ends or the claim is lost.

    The thread that renews has a connection of its own, with the clock of the holder's. A claim
    that was lost raises nothing here: the next checkpoint of the holder is refused.
    """
    over = threading.Event()

    def beat() -> None:
        with suppress(LeaseLostError):
            while not over.wait(claim.lease.total_seconds() / 3):
                # Where the file is locked, the next beat tries again.
                with (
                    suppress(StorageError),
                    closing(connect(connection.path, clock=connection.clock)) as own,
                ):
                    renew(own, claim)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def retry_locked[T](
    transaction: Callable[[], T],
    *,
    rng: Random,
    attempts: int = 5,
    pause: float = 0.05,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call a transaction that found the file locked again, a few times, after random pauses.

    Only for what is safe to repeat as a whole: never for something that calls a tool.

    Args:
        transaction: What to call.
        rng: Where the pauses come from; two workers must not have the same.
        attempts: How often to call it at most.
        pause: The longest first pause, in seconds; each later one may be twice as long.
        sleep: What waits.

    Raises:
        StorageError: The last attempt failed as well; or one failed for another reason.
    """
    for attempt in range(attempts - 1):
        try:
            return transaction()
        except StorageError as error:
            if not is_locked(error):
                raise
        sleep(rng.uniform(0, pause * 2**attempt))
    return transaction()
