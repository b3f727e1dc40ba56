"""Take a guard away from the package, and a cell of the lesson about it notices."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from notebook_runner import output_text, printed, steps
from strict_nbval import compare_outputs


@dataclass(frozen=True)
class Mutation:
    """A guard that is taken away: `old` becomes `new` in a file of `lesson_lib`."""

    guard: str
    file: str
    old: str
    new: str
    lesson: str


MUTATIONS = [
    Mutation(
        "references are enforced",
        "stores/sqlite/connection.py",
        '("foreign_keys", "ON", 1)',
        '("foreign_keys", "OFF", 0)',
        "01_schema_creation",
    ),
    Mutation(
        "a status comes from a fixed set",
        "schema.sql",
        " CHECK (status IN ('running', 'completed'))",
        "",
        "01_schema_creation",
    ),
    Mutation(
        "a version is never negative",
        "schema.sql",
        " CHECK (version >= 0)",
        "",
        "01_schema_creation",
    ),
    Mutation(
        "only a completed run has no next action",
        "schema.sql",
        " CHECK ((next_action IS NULL) = (status = 'completed'))",
        "",
        "01_schema_creation",
    ),
    Mutation(
        "an event has a place of its own",
        "schema.sql",
        ",\n    PRIMARY KEY (run_id, sequence)",
        "",
        "01_schema_creation",
    ),
    Mutation(
        "a key has one saved result",
        "schema.sql",
        "idempotency_key TEXT NOT NULL PRIMARY KEY",
        "idempotency_key TEXT NOT NULL",
        "01_schema_creation",
    ),
    Mutation(
        "a file of another program is refused",
        "stores/sqlite/connection.py",
        "if owner != APPLICATION_ID:",
        "if False:",
        "01_schema_creation",
    ),
    Mutation(
        "the schema is created once",
        "stores/sqlite/connection.py",
        "if version == 0:",
        "if True:",
        "01_schema_creation",
    ),
    Mutation(
        "a writer takes the right to write at once",
        "stores/sqlite/connection.py",
        'self.execute("BEGIN IMMEDIATE")',
        'self.execute("BEGIN")',
        "02_atomic_checkpointing",
    ),
    Mutation(
        "an error rolls back",
        "stores/sqlite/connection.py",
        'super().execute("ROLLBACK")',
        'super().execute("COMMIT")',
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a transaction does not nest",
        "stores/sqlite/connection.py",
        "if self.in_transaction:\n            raise TransactionError(\n",
        "if False:\n            raise TransactionError(\n",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "checkpoint and event are one transaction",
        "stores/sqlite/records.py",
        "    record_event(\n        connection,\n        run_id=new.run_id,",
        (
            '    sqlite3.Connection.execute(connection, "COMMIT")\n'
            '    sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")\n'
            "    record_event(\n        connection,\n        run_id=new.run_id,"
        ),
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a stale version finds no row",
        "stores/sqlite/records.py",
        "WHERE run_id = ? AND version = ?",
        "WHERE run_id = ? AND ? >= 0",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a stale version is an error",
        "stores/sqlite/records.py",
        "if updated.rowcount != 1:",
        "if False:",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a torn state is not loaded",
        "stores/sqlite/records.py",
        'if row["checkpoints"] != row["version"]:',
        "if False:",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a key that JSON would change is refused",
        "json_text.py",
        "if type(key) is not str:",
        "if False:",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "NaN is refused",
        "json_text.py",
        "if not math.isfinite(value):",
        "if False:",
        "02_atomic_checkpointing",
    ),
    Mutation(
        "a saved result is reused",
        "stores/sqlite/effects.py",
        'WHERE idempotency_key = ?", (key,)',
        'WHERE idempotency_key = ? AND 0", (key,)',
        "03_idempotent_tool",
    ),
    Mutation(
        "one caller of a key at a time",
        "stores/sqlite/effects.py",
        "lock.acquire(timeout=wait)",
        "pass",
        "03_idempotent_tool",
    ),
    Mutation(
        "the second look, under the lock",
        "stores/sqlite/effects.py",
        "            if saved is None:\n                _require",
        "            if True:\n                _require",
        "03_idempotent_tool",
    ),
    Mutation(
        "an old key with new input is an error",
        "stores/sqlite/effects.py",
        'saved["input_sha256"]) != (run_id, tool_name, digest)',
        "digest) != (run_id, tool_name, digest)",
        "03_idempotent_tool",
    ),
    Mutation(
        "a result that is not JSON has an error of its own",
        "stores/sqlite/effects.py",
        "except JSONValueError as error:\n        raise ToolResultError(",
        "except JSONValueError as error:\n        raise KeyBusyError(",
        "03_idempotent_tool",
    ),
    Mutation(
        "the crash comes before the checkpoint",
        "agent.py",
        "    if crash_after_tool:",
        "    if False:",
        "04_simulated_crash",
    ),
    Mutation(
        "a finished run is not resumed",
        "agent.py",
        "        state.require_unfinished()\n        record_event",
        "        record_event",
        "04_simulated_crash",
    ),
    Mutation(
        "a context that lacks a field is not trusted",
        "agent.py",
        "if not isinstance(value, Mapping) or name not in value:",
        "if False:",
        "04_simulated_crash",
    ),
    Mutation(
        "the tool leaves a line with the witness",
        "tickets.py",
        "        self.ledger.write(key)\n        if code",
        "        if code",
        "04_simulated_crash",
    ),
    Mutation(
        "45 minutes are urgent",
        "tickets.py",
        "outage_minutes >= URGENT_FROM_MINUTES",
        "outage_minutes > URGENT_FROM_MINUTES",
        "05_recovery_trace",
    ),
    Mutation(
        "expected priorities are compared with the rule",
        "tickets.py",
        "if found != ticket.expected_priority:",
        "if False:",
        "05_recovery_trace",
    ),
    Mutation(
        "the event of a tool call is recorded",
        "stores/sqlite/effects.py",
        '                            record("tool_executed")',
        "                            pass",
        "05_recovery_trace",
    ),
    Mutation(
        "an unfinished run is not deleted",
        "stores/sqlite/records.py",
        'if row["status"] != "completed":',
        "if False:",
        "05_recovery_trace",
    ),
    Mutation(
        "a repeated key gets its first answer",
        "payments/books.py",
        "            if row is None:\n                new",
        "            if True:\n                new",
        "08_remote_effects",
    ),
    Mutation(
        "a key belongs to one request",
        "payments/books.py",
        'if row["fingerprint"] != fingerprint:',
        "if False:",
        "08_remote_effects",
    ),
    Mutation(
        "a request in progress is not made again",
        "payments/books.py",
        '    if row["status"] is None:\n        raise Problem(409',
        "    if False:\n        raise Problem(409",
        "08_remote_effects",
    ),
    Mutation(
        "a key is forgotten after its time",
        "payments/books.py",
        "AND answered <= ?",
        "AND answered < 0 * ?",
        "08_remote_effects",
    ),
    Mutation(
        "a service that starts looks into the bank's statement",
        "payments/books.py",
        "if self.has(f\"payment-{row['number']}\"):",
        "if False:",
        "08_remote_effects",
    ),
    Mutation(
        "a payment needs a key",
        "payments/service.py",
        "        if not found:\n            raise",
        "        if False:\n            raise",
        "08_remote_effects",
    ),
    Mutation(
        "a payment that is found is not made again",
        "stores/sqlite/intents.py",
        "    if answer is not None:\n        return",
        "    if False:\n        return",
        "08_remote_effects",
    ),
    Mutation(
        "a key that may be forgotten is not used again",
        "stores/sqlite/intents.py",
        "if not timedelta() <= age < key_lives:",
        "if False:",
        "08_remote_effects",
    ),
    Mutation(
        "a run keeps what its commands need",
        "stores/sqlite/outbox.py",
        "WHERE run_id = OLD.run_id AND status IN ('waiting', 'dead'))",
        "WHERE run_id = OLD.run_id AND 0)",
        "08_remote_effects",
    ),
    Mutation(
        "a claimed command is nobody else's",
        "stores/sqlite/outbox.py",
        "(utc_text(now + claim), utc",
        "(utc_text(now), utc",
        "08_remote_effects",
    ),
    Mutation(
        "an attempt is counted before it is made",
        "stores/sqlite/outbox.py",
        "attempts = attempts + 1",
        "attempts = attempts + 0",
        "08_remote_effects",
    ),
    Mutation(
        "the commands of a run stay in order",
        "stores/sqlite/outbox.py",
        "AND earlier.position < this.position",
        "AND earlier.position < 0",
        "08_remote_effects",
    ),
    Mutation(
        "what is refused for good is not tried again",
        "payments/delivery.py",
        "hopeless = isinstance(error, RefusedError)",
        "hopeless = False",
        "08_remote_effects",
    ),
    Mutation(
        "the attempts are bounded",
        "stores/sqlite/outbox.py",
        'if row["attempts"] >= max_attempts:',
        "if False:",
        "08_remote_effects",
    ),
    Mutation(
        "those who failed together do not come back together",
        "payments/delivery.py",
        "limit * chance.random()",
        "limit",
        "08_remote_effects",
    ),
    Mutation(
        "the first answer of a person stays",
        "stores/sqlite/questions.py",
        "        if found.answer is not None:",
        "        if False:",
        "08_remote_effects",
    ),
    Mutation(
        "what was paid twice is paid back",
        "payments/client.py",
        "paid[1:]",
        "paid[2:]",
        "08_remote_effects",
    ),
    Mutation(
        "a request to stop is obeyed between two actions",
        "crashes/endings.py",
        'while state.status != "completed" and not stop.is_set():',
        'while state.status != "completed":',
        "06_crash_everywhere",
    ),
    Mutation(
        "an interrupt leaves an event",
        "crashes/endings.py",
        "            _record_stop(connection, state.run_id, session, type(error).__name__)",
        "            pass",
        "06_crash_everywhere",
    ),
    Mutation(
        "a death between checkpoint and event leaves neither",
        "stores/sqlite/records.py",
        "    record_event(\n        connection,\n        run_id=new.run_id,",
        (
            '    sqlite3.Connection.execute(connection, "COMMIT")\n'
            '    sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")\n'
            "    record_event(\n        connection,\n        run_id=new.run_id,"
        ),
        "06_crash_everywhere",
    ),
    Mutation(
        "a commit is synced",
        "stores/sqlite/connection.py",
        '("synchronous", "FULL", 2)',
        '("synchronous", "NORMAL", 1)',
        "06_crash_everywhere",
    ),
    Mutation(
        "a late answer is saved under its key, and whoever asks meanwhile waits for it",
        "stores/sqlite/effects.py",
        "lock.acquire(timeout=wait)",
        "pass",
        "06_crash_everywhere",
    ),
    Mutation(
        "an old state is refused after an interrupt",
        "stores/sqlite/records.py",
        "if updated.rowcount != 1:",
        "if False:",
        "06_crash_everywhere",
    ),
    Mutation(
        "a live claim keeps others out",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return False",
        "07_several_workers",
    ),
    Mutation(
        "a lease ends",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return self.expires_at <= now + self.lease",
        "07_several_workers",
    ),
    Mutation(
        "an end further away than a lease counts as over",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return now < self.expires_at",
        "07_several_workers",
    ),
    Mutation(
        "a renewed lease begins anew",
        "stores/sqlite/claims.py",
        "SET expires_at_utc = ? WHERE token = ?",
        "SET expires_at_utc = ? WHERE 0 = ?",
        "07_several_workers",
    ),
    Mutation(
        "an old token is refused",
        "stores/sqlite/claims.py",
        'if row["token"] != claim.token:',
        "if False:",
        "07_several_workers",
    ),
    Mutation(
        "a token is never given twice",
        "stores/sqlite/claims.py",
        " AUTOINCREMENT,\n",
        ",\n",
        "07_several_workers",
    ),
    Mutation(
        "a checkpoint needs the claim",
        "stores/sqlite/claims.py",
        "        require_claim(connection, claim)\n        return write_checkpoint(",
        "        return write_checkpoint(",
        "07_several_workers",
    ),
    Mutation(
        "a worker saves under its claim",
        "workers/worker.py",
        "passing=passing, save=save)",
        "passing=passing)",
        "07_several_workers",
    ),
    Mutation(
        "a retry is bounded",
        "workers/worker.py",
        " or attempt == attempts - 1:",
        ":",
        "07_several_workers",
    ),
    Mutation(
        "a batch is one transaction",
        "stores/sqlite/batches.py",
        (
            "        with self._connection:\n"
            "            outcomes = [self._write(*checkpoint) for checkpoint in self._waiting]\n"
        ),
        (
            "        outcomes = []\n"
            "        for checkpoint in self._waiting:\n"
            "            with self._connection:\n"
            "                outcomes.append(self._write(*checkpoint))\n"
        ),
        "07_several_workers",
    ),
    Mutation(
        "a full batch is committed",
        "stores/sqlite/batches.py",
        "self._limit, self._delay = connection, limit, delay",
        "self._limit, self._delay = connection, 10**9, delay",
        "07_several_workers",
    ),
    Mutation(
        "in a storm, checkpoints wait for each other",
        "stores/sqlite/batches.py",
        "not self._last_commit <= now < due:",
        "True:",
        "07_several_workers",
    ),
    Mutation(
        "the checksum is compared",
        "checkpoints/codec.py",
        "if digest(stored) != stored.sha256:",
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "a newer schema version is refused",
        "checkpoints/schema.py",
        "if schema_version not in range(1, CURRENT + 1):",
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "a field outside the schema is refused",
        "checkpoints/schema.py",
        "        if name not in wanted:\n            raise",
        "        if name not in wanted:\n            continue\n            raise",
        "09_checkpoint_format",
    ),
    Mutation(
        "experimental fields are carried through an upcaster",
        "checkpoints/schema.py",
        'return _with(context, "ticket"',
        'return _with({"priority": "urgent"}, "ticket"',
        "09_checkpoint_format",
    ),
    Mutation(
        "an experiment needs its flag",
        "checkpoints/schema.py",
        "if name not in flags:",
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "what is unpacked is bounded",
        "checkpoints/codec.py",
        "stream.decompress(body, LARGEST + 1)",
        "stream.decompress(body)",
        "09_checkpoint_format",
    ),
    Mutation(
        "a checkpoint that is too large is refused",
        "checkpoints/codec.py",
        "    if len(body) > LARGEST:\n        raise CheckpointSizeError",
        "    if False:\n        raise CheckpointSizeError",
        "09_checkpoint_format",
    ),
    Mutation(
        "the archive is written with the checkpoint",
        "checkpoints/archive.py",
        "    stored = encode(new)\n",
        (
            "    save = dict(session=session, action=action, next_action=next_action)\n"
            "    write_checkpoint(connection, state, context=context, **save)\n"
            '    super(AgentConnection, connection).execute("COMMIT")\n'
            '    super(AgentConnection, connection).execute("BEGIN IMMEDIATE")\n'
            "    keep(connection, state)\n"
            "    keep(connection, new)\n"
            "    return new\n"
        ),
        "09_checkpoint_format",
    ),
    Mutation(
        "a history is never changed",
        "checkpoints/history.py",
        "BEFORE UPDATE ON run_history\n    BEGIN",
        "BEFORE UPDATE ON run_history\n    WHEN 0 BEGIN",
        "09_checkpoint_format",
    ),
    Mutation(
        "a history is never cut",
        "checkpoints/history.py",
        "BEFORE DELETE ON run_history\n    WHEN EXISTS",
        "BEFORE DELETE ON run_history\n    WHEN 0 AND EXISTS",
        "09_checkpoint_format",
    ),
    Mutation(
        "a history only grows",
        "checkpoints/history.py",
        "WHEN NEW.position <>",
        "WHEN 0 AND NEW.position <>",
        "09_checkpoint_format",
    ),
    Mutation(
        "what leaves the window is in the history",
        "checkpoints/history.py",
        "append(connection, state.run_id, [*missing, *said[len(before) :]])",
        "append(connection, state.run_id, kept['conversation'][1:])",
        "09_checkpoint_format",
    ),
    Mutation(
        "what acts on the world has a place of its own",
        "checkpoints/inventory.py",
        'if recompute == "acts again":',
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "the window stays in the checkpoint",
        "checkpoints/history.py",
        "leaving, staying = said[:-window], said[-window:]",
        "leaving, staying = said, []",
        "09_checkpoint_format",
    ),
    Mutation(
        "what waits is flushed in its order",
        "recovery/buffer.py",
        "for waiting in self._waiting:\n                detail",
        "for waiting in reversed(self._waiting):\n                detail",
        "10_recovery_path",
    ),
    Mutation(
        "a buffer is bounded",
        "recovery/buffer.py",
        "if len(whole) > self._limit:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "what waits is reported until it is committed",
        "recovery/buffer.py",
        "            at, newest = self._parent, self._newest\n",
        "            at, newest = self._parent, self._newest\n"
        "            self._waiting, waited = [], self._waiting\n",
        "10_recovery_path",
    ),
    Mutation(
        "a flush stops at a conflict",
        "recovery/buffer.py",
        "            if at is not None:\n                keep(connection, at)\n",
        "            if at is not None:\n                keep(connection, at)\n"
        "            from lesson_lib.stores.sqlite import load_state\n"
        "            at = at and load_state(connection, at.run_id)\n",
        "10_recovery_path",
    ),
    Mutation(
        "a backup is verified",
        "recovery/backups.py",
        "versions = verify(part, acknowledged)",
        "versions = acknowledged",
        "10_recovery_path",
    ),
    Mutation(
        "a backup holds what was acknowledged",
        "recovery/backups.py",
        "(found_version := versions.get(run_id, -1)) < version:",
        "(found_version := versions.get(run_id, -1)) < 0:",
        "10_recovery_path",
    ),
    Mutation(
        "a backup overwrites no file",
        "recovery/backups.py",
        'raise StorageError(f"{found} is there already: name a new file")',
        "found.unlink()",
        "10_recovery_path",
    ),
    Mutation(
        "a tool's result is remembered",
        "recovery/buffer.py",
        "        self._remember(event)\n        return result",
        "        return result",
        "10_recovery_path",
    ),
    Mutation(
        "the log has no gap",
        "patterns/log.py",
        "WHEN NEW.sequence <> 1",
        "WHEN 0 AND NEW.sequence <> 1",
        "11_four_patterns",
    ),
    Mutation(
        "an event of the log is never changed",
        "patterns/log.py",
        "BEFORE UPDATE ON run_log",
        "BEFORE UPDATE ON run_log WHEN 0",
        "11_four_patterns",
    ),
    Mutation(
        "an event of the log is never deleted",
        "patterns/log.py",
        "WHEN EXISTS (SELECT 1",
        "WHEN 0 AND EXISTS (SELECT 1",
        "11_four_patterns",
    ),
    Mutation(
        "an event claims its place in the log",
        "patterns/log.py",
        "values = (event.run_id, event.sequence,",
        "values = (event.run_id, connection.execute('SELECT max(sequence) + 1 FROM run_log"
        " WHERE run_id = ?', (event.run_id,)).fetchone()[0] or 1,",
        "11_four_patterns",
    ),
    Mutation(
        "old events are upcast on replay",
        "patterns/log.py",
        "= upcast(stored_type, stored, event_schema)",
        "= stored_type, stored",
        "11_four_patterns",
    ),
    Mutation(
        "an event of a newer schema is refused",
        "patterns/event_schema.py",
        "event_schema not in range(1, CURRENT + 1)",
        "event_schema < 1",
        "11_four_patterns",
    ),
    Mutation(
        "a damaged snapshot is passed over",
        "patterns/hybrid.py",
        "suppress(CheckpointError)",
        "suppress()",
        "11_four_patterns",
    ),
    Mutation(
        "a snapshot has a checksum",
        "checkpoints/codec.py",
        "if digest(stored) != stored.sha256:",
        "if False:",
        "11_four_patterns",
    ),
    Mutation(
        "a replay is watched",
        "patterns/projection.py",
        "with no_looking_outside():",
        "if True:",
        "11_four_patterns",
    ),
    Mutation(
        "the tools of a fork have keys of their own",
        "patterns/protocol.py",
        'key = f"{begun.run_id}:{tool_name}"',
        'key = f"run-{begun.ticket_id}:{tool_name}"',
        "11_four_patterns",
    ),
    Mutation(
        "a pattern with keys keeps the results of tools",
        "patterns/checkpointing.py",
        "if not self._keys:",
        "if True:",
        "11_four_patterns",
    ),
    Mutation(
        "the hybrid takes snapshots",
        "patterns/hybrid.py",
        "if new.version % self._every == 0:",
        "if False:",
        "11_four_patterns",
    ),
    Mutation(
        "a running run never expires",
        "checkpoints/retention.py",
        'if still_open is None and row["status"] != "completed":',
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "an open question keeps its run",
        "checkpoints/retention.py",
        "return still_open or _too_young(connection, run_id, ttl)",
        "return _too_young(connection, run_id, ttl)",
        "09_checkpoint_format",
    ),
    Mutation(
        "saved results stay as long as callers may repeat",
        "checkpoints/retention.py",
        "if age < ttl else None",
        "if False else None",
        "09_checkpoint_format",
    ),
    Mutation(
        "a TTL has bounds",
        "checkpoints/retention.py",
        "if not SHORTEST <= ttl <= LONGEST:",
        "if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "the id of an expired run is never used again",
        "checkpoints/retention.py",
        "WHEN EXISTS (SELECT 1 FROM expired_runs WHERE run_id = NEW.run_id)",
        "WHEN 0",
        "09_checkpoint_format",
    ),
    Mutation(
        "a clean-up deletes a batch per transaction",
        "checkpoints/retention.py",
        "ORDER BY version, checkpoint_id LIMIT ?)",
        "ORDER BY version, checkpoint_id LIMIT 999 + ?)",
        "09_checkpoint_format",
    ),
    Mutation(
        "the newest checkpoints stay",
        "checkpoints/retention.py",
        "return trusted[keep - 1]",
        "return trusted[0]",
        "09_checkpoint_format",
    ),
    Mutation(
        "a file is prepared to give back its space",
        "checkpoints/retention.py",
        "    if mode == 0:",
        "    if False:",
        "09_checkpoint_format",
    ),
    Mutation(
        "what an event may hold is a list",
        "checkpoints/privacy.py",
        "WHERE coalesce(key, '') NOT IN ({_texts(fields)})",
        "WHERE 0",
        "09_checkpoint_format",
    ),
    Mutation(
        "an unknown type of event is refused",
        "checkpoints/privacy.py",
        "WHERE NEW.event_type NOT IN ({_texts(ALLOWED)});",
        "WHERE 0;",
        "09_checkpoint_format",
    ),
    Mutation(
        "a context is redacted before it is saved",
        "checkpoints/privacy.py",
        "context=redact(whole)",
        "context=whole",
        "09_checkpoint_format",
    ),
    Mutation(
        "a private file is its owner's alone",
        "checkpoints/privacy.py",
        "os.O_RDWR, 0o600)",
        "os.O_RDWR, 0o644)",
        "09_checkpoint_format",
    ),
    Mutation(
        "a field never without the one it rests on",
        "recovery/story.py",
        "if found != fields[: len(found)]:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "a checkpoint fits its event",
        "recovery/story.py",
        "if state.next_action != told:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "a checkpoint of another run is refused",
        "recovery/story.py",
        "if run_id_for(state.ticket_id) != story.run_id:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "two rivals are not trusted",
        "recovery/trust.py",
        "if len({k.state for k in whole}) > 1:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "effects come before resuming",
        "recovery/recover.py",
        "    if unsettled:\n",
        "    if False:\n",
        "10_recovery_path",
    ),
    Mutation(
        "recovery writes a new version",
        "recovery/recover.py",
        "version=story.newest + 1)",
        "version=chosen)",
        "10_recovery_path",
    ),
    Mutation(
        "a refused checkpoint is an event",
        "recovery/recover.py",
        'tell("checkpoint_refused", detail)',
        "del detail",
        "10_recovery_path",
    ),
    Mutation(
        "a step down the ladder is an event",
        "recovery/recover.py",
        "if step not in STEPS[:2] and is_kept:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "the current row is compared with the kept one",
        "checkpoints/archive.py",
        "    return replace(row, context_json=found) == replace(state, context_json=wanted)\n",
        "    return row.version == state.version\n",
        "10_recovery_path",
    ),
    Mutation(
        "a gap in the events is for a person",
        "recovery/recover.py",
        "if story.has_gap:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "agent_runs alone must agree with the saved results",
        "recovery/ladder.py",
        "== (story.run_id, story.newest) and agrees",
        "== (story.run_id, story.newest)",
        "10_recovery_path",
    ),
    Mutation(
        "what a later package wrote waits for it",
        "recovery/recover.py",
        "if judged.too_new is not None:",
        "if False:",
        "10_recovery_path",
    ),
    Mutation(
        "a newest version that nobody kept is no damage",
        "recovery/ladder.py",
        "trusted is None or story.newest not in judged.versions()",
        "trusted is None",
        "10_recovery_path",
    ),
]


def noticing_cell(mutation: Mutation, package: Path, folder: Path) -> str | None:
    """Return the first cell whose outputs are not the stored ones when `package` is imported.

    A cell that prints the guard's own source code notices nothing by that.
    """
    notebook = outputs.read(outputs.NOTEBOOKS / f"{mutation.lesson}.ipynb")
    stored = {
        cell.id: cell.outputs
        for cell in notebook.cells
        if cell.cell_type == "code" and not shows(cell.outputs, mutation.old)
    }
    probe = new_code_cell("import lesson_lib\nprint(lesson_lib.__file__)", id="which-package")
    notebook.cells.insert(0, probe)
    folder.mkdir()
    inherited = os.environ.get("PYTHONPATH", "")
    search_path = os.pathsep.join(filter(None, (str(package.parent), inherited)))
    environment = {"PYTHONPATH": search_path, "TMPDIR": str(folder)}
    with closing(steps(notebook, folder, environment)) as run:
        assert printed(next(run).cell.outputs) == f"{package / '__init__.py'}\n"
        for step in run:
            made = step.cell.get("outputs", [])
            if step.cell.id in stored and compare_outputs(stored[step.cell.id], made):
                return str(step.cell.id)
    return None


def shows(outputs_of_cell: list[NotebookNode], source: str) -> bool:
    """Tell whether a cell prints this source code, whatever its indent."""
    return any(
        " ".join(source.split()) in " ".join(output_text(output).split())
        for output in outputs_of_cell
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the package and its data, side by side as in the checkout."""
    for name in ("lesson_lib", "data"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(outputs.ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path / "lesson_lib"


# A lesson whose stored outputs are out of date would notice everything.
@pytest.mark.parametrize(
    "mutation", {m.lesson: m for m in MUTATIONS}.values(), ids=lambda m: m.lesson
)
def test_an_unchanged_copy_changes_no_output(
    mutation: Mutation, package: Path, tmp_path: Path
) -> None:
    assert noticing_cell(mutation, package, tmp_path / "work") is None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_a_lesson_notices_that_its_guard_is_gone(
    mutation: Mutation, package: Path, tmp_path: Path
) -> None:
    file = package / mutation.file
    source = file.read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"{mutation.old!r} must stand once in {mutation.file}"
    file.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    cell = noticing_cell(mutation, package, tmp_path / "work")
    assert cell, f"{mutation.lesson} shows the same outputs without this guard: {mutation.guard}"
    print(f"{mutation.guard}: noticed by cell {cell!r} of {mutation.lesson}")
