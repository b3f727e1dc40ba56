"""Delivering what the outbox holds: bounded attempts, longer and longer waits, dead letters."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from lesson_lib.crash import die
from lesson_lib.errors import InvalidStateError, KeyBusyError, RefusedError, RemoteError
from lesson_lib.payments.client import KEY_LIVES, Payments
from lesson_lib.stores.sqlite import AgentConnection, connect
from lesson_lib.stores.sqlite.outbox import Command, claim_command, mark_delivered, mark_failed


@dataclass(frozen=True)
class RetryPolicy:
    """How often a command is tried, and how long to wait before the next attempt.

    Args:
        max_attempts: After so many the command becomes a dead letter.
        base: The longest wait after the first attempt; it doubles with each one.
        cap: No wait is longer.
        claim: How long a command belongs to the worker that took it; longer than a request takes.
        key_lives: How long after its first attempt a command may be tried again: as long as the
            service surely remembers its key.

    Raises:
        InvalidStateError: There is no attempt, or a time is negative or longer than a key lives.
    """

    max_attempts: int = 6
    base: timedelta = timedelta(seconds=2)
    cap: timedelta = timedelta(minutes=5)
    claim: timedelta = timedelta(minutes=1)
    key_lives: timedelta = KEY_LIVES

    def __post_init__(self) -> None:
        times = (self.base, self.cap, self.claim)
        if self.max_attempts < 1 or not timedelta() <= min(times) <= max(times) <= self.key_lives:
            raise InvalidStateError(
                "a policy has 1 attempt or more, and times from 0 up to key_lives"
            )

    def wait_after(self, attempt: int, chance: random.Random) -> timedelta:
        """Return how long to wait after this attempt, counted from 1.

        "Full jitter" (Amazon, "Exponential Backoff And Jitter"): any time from none up to the
        limit, so that those who failed together do not come back together.
        """
        limit = self.cap
        if attempt <= 30:  # 2**30 times anything is over any cap, and might overflow
            limit = min(self.cap, self.base * 2 ** (attempt - 1))
        return limit * chance.random()


def deliver_next(
    connection: AgentConnection,
    service: Payments,
    *,
    session: str,
    policy: RetryPolicy,
    chance: random.Random,
    passing: Callable[[str], None] = lambda point: None,
) -> Command | None:
    """Try the next command that is due, and store how it went; None if none is due.

    A worker that dies after the request and before the mark makes it again later, with the same
    key: at least once from here, once at a service that keeps the key. When the service may have
    forgotten the key, the command is not sent again: it becomes a dead letter.

    Args:
        connection: An open connection, outside of a transaction.
        service: Where the commands go.
        session: The worker.
        policy: How to retry.
        chance: Gives the jitter.
        passing: Called with the name of each crash point: `claimed`, `sent`, `marked`.
    """
    command = claim_command(
        connection,
        claim=policy.claim,
        max_attempts=policy.max_attempts,
        key_lives=policy.key_lives,
        session=session,
    )
    if command is None:
        return None
    passing("claimed")
    try:
        answer = service.pay(command.idempotency_key, command.request)
    except (RemoteError, KeyBusyError, RefusedError) as error:
        hopeless = isinstance(error, RefusedError)
        wait = None if hopeless else policy.wait_after(command.attempts, chance)
        mark_failed(connection, command, session=session, error=str(error), retry_in=wait)
    else:
        passing("sent")
        mark_delivered(connection, command, session=session, answer=answer)
    passing("marked")
    return command


def deliver_due(
    connection: AgentConnection,
    service: Payments,
    *,
    session: str,
    policy: RetryPolicy,
    chance: random.Random,
    passing: Callable[[str], None] = lambda point: None,
) -> list[str]:
    """Try every command that is due now; return their keys in the order they were tried."""
    tried: list[str] = []
    while command := deliver_next(
        connection, service, session=session, policy=policy, chance=chance, passing=passing
    ):
        tried.append(command.idempotency_key)
    return tried


def child_command(
    database: Path, address: str, session: str, now: datetime, die_at: str | None = None
) -> list[str]:
    """Return the arguments of `python` for a delivery worker in a process of its own.

    Args:
        database: The database file.
        address: The payment service's.
        session: The worker's name.
        now: What its clock says.
        die_at: `claimed`, `sent` or `marked`, where the process is killed; None to live.
    """
    command = [
        "-m",
        "lesson_lib.payments.delivery",
        str(database),
        address,
        session,
        now.isoformat(),
    ]
    return [*command, "--die-at", die_at] if die_at else command


def main(arguments: Sequence[str] | None = None) -> None:
    """Be a delivery worker: try every command that is due, print the keys, and end."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.payments.delivery", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("address", help="of the payment service, such as 127.0.0.1:8080")
    parser.add_argument("session")
    parser.add_argument("now", type=datetime.fromisoformat, help="what the clock says")
    parser.add_argument("--die-at", choices=("claimed", "sent", "marked"))
    options = parser.parse_args(arguments)

    def passing(point: str) -> None:
        if point == options.die_at:
            die("kill")

    with closing(connect(options.database, clock=lambda: options.now)) as connection:
        tried = deliver_due(
            connection,
            Payments(options.address),
            session=options.session,
            policy=RetryPolicy(),
            chance=random.Random(options.session),
            passing=passing,
        )
    print(*tried, sep="\n")


if __name__ == "__main__":
    main()
