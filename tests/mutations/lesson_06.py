"""The guards of lesson 06."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a request to stop is obeyed between two actions",
        "labs/crash_everywhere/endings.py",
        'while state.status != "completed" and not stop.is_set():',
        'while state.status != "completed":',
    ),
    Mutation(
        "an interrupt leaves an event",
        "labs/crash_everywhere/endings.py",
        "            tell(type(error).__name__)",
        "            pass",
    ),
    Mutation(
        "a death between checkpoint and event leaves neither",
        "sqlite/records.py",
        "    record_event(\n        connection,\n        run_id=new.run_id,",
        (
            '    sqlite3.Connection.execute(connection, "COMMIT")\n'
            '    sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")\n'
            "    record_event(\n        connection,\n        run_id=new.run_id,"
        ),
    ),
    Mutation(
        "a commit is synced",
        "sqlite/opening.py",
        '("synchronous", "FULL", 2)',
        '("synchronous", "NORMAL", 1)',
    ),
    Mutation(
        "a late answer is saved under its key, and whoever asks meanwhile waits for it",
        "sqlite/effects.py",
        "lock.acquire(timeout=wait)",
        "pass",
    ),
    Mutation(
        "an old state is refused after an interrupt",
        "sqlite/records.py",
        "if updated.rowcount != 1:",
        "if False:",
    ),
]
