"""Delivering what the outbox holds: bounded attempts, longer and longer waits, dead letters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lesson_lib.errors import InvalidStateError, KeyBusyError, RefusedError, RemoteError
from lesson_lib.riders.intents import KeyedService
from lesson_lib.riders.outbox import Command, claim_command, mark_delivered, mark_failed
from lesson_lib.sqlite.connection import AgentConnection


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
    key_lives: timedelta = timedelta(hours=23)

    def __post_init__(self) -> None:
        times = (self.base, self.cap, self.claim)
        if self.max_attempts < 1 or not timedelta() <= min(times) <= max(times) <= self.key_lives:
            raise InvalidStateError(
                "a policy has 1 attempt or more, and times from 0 up to key_lives"
            )

    def longest_wait(self, attempt: int) -> timedelta:
        """Return the limit of the wait after this attempt, counted from 1."""
        doubled: timedelta = self.base * 2 ** min(attempt - 1, 29)  # more might overflow
        return min(self.cap, doubled)

    def wait_after(self, attempt: int, chance: random.Random) -> timedelta:
        """Return how long to wait: any time up to the limit, "full jitter" (Amazon).

        So those who failed together do not come back together.
        """
        return self.longest_wait(attempt) * chance.random()


def deliver_next(
    connection: AgentConnection,
    service: KeyedService,
    *,
    session: str,
    policy: RetryPolicy,
    chance: random.Random,
    passing: Callable[[str], None] = lambda point: None,
) -> Command | None:
    """Try the next command that is due, and store how it went; None if none is due.

    A worker that dies after the request and before the mark makes it again later, with the same
    key: at least once from here, once at a service that keeps the key. The crash points are
    `claimed` and `sent`.
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
    return command


def deliver_due(connection: AgentConnection, service: KeyedService, **how: Any) -> list[str]:
    """Try every command that is due now, see `deliver_next`; return their keys in that order."""
    tried = []
    while command := deliver_next(connection, service, **how):
        tried.append(command.idempotency_key)
    return tried
