"""Checks of lesson 10: which checkpoint to go on from, what only siblings notice, a flush."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.checkpoints.codec import decode, decompress
from lesson_lib.errors import CheckpointError, StorageError
from lesson_lib.json_text import from_json
from lesson_lib.labs.checks import exercise, given, scratch_run
from lesson_lib.labs.recovery_path.damages import edit, read, sign
from lesson_lib.labs.recovery_path.patient import RUN, Patient
from lesson_lib.recovery.judging import misfit
from lesson_lib.recovery.told import Told
from lesson_lib.sqlite import AgentConnection, read_events, record_event
from lesson_lib.tickets import ticket_agent

type Checkpoint = tuple[int, bool, str]

NAMES = ("next_action", "ticket_id")  # what the table of the lesson changes
TABLE = (("context_runbook", None),)
COMMIT = "commit"
UNKNOWN_RUN = "INSERT INTO tool_effects VALUES (?, 'run-T999', 'lookup_runbook', 'x', '{}')"


@exercise(1, "return the version to go on from")
def exercise_1(choose: Callable[[list[Checkpoint], list[int]], int | None]) -> str | None:
    """Ask for the version to go on from, in archives with all kinds of damage."""
    cases: list[tuple[list[Checkpoint], list[int], int | None, str]] = [
        ([(0, True, "a"), (1, True, "b"), (2, True, "c")], [0, 1, 2], 2, "all is well"),
        ([(2, True, "c"), (0, True, "a"), (1, True, "b")], [0, 1, 2], 2, "the rows have no order"),
        ([(0, True, "a"), (1, True, "b"), (2, False, "")], [0, 1, 2], 1, "2 is not whole"),
        ([(0, True, "a"), (1, False, ""), (2, False, "")], [0, 1, 2], 0, "only 0 is whole"),
        ([(0, True, "a"), (1, True, "b"), (2, True, "c")], [0, 1], 1, "no event tells of 2"),
        (
            [(1, True, "b"), (2, True, "c"), (2, True, "d")],
            [0, 1, 2],
            1,
            "two whole checkpoints dispute version 2",
        ),
        (
            [(1, True, "b"), (2, True, "c"), (2, True, "c")],
            [0, 1, 2],
            2,
            "the same content twice is no dispute",
        ),
        (
            [(1, True, "b"), (2, False, ""), (2, True, "c")],
            [0, 1, 2],
            2,
            "what is not whole disputes nothing",
        ),
        ([(0, False, ""), (1, False, "")], [0, 1], None, "none is whole"),
        ([], [0], None, "nothing is kept"),
    ]
    for kept, told, wanted, reason in cases:
        found = given(choose(list(kept), list(told)))
        if found != wanted or isinstance(found, bool):
            return f"for kept = {kept} and told = {told} it is {found!r}, wanted {wanted}: {reason}"
    return None


@exercise(2, "change the dict so that only the siblings notice")
def exercise_2(changes: dict[str, object]) -> str | None:
    """Sign a changed checkpoint, and see who notices."""
    if not isinstance(changes, dict) or not changes:
        return "changes must be a dict with at least one entry"
    stands = [name for name, value in changes.items() if (name, value) in TABLE or name in NAMES]
    if len(stands) == len(changes):
        return f"the table has {' and '.join(stands)} already: find another"
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        patient = Patient(Path(folder))
        patient.start(version=3)
        with patient.session() as store:
            told = Told(RUN, tuple(store.read_events(RUN)), ticket_agent)
            stored = read(store.connection, 3)
    body = from_json(decompress(stored.body, stored.compression).decode())
    for name in changes:
        if name not in body and not name.startswith("context_"):
            cure = f": write `context_{name}`" if name in ticket_agent.schema.fields else ""
            return f"the body has no field `{name}`{cure}"
    try:
        state = decode(sign(edit(stored, **changes)), ticket_agent.schema)
    except CheckpointError as error:
        return f"the decoder notices already: {error}"
    if misfit(state, told, ticket_agent.begin(RUN)):
        return None
    return "nobody notices: each field that is there has the one that it rests on"


@exercise(3, "mend the function")
def exercise_3(flush: Callable[..., object]) -> str | None:
    """Let a write fail, or the commit, or nothing, and compare the list with the disk."""
    names = ["first", "second", "third"]
    for fails_at in (None, "first", "second", "third", COMMIT):
        with scratch_run() as (connection, _):
            waiting = list(names)

            def write(
                connection: AgentConnection, entry: str, fails_at: str | None = fails_at
            ) -> None:
                if entry == fails_at:
                    raise StorageError("the disk is full")
                if fails_at == COMMIT:
                    # SQLite looks for the run of each row only when it commits.
                    connection.execute("PRAGMA defer_foreign_keys = ON")
                    connection.execute(UNKNOWN_RUN, (entry,))
                record_event(
                    connection,
                    run_id="run-T104",
                    session="session-1",
                    event_type="tool_executed",
                    action=entry,
                )

            raised = False
            try:
                flush(connection, waiting, write)
            except (StorageError, sqlite3.IntegrityError):
                raised = True
            if connection.in_transaction:  # what was not committed is not on disk
                connection.execute("ROLLBACK")
            events = read_events(connection, "run-T104")[1:]
        hint = _about(names, waiting, [event.action for event in events], fails_at, raised)
        if hint:
            return hint
    return None


def _about(
    names: list[str], waiting: list[str], stored: list[str], fails_at: str | None, raised: bool
) -> str | None:
    when = "nothing failed" if fails_at is None else f"the write of the {fails_at} of 3 failed"
    if fails_at == COMMIT:
        when = "the commit failed"
    lost = [name for name in names if name not in stored + waiting]
    if lost:
        return f"{when}: {', '.join(lost)} lost, not on disk and not on the list either"
    both = [name for name in names if name in stored and name in waiting]
    if both:
        return f"{when}: {', '.join(both)} still on the list, though on disk"
    if stored + waiting != names:
        return f"{when}: the order is now {', '.join(stored + waiting)}"
    if fails_at is None and waiting:
        return "nothing failed, and still nothing was written"
    if fails_at is not None and not raised:
        return f"{when}, and the caller is not told: let the error out"
    return None
