"""The guards of lesson 03."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a saved result is reused",
        "sqlite/effects.py",
        'WHERE idempotency_key = ?", (key,)',
        'WHERE idempotency_key = ? AND 0", (key,)',
    ),
    Mutation(
        "one caller of a key at a time",
        "sqlite/effects.py",
        "lock.acquire(timeout=wait)",
        "pass",
    ),
    Mutation(
        "the second look, under the lock",
        "sqlite/effects.py",
        "            if saved is None:\n                require_run",
        "            if True:\n                require_run",
    ),
    Mutation(
        "an old key with new input is an error",
        "sqlite/effects.py",
        'saved["input_sha256"]) != (run_id, tool_name, digest)',
        "digest) != (run_id, tool_name, digest)",
    ),
    Mutation(
        "a result that is not JSON has an error of its own",
        "sqlite/effects.py",
        "except JSONValueError as error:\n        raise ToolResultError(",
        "except JSONValueError as error:\n        raise KeyBusyError(",
    ),
]
