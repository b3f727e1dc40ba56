"""Recovery: go on from the latest checkpoint that can be trusted, or say why there is none."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from functools import partial

from lesson_lib.agent import ACTIONS
from lesson_lib.checkpoints import archive, schema
from lesson_lib.errors import (
    CheckpointError,
    CheckpointSizeError,
    CorruptStateError,
    JSONValueError,
    LessonError,
)
from lesson_lib.model import RunState, require_text
from lesson_lib.recovery import rows
from lesson_lib.recovery.ladder import STEPS, choose
from lesson_lib.recovery.person import ask_person, without_content
from lesson_lib.recovery.rebuild import reused_results
from lesson_lib.recovery.report import Report
from lesson_lib.recovery.story import Story, read_story
from lesson_lib.recovery.trust import Judgement, Refused, judge, mend_index, unreadable
from lesson_lib.stores.sqlite import AgentConnection, load_state, record_event


def recover(connection: AgentConnection, run_id: str, session: str) -> Report:
    """Find the latest checkpoint of a run that can be trusted, and make the run ready to go on.

    All in one transaction, and read back before it is committed: whatever stops it, nothing was
    changed. It does not ask who has claimed the run: claim it first. A `-wal` file that was cut
    off is an older state that fits together; only a witness outside of the file notices that.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run.
        session: Which process life goes on with it.

    Raises:
        UnknownRunError: There is no such run.
        InvalidStateError: It is kept as a log: a replay is its recovery.
        StorageError: SQLite finds the file damaged where it must be read or written.
        CorruptStateError: Rows besides the checkpoints cannot be read.
    """
    require_text("run_id", run_id)
    try:
        archive.require_checkpoints(connection, run_id)
        archive.create_archive(connection)
        mended = mend_index(connection, run_id)
        lost = unreadable(connection, run_id)
        with connection:
            report = _recover(connection, run_id, session, lost)
        return replace(report, refused=(*mended, *report.refused))
    except LessonError:
        raise
    except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
        # Not with the words of `error`: they may hold what the row holds.
        raise CorruptStateError(
            f"{run_id} cannot be recovered, nothing was changed: rows besides its checkpoints"
            " contradict each other or cannot be read. Restore a backup"
        ) from error


def _recover(
    connection: AgentConnection, run_id: str, session: str, lost: frozenset[int]
) -> Report:
    place = rows.find(connection, run_id)
    unsettled = rows.open_keys(connection, run_id)
    if unsettled:
        reason = f"nobody knows yet what became of {', '.join(unsettled)}: settle it, then recover"
        return Report(run_id, "effects first", None, reason=reason)
    story = read_story(connection, run_id)
    judged = judge(connection, story, lost)
    if judged.too_new is not None:
        reason = f"a later package wrote version {judged.too_new}: update this one, then recover"
        return Report(run_id, "update first", None, refused=judged.refused, reason=reason)
    row = rows.read(connection, place)
    try:
        _require_story(story, judged, row)
        step, state, reason = choose(connection, story, judged, row)
        reused = reused_results(connection, story, state)
    except CheckpointError as error:
        ask_person(connection, story, session, str(error))
        return Report(run_id, STEPS[5], None, refused=judged.refused, reason=str(error))
    if story.is_abandoned and step == STEPS[2]:
        return Report(run_id, step, state, state.version, reason="it was given up")

    refused, chosen = list(judged.refused), state.version
    schema_version = judged.chosen.schema_version if judged.chosen else schema.CURRENT
    if step == STEPS[2]:  # another content that is whole cannot stand beside it
        schema_version = schema.CURRENT
        agrees = chosen not in judged.versions(whole=True)
    else:
        is_newest = chosen == story.newest
        agrees = is_newest and row is not None and archive.agree(row, state, schema_version)
        if is_newest and not agrees:
            refused.append(Refused(chosen, "agent_runs holds another state"))
    if not agrees:
        # The row first: its name is what the events refer to, and may be what is damaged.
        state, schema_version = replace(state, version=story.newest + 1), schema.CURRENT
        rows.write(connection, place, state)
    strays = judged.whole_above(story.newest)
    rows.remove(connection, strays)
    is_kept = (agrees and step == STEPS[0]) or _keep(connection, state)
    if not is_kept:
        reason += "; it is too large to be kept"
    tell = partial(_record, connection, run_id, session)
    if step not in STEPS[:2] and is_kept:
        tell("recovery_degraded", {"step": step})
    if strays or not agrees or (step == STEPS[2] and is_kept):
        for r in refused:
            detail = {"version": r.version, "reason": without_content(r.reason)}
            tell("checkpoint_refused", detail)
    if not agrees:
        tell("checkpoint_saved", {"version": state.version, "from_version": chosen})
    if state.status == "running":
        tell("run_resumed", {"version": state.version}, "resume")
    _read_back(connection, state, schema_version, lost if is_kept else None)
    saved = [e.action for e in story.after(chosen) if e.event_type == "checkpoint_saved"]
    redo = tuple(dict.fromkeys(action for action in saved if action in ACTIONS))
    return Report(run_id, step, state, chosen, tuple(refused), redo, reused, reason)


def _require_story(story: Story, judged: Judgement, row: RunState | None) -> None:
    """Do nothing for events that tell of all versions and of this agent's actions only."""
    if story.has_gap:
        raise CheckpointError("an event is missing, and nobody can tell which")
    if story.unknown_action is not None:
        raise CheckpointError(f"this agent does not know its action: {story.unknown_action!r}")
    if row is not None and row.version in {k.version for k in judged.whole_above(story.newest)}:
        raise CheckpointError(f"the event of version {row.version} is missing")


def _keep(connection: AgentConnection, state: RunState) -> bool:
    try:
        archive.keep(connection, state)
    except (CheckpointSizeError, JSONValueError):
        return False
    return True


def _read_back(
    connection: AgentConnection,
    state: RunState,
    schema_version: int,
    lost: frozenset[int] | None,
) -> None:
    """Do nothing if the next recovery will come to this state; `lost` is None if it is not kept."""
    agrees = archive.agree(load_state(connection, state.run_id), state, schema_version)
    if agrees and lost is not None:
        chosen = judge(connection, read_story(connection, state.run_id), lost).chosen
        agrees = chosen is not None and chosen.version == state.version
    if not agrees:
        raise CorruptStateError(
            f"{state.run_id} cannot be recovered, nothing was changed: what was written does not"
            " read as it was. Restore a backup"
        )


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
