"""Claims: who works on a run and until when, and a token that stops whoever comes late."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from lesson_lib.clock import aware, utc_text
from lesson_lib.errors import (
    InvalidStateError,
    LeaseLostError,
    RunCompletedError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.model import require_text
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.records import unfinished_runs, unknown_run
from lesson_lib.store import Rider, Saving

# AUTOINCREMENT never gives a number twice, not even after its row was deleted.
RUN_CLAIMS = """CREATE TABLE IF NOT EXISTS run_claims (  -- who works on a run, and until when
    token          INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id         TEXT NOT NULL UNIQUE REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    worker         TEXT NOT NULL,
    lease_seconds  REAL NOT NULL CHECK (lease_seconds > 0),
    expires_at_utc TEXT NOT NULL CHECK (expires_at_utc GLOB '????-??-??T*Z')
) STRICT"""


@dataclass(frozen=True)
class Claim:
    """One row of `run_claims`: a worker has a run for the length of a lease.

    The lease decides when somebody else may take the run over. The token keeps the run safe: each
    claim gets a higher one, and only the holder of the stored one may save.
    """

    token: int
    run_id: str
    worker: str
    lease: timedelta
    expires_at: datetime

    def is_live(self, now: datetime) -> bool:
        """Return whether the lease still runs.

        An end further away than a whole lease was written by a clock that has been set back since:
        waiting for it could take hours, so it counts as over.
        """
        return now < self.expires_at <= now + self.lease


@dataclass(frozen=True)
class Claimed(Rider):
    """Lets a checkpoint be saved while its claim counts: look and write are one transaction.

    A run is started before it is claimed, so no store with this rider can start one.

    A worker that comes late may still append an event (`run_resumed`, `tool_executed`): it tells
    what happened, and claims nothing.
    """

    claim: Claim

    def check(self, connection: AgentConnection, saving: Saving) -> None:
        """See `require_claim`; an InvalidStateError says that the claim is one of another run."""
        held, saved = self.claim.run_id, saving.after.run_id
        if held != saved:
            raise InvalidStateError(f"a claim of {held} does not cover {saved}")
        require_claim(connection, self.claim)


def create_claims(connection: AgentConnection) -> None:
    """Create the table `run_claims`; in a database that has it, do nothing."""
    with connection:
        connection.execute(RUN_CLAIMS)


def claim_run(
    connection: AgentConnection, run_id: str, *, worker: str, lease: timedelta
) -> Claim | None:
    """Take an unfinished run that nobody has, or whose holder's lease is over.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run.
        worker: Who takes it. Each life of a worker needs a name of its own.
        lease: How long the claim counts unless it is renewed.

    Returns:
        The claim; None while another one is live, even of a worker of this name.

    Raises:
        UnknownRunError, RunCompletedError: There is nothing to work on.
        InvalidStateError: The lease is not longer than zero, or a name is no usable text.
    """
    require_text("worker", worker)
    if lease <= timedelta(0):
        raise InvalidStateError(f"a lease of {lease} ends before it begins: make it longer")
    with connection:
        row = connection.execute(
            "SELECT * FROM agent_runs LEFT JOIN run_claims USING (run_id) WHERE run_id = ?",
            (require_text("run_id", run_id),),
        ).fetchone()
        if row is None:
            raise unknown_run(connection, run_id)
        if row["status"] == "completed":
            raise RunCompletedError(f"{run_id} is completed: there is nothing left to claim")
        # Asked inside the transaction: waiting for its lock may have taken long.
        now = aware(connection.clock())
        if row["token"] is not None and _claim(row).is_live(now):
            return None
        ((token,),) = connection.execute(
            """REPLACE INTO run_claims (run_id, worker, lease_seconds, expires_at_utc)
            VALUES (?, ?, ?, ?) RETURNING token""",
            (run_id, worker, lease.total_seconds(), utc_text(now + lease)),
        ).fetchall()
    return Claim(token, run_id, worker, lease, now + lease)


def claim_next(
    connection: AgentConnection, *, worker: str, lease: timedelta, skip: Collection[str] = ()
) -> Claim | None:
    """Claim the first run, in the order of their ids, that `claim_run` gives, and return the claim.

    Runs in `skip` are left to others. None says that each run is finished, held or skipped.
    """
    now = aware(connection.clock())
    held = {claim.run_id for claim in read_claims(connection) if claim.is_live(now)}
    for run_id in unfinished_runs(connection):
        if run_id in held or run_id in skip:
            continue
        # Between the look and the claim, others may have taken, finished or deleted it.
        with suppress(RunCompletedError, UnknownRunError):
            claim = claim_run(connection, run_id, worker=worker, lease=lease)
            if claim is not None:
                return claim
    return None


def read_claims(connection: AgentConnection) -> list[Claim]:
    """Return all claims in the order of their tokens, live or not."""
    return [_claim(row) for row in connection.execute("SELECT * FROM run_claims ORDER BY token")]


def renew(connection: AgentConnection, claim: Claim) -> Claim:
    """Let the lease of a claim begin anew, even after its end; return the renewed claim.

    Raises:
        LeaseLostError: Somebody has taken the run over.
    """
    with connection:
        require_claim(connection, claim)
        renewed = replace(claim, expires_at=aware(connection.clock()) + claim.lease)
        connection.execute(
            "UPDATE run_claims SET expires_at_utc = ? WHERE token = ?",
            (utc_text(renewed.expires_at), claim.token),
        )
    return renewed


def release(connection: AgentConnection, claim: Claim) -> None:
    """Give a run back before the end of the lease; a claim that was lost is none to give back."""
    connection.execute("DELETE FROM run_claims WHERE token = ?", (claim.token,))


def require_claim(connection: AgentConnection, claim: Claim) -> None:
    """Do nothing if this claim is the stored one, inside the caller's transaction.

    The clock is not asked: a holder whose lease is over harms nobody until it is replaced.

    Raises:
        LeaseLostError: Another worker has taken the run over, or the claim was given back.
        TransactionError: No transaction is open: the answer could be out of date at once.
    """
    if not connection.in_transaction:
        raise TransactionError("require_claim looks inside the `with connection:` that writes")
    row = connection.execute(
        "SELECT worker, token FROM run_claims WHERE run_id = ?", (claim.run_id,)
    ).fetchone()
    if row is None or row["token"] != claim.token:
        now = f"{row['worker']} has it with token {row['token']}" if row else "nobody has it"
        raise LeaseLostError(
            f"{claim.worker} had {claim.run_id} with token {claim.token}, now {now}: leave it to"
            " others, or claim it again"
        )


def _claim(row: Any) -> Claim:
    return Claim(
        row["token"],
        row["run_id"],
        row["worker"],
        timedelta(seconds=row["lease_seconds"]),
        datetime.fromisoformat(row["expires_at_utc"]),
    )
