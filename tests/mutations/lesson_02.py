"""The guards of lesson 02."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a writer takes the right to write at once",
        "sqlite/connection.py",
        'self.execute("BEGIN IMMEDIATE")',
        'self.execute("BEGIN")',
    ),
    Mutation(
        "an error rolls back",
        "sqlite/connection.py",
        'super().execute("ROLLBACK")',
        'super().execute("COMMIT")',
    ),
    Mutation(
        "a transaction does not nest",
        "sqlite/connection.py",
        "if self.in_transaction:\n            raise TransactionError(\n",
        "if False:\n            raise TransactionError(\n",
    ),
    Mutation(
        "checkpoint and event are one transaction",
        "sqlite/records.py",
        "    record_event(\n        connection,\n        run_id=new.run_id,",
        (
            '    sqlite3.Connection.execute(connection, "COMMIT")\n'
            '    sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")\n'
            "    record_event(\n        connection,\n        run_id=new.run_id,"
        ),
    ),
    Mutation(
        "a stale version finds no row",
        "sqlite/records.py",
        "WHERE run_id = ? AND version = ?",
        "WHERE run_id = ? AND ? >= 0",
    ),
    Mutation(
        "a stale version is an error",
        "sqlite/records.py",
        "if updated.rowcount != 1:",
        "if False:",
    ),
    Mutation(
        "a torn state is not loaded",
        "sqlite/records.py",
        'if row["checkpoints"] != row["version"]:',
        "if False:",
    ),
    Mutation(
        "a key that JSON would change is refused",
        "json_text.py",
        "if type(key) is not str:",
        "if False:",
    ),
    Mutation(
        "NaN is refused",
        "json_text.py",
        "if not math.isfinite(value):",
        "if False:",
    ),
]
