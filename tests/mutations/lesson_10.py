"""The guards of lesson 10."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "what waits is flushed in its order",
        "recovery/buffer.py",
        "for waiting in self._waiting:\n                    at = ",
        "for waiting in reversed(self._waiting):\n                    at = ",
    ),
    Mutation(
        "a buffer is bounded",
        "recovery/buffer.py",
        "if len(whole) > 1 and len(whole) + self._results > self._limit:",
        "if False:",
    ),
    Mutation(
        "what waits is reported until it is committed",
        "recovery/buffer.py",
        "                for waiting in self._waiting:\n                    at = ",
        "                waited, self._waiting = self._waiting, []\n"
        "                for waiting in waited:\n                    at = ",
    ),
    Mutation(
        "a flush stops at a conflict",
        "recovery/buffer.py",
        "                at = self._parent\n",
        "                at = self._parent and self._store.load_state(self._run_id)\n",
    ),
    Mutation(
        "a tool's result is remembered",
        "recovery/buffer.py",
        "        self._remember(new)\n        return ToolResult",
        "        return ToolResult",
    ),
    Mutation(
        "a summary leaves what it found to the next step",
        "recovery/buffer.py",
        "replace(later, step=_joined(old.step, later.step))",
        "later",
    ),
    Mutation(
        "a backup is verified",
        "recovery/backups.py",
        "versions = verify(part, schema, acknowledged)",
        "versions = acknowledged",
    ),
    Mutation(
        "a backup holds what was acknowledged",
        "recovery/backups.py",
        "if versions.get(run_id, -1) < version:",
        "if versions.get(run_id, -1) < 0:",
    ),
    Mutation(
        "a backup overwrites no file",
        "recovery/backups.py",
        'raise StorageError(f"{found} is there already: name a new file")',
        "os.unlink(found)",
    ),
    Mutation(
        "a field never without the one it rests on",
        "recovery/judging.py",
        "if found != fields[: len(found)]:",
        "if False:",
    ),
    Mutation(
        "a checkpoint fits its event",
        "recovery/judging.py",
        "if state.next_action != wanted:",
        "if False:",
    ),
    Mutation(
        "a checkpoint of another run is refused",
        "recovery/judging.py",
        "if begin is not None and state.ticket_id != begin.ticket_id:",
        "if False:",
    ),
    Mutation(
        "two rivals are not trusted",
        "recovery/judging.py",
        "if len(rivals) > 1:",
        "if False:",
    ),
    Mutation(
        "effects come before resuming",
        "recovery/steps.py",
        "return Decision(None, reason) if keys else None",
        "return None",
    ),
    Mutation(
        "what a later package wrote waits for it",
        "recovery/steps.py",
        "if kept.schema_version > case.agent.schema.current and kept.version >= oldest:",
        "if False:",
    ),
    Mutation(
        "a gap in the events is for a person",
        "recovery/told.py",
        "if sequences != list(range(1, len(sequences) + 1)) or latest > self.newest:",
        "if False:",
    ),
    Mutation(
        "agent_runs alone must agree with the saved results",
        "recovery/steps.py",
        "return all(rebuilt.get(name, value) == value for name, value in row.context.items())",
        "return True",
    ),
    Mutation(
        "a newest version that nobody kept is no damage",
        "recovery/steps.py",
        "if (case.judged.chosen and newest_is_kept) or",
        "if case.judged.chosen or",
    ),
    Mutation(
        "recovery writes a new version",
        "recovery/recover.py",
        "state = replace(state, version=told.newest + 1)",
        "pass",
    ),
    Mutation(
        "a refused checkpoint is an event",
        "recovery/recover.py",
        'tell(event_type="checkpoint_refused", detail={"version": r.version, "reason": reason})',
        "del reason",
    ),
    Mutation(
        "a step below the checkpoints is an event",
        "recovery/recover.py",
        'if report.step not in ("newest checkpoint", "older checkpoint"):',
        "if False:",
    ),
    Mutation(
        "the current row is compared with the kept one",
        "recovery/recover.py",
        "stays = archive.agree(row, kept, case.agent.schema)",
        "stays = True",
    ),
    Mutation(
        "a session that goes on from another history is refused",
        "checkpoints/archive.py",
        "if dict(row) != vars(before) and not self._agrees(connection, RunState(**row), before):",
        "if False:",
    ),
]
