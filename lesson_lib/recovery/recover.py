"""Recovery: go on from the latest checkpoint that can be trusted, or say why there is none."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from lesson_lib.agent import ACTIONS
from lesson_lib.checkpoints import archive, schema
from lesson_lib.errors import CheckpointError, CorruptStateError, LessonError
from lesson_lib.model import require_text
from lesson_lib.recovery import rows
from lesson_lib.recovery.ladder import STEPS, choose, keys_to_come
from lesson_lib.recovery.rebuild import saved_result
from lesson_lib.recovery.report import Report
from lesson_lib.recovery.story import read_story
from lesson_lib.recovery.trust import Refused, judge, unreadable
from lesson_lib.stores.sqlite import AgentConnection, questions, record_event

CHOICES = ("a backup is restored", "the run is given up")


def recover(connection: AgentConnection, run_id: str, session: str) -> Report:
    """Find the latest checkpoint of a run that can be trusted, and make the run ready to go on.

    All in one transaction: whatever stops it, nothing was changed.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run.
        session: Which process life goes on with it.

    Raises:
        UnknownRunError: There is no such run.
        StorageError: SQLite finds the file damaged where it must be read or written.
        CorruptStateError: Rows besides the checkpoints cannot be read.
    """
    require_text("run_id", run_id)
    try:
        archive.create_archive(connection)
        lost = unreadable(connection, run_id)
        with connection:
            return _recover(connection, run_id, session, lost)
    except LessonError:
        raise
    except (sqlite3.DatabaseError, ValueError) as error:
        # Not with the words of `error`: they may hold what the row holds.
        raise CorruptStateError(
            f"{run_id} cannot be recovered, nothing was changed: rows besides its checkpoints"
            " contradict each other or cannot be read. Restore a backup"
        ) from error


def _recover(
    connection: AgentConnection, run_id: str, session: str, lost: frozenset[int]
) -> Report:
    place = rows.find(connection, run_id)
    unsettled = [i.idempotency_key for i in rows.open_of(connection, run_id)]
    if unsettled:
        reason = f"nobody knows yet what became of {', '.join(unsettled)}: settle it, then recover"
        return Report(run_id, "effects first", None, reason=reason)
    story = read_story(connection, run_id)
    judged = judge(connection, story, lost)
    person = _Person(connection, session, Report(run_id, STEPS[5], None, refused=judged.refused))
    if story.has_gap:
        return person.asked("an event is missing, and nobody can tell which")
    if story.unknown_action:
        return person.asked(f"this agent does not know its action {story.unknown_action!r}")
    row = rows.read(connection, place)
    try:
        step, state, reason = choose(connection, story, judged, row)
        for key in keys_to_come(connection, state):
            saved_result(connection, key)
    except CheckpointError as error:
        return person.asked(str(error))
    refused = list(judged.refused)
    chosen = state.version
    schema_version = judged.chosen.schema_version if judged.chosen else schema.CURRENT
    agrees = row is not None and rows.agree(row, state, schema_version)
    if chosen == story.newest and not agrees:
        refused.append(Refused(chosen, "agent_runs holds another state"))
    if not agrees:
        # The row first: its name is what the events refer to, and may be what is damaged.
        state = replace(state, version=story.newest + 1)
        rows.write(connection, place, state)
    if step not in STEPS[:2]:
        _record(connection, run_id, session, "recovery_degraded", {"step": step})
    if judged.strays or not agrees or step == STEPS[2]:
        for r in refused:
            detail = {"version": r.version, "reason": r.reason}
            _record(connection, run_id, session, "checkpoint_refused", detail)
        rows.remove(connection, judged.strays)
    if not agrees:
        detail = {"version": state.version, "from_version": chosen}
        _record(connection, run_id, session, "checkpoint_saved", detail)
    if not agrees or step == STEPS[2]:
        archive.keep(connection, state)
    if state.status == "running":
        _record(connection, run_id, session, "run_resumed", {"version": state.version}, "resume")
    after = story.after(chosen)
    return Report(
        run_id,
        step,
        state,
        chosen,
        tuple(refused),
        tuple(dict.fromkeys(e.action for e in after if _was_saved(e.event_type, e.action))),
        tuple(keys_to_come(connection, state)),
        reason,
    )


def _was_saved(event_type: str, action: str) -> bool:
    return event_type == "checkpoint_saved" and action in ACTIONS


def _record(
    connection: AgentConnection,
    run_id: str,
    session: str,
    event_type: str,
    detail: dict[str, object],
    action: str = "recover",
) -> None:
    record_event(
        connection,
        run_id=run_id,
        session=session,
        event_type=event_type,
        action=action,
        detail=detail,
    )


@dataclass(frozen=True)
class _Person:
    """Hands a run over: a question that waits, in the same transaction."""

    connection: AgentConnection
    session: str
    report: Report

    def asked(self, reason: str) -> Report:
        for statement in questions.STATEMENTS:
            self.connection.execute(statement)
        questions.ask(
            self.connection,
            run_id=self.report.run_id,
            session=self.session,
            question_id=f"{self.report.run_id}:recover",
            question=f"{self.report.run_id} cannot go on by itself: {reason}. Restore a backup?",
            choices=CHOICES,
        )
        return replace(self.report, reason=reason)
