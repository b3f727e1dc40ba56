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
        "in upcasters[event_schema - 1 :]:",
        "in ():",
    ),
    Mutation(
        "an event of a newer schema is refused",
        "patterns/log.py",
        "if event_schema > today:",
        "if False:",
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
        "labs/four_patterns/purity.py",
        "with no_looking_outside():",
        "if True:",
    ),
    Mutation(
        "the tools of a fork have keys of their own",
        "agent.py",
        "key = tool_key(state.run_id, tool_name, label)",
        'key = tool_key(f"run-{state.ticket_id}", tool_name, label)',
    ),
    Mutation(
        "a store keeps the results of tools",
        "sqlite/store.py",
        "return effects.execute_once(self.connection, call, session=self.session, wait=self.wait)",
        "return ToolResult(call.key, call.tool_name, call.function(), reused=False)",
    ),
    Mutation(
        "the hybrid takes snapshots",
        "patterns/hybrid.py",
        "if new.version % self.every == 0:",
        "if False:",
    ),
]
