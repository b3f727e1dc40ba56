"""The guards of lesson 11."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "the log has no gap",
        "patterns/log.py",
        "WHEN NEW.sequence <> 1",
        "WHEN 0 AND NEW.sequence <> 1",
    ),
    Mutation(
        "an event of the log is never changed",
        "patterns/log.py",
        "BEFORE UPDATE ON run_log",
        "BEFORE UPDATE ON run_log WHEN 0",
    ),
    Mutation(
        "an event of the log is never deleted",
        "patterns/log.py",
        "WHEN EXISTS (SELECT 1",
        "WHEN 0 AND EXISTS (SELECT 1",
    ),
    Mutation(
        "an event claims its place in the log",
        "patterns/log.py",
        "values = (event.run_id, event.sequence,",
        "values = (event.run_id, connection.execute('SELECT max(sequence) + 1 FROM run_log"
        " WHERE run_id = ?', (event.run_id,)).fetchone()[0] or 1,",
    ),
    Mutation(
        "old events are upcast on replay",
        "patterns/log.py",
        "= upcast(stored_type, stored, event_schema)",
        "= stored_type, stored",
    ),
    Mutation(
        "an event of a newer schema is refused",
        "patterns/event_schema.py",
        "event_schema not in range(1, CURRENT + 1)",
        "event_schema < 1",
    ),
    Mutation(
        "a damaged snapshot is passed over",
        "patterns/hybrid.py",
        "suppress(CheckpointError)",
        "suppress()",
    ),
    Mutation(
        "a snapshot has a checksum",
        "checkpoints/codec.py",
        "if digest(stored) != stored.sha256:",
        "if False:",
    ),
    Mutation(
        "a replay is watched",
        "patterns/projection.py",
        "with no_looking_outside():",
        "if True:",
    ),
    Mutation(
        "the tools of a fork have keys of their own",
        "patterns/protocol.py",
        'key = f"{begun.run_id}:{tool_name}"',
        'key = f"run-{begun.ticket_id}:{tool_name}"',
    ),
    Mutation(
        "a pattern with keys keeps the results of tools",
        "patterns/checkpointing.py",
        "if not self._keys:",
        "if True:",
    ),
    Mutation(
        "the hybrid takes snapshots",
        "patterns/hybrid.py",
        "if new.version % self._every == 0:",
        "if False:",
    ),
]
