"""Worker processes: each claims a run, works it to its end while it renews, and takes the next."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from lesson_lib import agent
from lesson_lib.crash import die
from lesson_lib.errors import (
    LeaseLostError,
    RunCompletedError,
    StaleVersionError,
    StorageError,
)
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite import (
    AgentConnection,
    Claim,
    claim_next,
    connect,
    create_claims,
    create_schema,
    release,
    renew,
    save_claimed,
    unfinished_runs,
)
from lesson_lib.stores.sqlite.connection import is_locked
from lesson_lib.tickets import Tools, read_runbooks
from lesson_lib.workers.spans import SlowTools, watch_writes

LOCKED_RUNS = 3  # how often a worker takes up a run again that it lost to a locked file
POLL = 0.02  # seconds between two looks for a run whose holder may have died


def work(
    connection: AgentConnection,
    worker: str,
    tools: Tools,
    *,
    lease: timedelta,
    passing: Callable[[str], None] = lambda point: None,
    awake: threading.Lock | None = None,
    patience: float = 60.0,
) -> None:
    """Claim one unfinished run after the other and work it to its end, until none is left.

    A line is printed for each run: `completed run-T104`, or `left run-T104: LeaseLostError`. A run
    that fails is left to others, so that it keeps this worker from no other run.

    Args:
        connection: An open connection, outside of a transaction.
        worker: The worker's name, also its session's.
        tools: The tools to call.
        lease: How long a claim counts unless it is renewed.
        passing: See `agent.run_next_action`.
        awake: See `heartbeat`.
        patience: How long to wait for runs that others hold, in seconds.
    """
    failed: set[str] = set()
    troubles = Counter[str]()
    take = partial(claim_next, connection, worker=worker, lease=lease, skip=failed)
    rng, awake = Random(worker), awake or threading.Lock()
    waiting_since = time.monotonic()
    while set(unfinished_runs(connection)) - failed:
        claim = retry_locked(take, rng=rng)
        if claim is None:
            if time.monotonic() - waiting_since > patience:
                return
            time.sleep(POLL)
            continue
        try:
            with heartbeat(connection, claim, awake):
                state = agent.resume(connection, claim.run_id, worker)
                save = partial(save_claimed, claim=claim)
                agent.run_to_end(connection, state, worker, tools, passing=passing, save=save)
            print("completed", claim.run_id, flush=True)
        except (LeaseLostError, StaleVersionError, RunCompletedError) as error:
            print(f"left {claim.run_id}: {type(error).__name__}", flush=True)
        except Exception as error:  # noqa: BLE001  (no run may keep a worker from the others)
            troubles[claim.run_id] += 1
            passes = isinstance(error, StorageError) and is_locked(error)
            if not passes or troubles[claim.run_id] == LOCKED_RUNS:
                failed.add(claim.run_id)
            print(f"left {claim.run_id}: {type(error).__name__}", flush=True)
        with suppress(StorageError):  # the lease will end by itself
            release(connection, claim)
        waiting_since = time.monotonic()


@contextmanager
def heartbeat(connection: AgentConnection, claim: Claim, awake: threading.Lock) -> Iterator[None]:
    """Renew a claim at each third of its lease, until the block ends or the claim is lost.

    The thread that renews has a connection of its own. A claim that was lost raises nothing here:
    the next checkpoint of the holder is refused.

    Args:
        connection: The holder's, which says where the file is and what time it is.
        claim: The claim.
        awake: Whoever holds this lock stops the heartbeat, as a paused process stops all of it.
    """
    over = threading.Event()

    def beat() -> None:
        with suppress(LeaseLostError):
            while not over.wait(claim.lease.total_seconds() / 3):
                # Where the file is locked, the next beat tries again.
                with (
                    awake,
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
    for attempt in range(attempts):
        try:
            return transaction()
        except StorageError as error:
            if not is_locked(error) or attempt == attempts - 1:
                raise
        sleep(rng.uniform(0, pause * 2**attempt))
    raise ValueError("attempts must be 1 or more")


def command(
    database: Path, ledger: Path, worker: str, *, lease: timedelta, **options: object
) -> list[str]:
    """Return the command of a worker process, for `children.Child` or `children.together`.

    Args:
        database: The database file.
        ledger: The witness file of the tools.
        worker: The worker's name.
        lease: How long its claims count unless it renews them.
        options: Those of `main`, such as `die_at=7`.
    """
    named = {"worker": worker, "lease": lease.total_seconds()} | options
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in named.items()]
    return ["-m", "lesson_lib.workers.worker", str(database), str(ledger), *flags]


def main(arguments: Sequence[str] | None = None) -> None:
    """Be a worker process: get ready, wait for a line, work until no unfinished run is left."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.workers.worker", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--worker", required=True, help="its name")
    parser.add_argument("--lease", type=float, required=True, help="in seconds")
    parser.add_argument("--takes", type=float, default=0.0, help="how long a tool takes, seconds")
    parser.add_argument("--spans", type=Path, help="where to tell what begins and ends")
    parser.add_argument("--die-at", type=int, help="which crash point is the last, counted from 1")
    parser.add_argument("--pause-at", help="the crash point at which to wait for a line")
    options = parser.parse_args(arguments)
    points, awake = count(1), threading.Lock()

    def passing(point: str) -> None:
        if point == options.pause_at:
            with awake:
                print("paused", flush=True)
                if not sys.stdin.readline():  # the parent has died
                    die("kill")
        # After a death at `tool_ran` the tool runs again: no claim closes that window.
        if not point.endswith(":tool_ran") and next(points) == options.die_at:
            die("kill")

    spans = Ledger(options.spans or Path(os.devnull))
    tools = SlowTools(read_runbooks(), Ledger(options.ledger), options.takes, spans)
    with closing(connect(options.database)) as connection:
        create_schema(connection)
        create_claims(connection)
        if options.spans:
            watch_writes(connection, spans)
        print("ready", flush=True)
        if not sys.stdin.readline():  # the parent has died
            return
        lease = timedelta(seconds=options.lease)
        work(connection, options.worker, tools, lease=lease, passing=passing, awake=awake)


if __name__ == "__main__":
    main()
