"""Claims: who works on a run and until when, and a token that stops whoever comes late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from lesson_lib.errors import (
    InvalidStateError,
    LeaseLostError,
    RunCompletedError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue
from lesson_lib.model import RunState, require_text
from lesson_lib.stores.sqlite.connection import AgentConnection, aware, utc_text
from lesson_lib.stores.sqlite.records import unfinished_runs, write_checkpoint

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

    The token is what keeps the run safe: each claim gets a higher one, and only the holder of the
    stored one may save. The lease only decides when somebody else may take the run over.
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
        The claim; None while another one is live, of a worker of the same name too.

    Raises:
        UnknownRunError: There is no such run.
        RunCompletedError: It is finished.
        InvalidStateError: The lease is not longer than zero.
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
            raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
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
    """Claim the first unfinished run, in the order of their ids, that can be claimed now.

    Args:
        connection: An open connection, outside of a transaction.
        worker: See `claim_run`.
        lease: See `claim_run`.
        skip: Runs to leave to others, by their ids.

    Returns:
        The claim; None where each run is finished, held or skipped.
    """
    claims, now = read_claims(connection), aware(connection.clock())
    held = {claim.run_id for claim in claims if claim.is_live(now)}
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
    rows = connection.execute("SELECT * FROM run_claims ORDER BY token").fetchall()
    return [_claim(row) for row in rows]


def renew(connection: AgentConnection, claim: Claim) -> Claim:
    """Let the lease of a claim begin anew; return the renewed claim.

    A holder who comes late may renew as long as nobody has taken the run over.

    Raises:
        LeaseLostError: Somebody has.
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
    """Give a run back, so that another worker need not wait for the end of the lease.

    A claim that was lost is none to give back: then nothing happens.
    """
    connection.execute("DELETE FROM run_claims WHERE token = ?", (claim.token,))


def require_claim(connection: AgentConnection, claim: Claim) -> None:
    """Do nothing if this claim is the stored one, inside the caller's transaction.

    The clock is not asked: a holder whose lease is over harms nobody until it is replaced.

    Raises:
        LeaseLostError: Another worker has taken the run over, or the claim was given back.
        TransactionError: No transaction is open, so the answer could be out of date at once.
    """
    if not connection.in_transaction:
        raise TransactionError(
            "require_claim holds until the end of a transaction: call it inside the"
            " `with connection:` block that writes"
        )
    row = connection.execute(
        "SELECT worker, token FROM run_claims WHERE run_id = ?", (claim.run_id,)
    ).fetchone()
    if row is None:
        raise LeaseLostError(
            f"nobody has {claim.run_id} now, {claim.worker} had it with token {claim.token}: claim"
            " it again"
        )
    if row["token"] != claim.token:
        raise LeaseLostError(
            f"{row['worker']} has {claim.run_id} with token {row['token']}, {claim.worker} had it"
            f" with token {claim.token}: leave it to {row['worker']}"
        )


def require_cover(claim: Claim, state: RunState) -> None:
    """Do nothing if the claim is one of this run.

    Raises:
        InvalidStateError: It is not.
    """
    if claim.run_id != state.run_id:
        raise InvalidStateError(f"a claim of {claim.run_id} does not cover {state.run_id}")


def save_claimed(
    connection: AgentConnection,
    state: RunState,
    *,
    claim: Claim,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Save a checkpoint if the claim still counts: look and write are one transaction.

    Checkpoints are what the token guards. A worker that comes late may still append an event
    (`run_resumed`, `tool_executed`): it tells what happened, and claims nothing.

    Arguments, result and errors are those of `save_checkpoint`.

    Raises:
        LeaseLostError: Another worker has taken the run over. Nothing changed.
        InvalidStateError: The claim is one of another run. Nothing changed.
    """
    require_cover(claim, state)
    with connection:
        require_claim(connection, claim)
        return write_checkpoint(
            connection,
            state,
            session=session,
            action=action,
            next_action=next_action,
            context=context,
        )


def _claim(row: Any) -> Claim:
    return Claim(
        row["token"],
        row["run_id"],
        row["worker"],
        timedelta(seconds=row["lease_seconds"]),
        datetime.fromisoformat(row["expires_at_utc"]),
    )
