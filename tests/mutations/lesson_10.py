"""The guards of lesson 10."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "what waits is flushed in its order",
        "recovery/buffer.py",
        "for waiting in self._waiting:\n                detail",
        "for waiting in reversed(self._waiting):\n                detail",
    ),
    Mutation(
        "a buffer is bounded",
        "recovery/buffer.py",
        "if len(whole) > self._limit:",
        "if False:",
    ),
    Mutation(
        "what waits is reported until it is committed",
        "recovery/buffer.py",
        "            at, newest = self._parent, self._newest\n",
        "            at, newest = self._parent, self._newest\n"
        "            self._waiting, waited = [], self._waiting\n",
    ),
    Mutation(
        "a flush stops at a conflict",
        "recovery/buffer.py",
        "            if at is not None:\n                keep(connection, at)\n",
        "            if at is not None:\n                keep(connection, at)\n"
        "            from lesson_lib.stores.sqlite import load_state\n"
        "            at = at and load_state(connection, at.run_id)\n",
    ),
    Mutation(
        "a backup is verified",
        "recovery/backups.py",
        "versions = verify(part, acknowledged)",
        "versions = acknowledged",
    ),
    Mutation(
        "a backup holds what was acknowledged",
        "recovery/backups.py",
        "(found_version := versions.get(run_id, -1)) < version:",
        "(found_version := versions.get(run_id, -1)) < 0:",
    ),
    Mutation(
        "a backup overwrites no file",
        "recovery/backups.py",
        'raise StorageError(f"{found} is there already: name a new file")',
        "found.unlink()",
    ),
    Mutation(
        "a tool's result is remembered",
        "recovery/buffer.py",
        "        self._remember(event)\n        return result",
        "        return result",
    ),
    Mutation(
        "a field never without the one it rests on",
        "recovery/story.py",
        "if found != fields[: len(found)]:",
        "if False:",
    ),
    Mutation(
        "a checkpoint fits its event",
        "recovery/story.py",
        "if state.next_action != told:",
        "if False:",
    ),
    Mutation(
        "a checkpoint of another run is refused",
        "recovery/story.py",
        "if run_id_for(state.ticket_id) != story.run_id:",
        "if False:",
    ),
    Mutation(
        "two rivals are not trusted",
        "recovery/trust.py",
        "if len({k.state for k in whole}) > 1:",
        "if False:",
    ),
    Mutation(
        "effects come before resuming",
        "recovery/recover.py",
        "    if unsettled:\n",
        "    if False:\n",
    ),
    Mutation(
        "recovery writes a new version",
        "recovery/recover.py",
        "version=story.newest + 1)",
        "version=chosen)",
    ),
    Mutation(
        "a refused checkpoint is an event",
        "recovery/recover.py",
        'tell("checkpoint_refused", detail)',
        "del detail",
    ),
    Mutation(
        "a step down the ladder is an event",
        "recovery/recover.py",
        "if step not in STEPS[:2] and is_kept:",
        "if False:",
    ),
    Mutation(
        "the current row is compared with the kept one",
        "checkpoints/archive.py",
        "    return replace(row, context_json=found) == replace(state, context_json=wanted)\n",
        "    return row.version == state.version\n",
    ),
    Mutation(
        "a gap in the events is for a person",
        "recovery/recover.py",
        "if story.has_gap:",
        "if False:",
    ),
    Mutation(
        "agent_runs alone must agree with the saved results",
        "recovery/ladder.py",
        "== (story.run_id, story.newest) and agrees",
        "== (story.run_id, story.newest)",
    ),
    Mutation(
        "what a later package wrote waits for it",
        "recovery/recover.py",
        "if judged.too_new is not None:",
        "if False:",
    ),
    Mutation(
        "a newest version that nobody kept is no damage",
        "recovery/ladder.py",
        "trusted is None or story.newest not in judged.versions()",
        "trusted is None",
    ),
]
