"""Recovery: go on from the latest state that can be trusted, or say why there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lesson_lib.agent import Agent
from lesson_lib.checkpoints import archive
from lesson_lib.checkpoints.codec import encode
from lesson_lib.errors import (
    CheckpointError,
    CheckpointSizeError,
    CorruptStateError,
    InvalidStateError,
    LessonError,
)
from lesson_lib.model import RunState, require_text
from lesson_lib.recovery.judging import Refused, judge
from lesson_lib.recovery.rebuilding import SavedResults, reused_results
from lesson_lib.recovery.settling import ask_person, without_content
from lesson_lib.recovery.steps import PERSON, STEPS, Case, Decision
from lesson_lib.recovery.told import RECOVER, Told
from lesson_lib.riders.intents import open_keys
from lesson_lib.sqlite import AgentConnection, load_state, read_events, record_event
from lesson_lib.sqlite.records import has_table, unknown_run

WRITE = """UPDATE agent_runs SET ticket_id = :ticket_id, status = :status,
    next_action = :next_action, context_json = :context_json, version = :version
    WHERE run_id = :run_id"""


@dataclass(frozen=True)
class Report:
    """What a recovery found and did, by the step that decided.

    `state` is what to go on with, None when the run must not go on now; `chosen` the version whose
    content it has. `redo` are the actions that were done since, `reused` the keys of saved results
    that the actions to come will get. `reason` says why the run must not go on, or what is lost.
    """

    run_id: str
    step: str
    state: RunState | None
    chosen: int | None = None
    refused: tuple[Refused, ...] = ()
    redo: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        """Return the report as sentences, one a line."""
        lines = [f"refused version {r.version}: {r.reason}" for r in self.refused]
        lines.append(f"{self.run_id}: {self.step}")
        if self.chosen is not None and self.state is not None:
            lines[-1] += f", version {self.chosen}; it is at version {self.state.version} now"
        for name, found in (("to redo", self.redo), ("reused", self.reused)):
            if found:
                lines.append(f"{name}: {', '.join(found)}")
        return "\n".join([*lines, self.reason] if self.reason else lines)


def recover(connection: AgentConnection, run_id: str, session: str, agent: Agent) -> Report:
    """Find the latest state of a run that can be trusted, and make the run ready to go on.

    `STEPS` are tried in order. All is one transaction, and what was written is read back before it
    is committed: whatever stops it, nothing was changed. It does not ask who has claimed the run:
    claim it first. A `-wal` file that was cut off is an older state that fits together; only a
    witness outside of the file notices that.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run.
        session: Which process life goes on with it.
        agent: The agent that does the run; `Told` says which can be recovered.

    Raises:
        UnknownRunError: There is no such run.
        InvalidStateError: It is kept as a log: a replay is its recovery.
        CorruptStateError: SQLite finds the file damaged. Nothing was changed.
    """
    # Not quick_check: it passes over an index that says otherwise than its rows, and all that
    # follows asks through indexes.
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise CorruptStateError(f"{connection.path} is damaged: restore a backup ({found})")
    if archive.is_log(connection, require_text("run_id", run_id)):
        raise InvalidStateError(f"{run_id} is kept as a log: its state comes from a replay")
    if not has_table(connection, "run_checkpoints"):
        archive.create_archive(connection)
    with connection:
        case = _read_case(connection, run_id, agent)
        step, decision, reused = _decide(case)
        state, refused, reason = decision.state, case.judged.refused, decision.reason
        report = Report(run_id, step, state, None, refused, (), reused, reason)
        if state is not None:
            return _go_on(connection, session, case, state, report)
        if step == PERSON:
            ask_person(connection, case.told, session, reason)
    return report


def _decide(case: Case) -> tuple[str, Decision, tuple[str, ...]]:
    """Return the name of the step that decides, what it says, and the results to be reused."""
    try:
        for step in STEPS:
            if (decision := step.decide(case)) is not None:
                state = decision.state
                reused = reused_results(case.told, case.saved, state) if state else ()
                return step.name, decision, reused
    except CheckpointError as error:
        return PERSON, Decision(None, str(error)), ()
    raise AssertionError("the last step decides")


def _read_case(connection: AgentConnection, run_id: str, agent: Agent) -> Case:
    told = Told(run_id, tuple(read_events(connection, run_id)), agent)
    query = "SELECT * FROM {} WHERE run_id = ?"
    stored = connection.execute(query.format("agent_runs"), (run_id,)).fetchone()
    if stored is None:
        raise unknown_run(connection, run_id)
    results = connection.execute(query.format("tool_effects"), (run_id,)).fetchall()
    saved = SavedResults(run_id, {result["idempotency_key"]: result for result in results})
    row = begin = None
    with suppress(InvalidStateError):
        row = RunState(**dict(stored))
    with suppress(LessonError):
        begin = agent.begin(run_id)
    judged = judge(tuple(archive.read_kept(connection, run_id, agent.schema)), told, begin)
    return Case(agent, open_keys(connection, run_id), told, judged, saved, row, begin)


def _go_on(
    connection: AgentConnection, session: str, case: Case, state: RunState, report: Report
) -> Report:
    """Make the run one that goes on with a state: a new version, unless it stands there."""
    told, row, kept, chosen = case.told, case.row, case.judged.chosen, state.version
    record = partial(record_event, connection, run_id=report.run_id, session=session)
    tell, refused = partial(record, action=RECOVER), report.refused
    stays = False
    if row is not None and kept is not None and kept.version == told.newest:
        stays = archive.agree(row, kept, case.agent.schema)
    if not stays and chosen == told.newest and state != row:
        refused += (Refused(chosen, "agent_runs holds another state"),)
    strays = [each.checkpoint_id for each in case.judged.kept if each.version > told.newest]
    for stray in strays:
        # No event tells of it, so nobody was told of it: its version will be another's.
        connection.execute("DELETE FROM run_checkpoints WHERE checkpoint_id = ?", (stray,))
    if report.step not in ("newest checkpoint", "older checkpoint"):
        tell(event_type="recovery_degraded", detail={"step": report.step})
    for r in refused if strays or not stays else ():
        reason = without_content(r.reason)
        tell(event_type="checkpoint_refused", detail={"version": r.version, "reason": reason})
    if not stays:
        state = replace(state, version=told.newest + 1)
        connection.execute(WRITE, vars(state))
        saved = {"version": state.version, "from_version": chosen}
        tell(event_type="checkpoint_saved", detail=saved)
        _keep(connection, state, case.agent)
    if state.status == "running":
        record(event_type="run_resumed", action="resume", detail={"version": state.version})
    done = [e.action for e in told.after(chosen) if e.event_type == "checkpoint_saved"]
    redo = tuple(dict.fromkeys(action for action in done if action in case.agent.actions))
    return replace(report, state=state, chosen=chosen, refused=refused, redo=redo)


def _keep(connection: AgentConnection, state: RunState, agent: Agent) -> None:
    """Put a state that was written into the archive, and read both back."""
    with suppress(CheckpointSizeError):  # it goes on without
        archive.put(connection, encode(state, agent.schema))
    kept = archive.read_kept(connection, state.run_id, agent.schema, version=state.version)
    found = {each.state for each in kept} - {None}
    if load_state(connection, state.run_id) != state or not found <= {state}:
        raise CorruptStateError(
            f"{state.run_id} cannot be recovered, nothing was changed: what was written does not"
            " read as it was. Restore a backup"
        )
