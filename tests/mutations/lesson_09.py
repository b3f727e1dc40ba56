"""The guards of lesson 09."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "the checksum is compared",
        "checkpoints/codec.py",
        "if digest(stored) != stored.sha256:",
        "if False:",
    ),
    Mutation(
        "a newer schema version is refused",
        "context_schema.py",
        "if schema_version not in range(1, self.current + 1):",
        "if False:",
    ),
    Mutation(
        "a field outside the schema is refused",
        "context_schema.py",
        "            if name not in wanted:\n                raise",
        "            if name not in wanted:\n                continue\n                raise",
    ),
    Mutation(
        "experimental fields are carried through an upcaster",
        "tickets/checkpoint_schema.py",
        'return _with(context, "ticket"',
        'return _with({"priority": "urgent"}, "ticket"',
    ),
    Mutation(
        "an experiment needs its flag",
        "context_schema.py",
        "if name not in flags:",
        "if False:",
    ),
    Mutation(
        "what is unpacked is bounded",
        "checkpoints/codec.py",
        "stream.decompress(body, LARGEST + 1)",
        "stream.decompress(body)",
    ),
    Mutation(
        "a checkpoint that is too large is refused",
        "checkpoints/codec.py",
        "    if len(body) > LARGEST:\n        raise CheckpointSizeError",
        "    if False:\n        raise CheckpointSizeError",
    ),
    Mutation(
        "the archive is written with the checkpoint",
        "checkpoints/archive.py",
        "        put(connection, encode(saving.after, self.schema))",
        (
            '        super(AgentConnection, connection).execute("COMMIT")\n'
            '        super(AgentConnection, connection).execute("BEGIN IMMEDIATE")\n'
            "        put(connection, encode(saving.after, self.schema))"
        ),
    ),
    Mutation(
        "a history is never changed",
        "checkpoints/history.py",
        "BEFORE UPDATE ON run_history\n    BEGIN",
        "BEFORE UPDATE ON run_history\n    WHEN 0 BEGIN",
    ),
    Mutation(
        "a history is never cut",
        "checkpoints/history.py",
        "BEFORE DELETE ON run_history\n    WHEN EXISTS",
        "BEFORE DELETE ON run_history\n    WHEN 0 AND EXISTS",
    ),
    Mutation(
        "a history only grows",
        "checkpoints/history.py",
        "WHEN NEW.position <>",
        "WHEN 0 AND NEW.position <>",
    ),
    Mutation(
        "what leaves the window is in the history",
        "checkpoints/history.py",
        'append(connection, saving.after.run_id, new.get("conversation", []))',
        'append(connection, saving.after.run_id, saving.after.context["conversation"][1:])',
    ),
    Mutation(
        "what acts on the world has a place of its own",
        "labs/checkpoint_format/inventory.py",
        'if recompute == "acts again":',
        "if False:",
    ),
    Mutation(
        "the window stays in the checkpoint",
        "checkpoints/history.py",
        "leaving, staying = said[:-window], said[-window:]",
        "leaving, staying = said, []",
    ),
    Mutation(
        "a running run never expires",
        "checkpoints/retention.py",
        "\"status = 'running'\", RUNNING",
        '"0", RUNNING',
    ),
    Mutation(
        "an open question keeps its run",
        "checkpoints/retention.py",
        '"answer IS NULL", "a question',
        '"0", "a question',
    ),
    Mutation(
        "saved results stay as long as callers may repeat",
        "checkpoints/retention.py",
        '"created_at_utc > :since"',
        '"0"',
    ),
    Mutation(
        "a TTL has bounds",
        "checkpoints/retention.py",
        "if not SHORTEST <= ttl <= LONGEST:",
        "if False:",
    ),
    Mutation(
        "the id of an expired run is never used again",
        "checkpoints/retention.py",
        "WHEN EXISTS (SELECT 1 FROM expired_runs WHERE run_id = NEW.run_id)",
        "WHEN 0",
    ),
    Mutation(
        "a clean-up deletes a batch per transaction",
        "checkpoints/retention.py",
        "ORDER BY version, checkpoint_id LIMIT ?)",
        "ORDER BY version, checkpoint_id LIMIT 999 + ?)",
    ),
    Mutation(
        "the newest checkpoints stay",
        "checkpoints/retention.py",
        "return trusted[keep - 1] if",
        "return trusted[0] if",
    ),
    Mutation(
        "a file is prepared to give back its space",
        "checkpoints/retention.py",
        "    if mode == 0:",
        "    if False:",
    ),
    Mutation(
        "what an event may hold is a list",
        "checkpoints/event_guard.py",
        "WHERE coalesce(key, '') NOT IN ({_texts(fields)})",
        "WHERE 0",
    ),
    Mutation(
        "an unknown type of event is refused",
        "checkpoints/event_guard.py",
        "WHERE NEW.event_type NOT IN ({_texts(ALLOWED)});",
        "WHERE 0;",
    ),
    Mutation(
        "a context is redacted before it is saved",
        "checkpoints/redaction.py",
        "to_json(redact(dict(saving.after.context)), ",
        "to_json(dict(saving.after.context), ",
    ),
    Mutation(
        "a private file is its owner's alone",
        "checkpoints/private_file.py",
        "os.O_RDWR, 0o600)",
        "os.O_RDWR, 0o644)",
    ),
]
