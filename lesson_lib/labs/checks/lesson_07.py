"""Checks of lesson 07: the fence, the end of a lease, the choice of the next run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from lesson_lib.errors import LeaseLostError, StaleVersionError, StorageError
from lesson_lib.labs.checks import exercise, given, scratch_database
from lesson_lib.model import RunState, Step
from lesson_lib.riders.claims import Claim, claim_run, create_claims
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, load_state, read_events
from lesson_lib.tickets import ticket_agent

LEASE = timedelta(seconds=30)
MOMENT = timedelta(microseconds=1)  # over before anybody can look
STEP = Step("classify_priority", {"priority": "urgent"}, next_action="lookup_runbook")


@contextmanager
def _claimed_run() -> Iterator[tuple[AgentConnection, RunState, Claim]]:
    """Give a run, and a claim of worker-1 on it whose lease is over."""
    with scratch_database() as (connection, _):
        create_claims(connection)
        state = ticket_agent.start(SQLiteStore(connection, "session-1"), "run-T104")
        claim = claim_run(connection, state.run_id, worker="worker-1", lease=MOMENT)
        assert claim is not None
        yield connection, state, claim


def _uncommitted(connection: AgentConnection) -> bool:
    """Take back what was not committed, as the death of the process would; was there anything?"""
    is_open = connection.in_transaction
    if is_open:
        connection.execute("ROLLBACK")
    return is_open


@exercise(1, "write the body of save_fenced")
def exercise_1(save_fenced: Callable[..., RunState]) -> str | None:
    """Let a holder save that nobody replaced, one that was, and one that is at the worst moment."""
    with _claimed_run() as (connection, state, claim):
        saved = given(save_fenced(connection, claim, state, STEP))
        if _uncommitted(connection):
            return "the transaction is still open: the death of the process would undo it"
        if saved != load_state(connection, state.run_id) or saved.version != 1:
            return "worker-1 has the run, and its checkpoint was not saved and returned"
    with _claimed_run() as (connection, state, claim):
        claim_run(connection, state.run_id, worker="worker-2", lease=LEASE)
        try:
            save_fenced(connection, claim, state, STEP)
        except LeaseLostError:
            pass
        else:
            return "worker-2 had taken the run over, and worker-1 could still save"
        _uncommitted(connection)
        if load_state(connection, state.run_id) != state:
            return "worker-1 was refused, and still its checkpoint is saved"
    with _claimed_run() as (connection, state, claim):
        saved_late, taken = False, list[Claim | None]()

        def take_over(statement: str) -> None:
            # Before each statement: another worker asks for the run, without waiting.
            if not taken and looked:
                with closing(connect(connection.path, timeout=0)) as other:
                    try:
                        taken.append(claim_run(other, state.run_id, worker="worker-2", lease=LEASE))
                    except StorageError:  # the file is locked: this transaction goes on
                        return
            if "run_claims" in statement:
                looked.append(statement)

        looked: list[str] = []
        connection.set_trace_callback(take_over)
        try:
            save_fenced(connection, claim, state, STEP)
            saved_late = bool(taken)
        except (LeaseLostError, StaleVersionError):
            pass
        finally:
            connection.set_trace_callback(None)
        if saved_late:
            return (
                "worker-2 took the run over after the look at the token and before the save:"
                " nothing may come between the two"
            )
    return None


@exercise(2, "change the rule of may_take_over")
def exercise_2(may_take_over: Callable[[Claim, datetime], bool]) -> str | None:
    """Ask about one claim at several times."""
    begin, short = datetime(2026, 1, 5, 8, tzinfo=UTC), timedelta(seconds=5)
    claim = Claim(1, "run-T104", "worker-1", LEASE, begin + LEASE)
    if not may_take_over(Claim(2, "run-T104", "worker-1", short, begin + LEASE), begin):
        return "a lease of 5 s, whose end lies 30 s ahead: wanted True, for the clock was set back"
    for seconds, wanted, when in (
        (0, False, "a claim was made this very moment"),
        (29.5, False, "half a second of the lease is left"),
        (30, True, "the lease ends this very moment"),
        (3_600, True, "the lease ended an hour ago"),
        (-3_600, True, "the clock was set back an hour after the claim was made"),
        (-0.5, True, "the clock was set back by half a second"),
    ):
        found = given(may_take_over(claim, begin + timedelta(seconds=seconds)))
        if bool(found) != wanted or found is None:
            return f"{when}: wanted {wanted}, not {found!r}"
    return None


@exercise(3, "claim a run and return the claim")
def exercise_3(claim_urgent: Callable[..., Claim | None]) -> str | None:
    """Let workers ask one after the other until nothing is left."""
    with scratch_database() as (connection, _):
        create_claims(connection)
        for ticket_id in ("T101", "T102", "T103", "T104"):
            ticket_agent.start(SQLiteStore(connection, "session-1"), f"run-{ticket_id}")
        events = {name: read_events(connection, name) for name in ("run-T101", "run-T103")}
        claim_run(connection, "run-T103", worker="worker-0", lease=LEASE)
        for number, (wanted, why) in enumerate(
            (
                ("run-T104", "run-T103 is urgent too, but worker-0 has it"),
                ("run-T101", "no urgent run is free, and this is the first of the others"),
                ("run-T102", "it is the last that is free"),
                (None, "others have all four runs"),
            ),
            1,
        ):
            found: Any = given(claim_urgent(connection, f"worker-{number}", LEASE))
            if found is not None and not isinstance(found, Claim):
                return f"it returned {found!r}, wanted: the claim, or None"
            run_id = found.run_id if found else None
            if run_id != wanted:
                return f"worker-{number} got {run_id}, wanted {wanted}: {why}"
            if found and found.worker != f"worker-{number}":
                return f"the claim is one of {found.worker}, wanted: worker-{number}"
            if found and found.lease != LEASE:
                return "the lease of the claim is not the one that was asked for"
            if found and found.token != number + 1:
                return "other runs were claimed on the way: claim one only"
        if any(read_events(connection, name) != before for name, before in events.items()):
            return "a claimed run got new events: only claim it, the worker resumes it later"
    return None
