"""The guards of lesson 07."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a live claim keeps others out",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return False",
    ),
    Mutation(
        "a lease ends",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return self.expires_at <= now + self.lease",
    ),
    Mutation(
        "an end further away than a lease counts as over",
        "stores/sqlite/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return now < self.expires_at",
    ),
    Mutation(
        "a renewed lease begins anew",
        "stores/sqlite/claims.py",
        "SET expires_at_utc = ? WHERE token = ?",
        "SET expires_at_utc = ? WHERE 0 = ?",
    ),
    Mutation(
        "an old token is refused",
        "stores/sqlite/claims.py",
        'if row["token"] != claim.token:',
        "if False:",
    ),
    Mutation(
        "a token is never given twice",
        "stores/sqlite/claims.py",
        " AUTOINCREMENT,\n",
        ",\n",
    ),
    Mutation(
        "a checkpoint needs the claim",
        "stores/sqlite/claims.py",
        "        require_claim(connection, claim)\n        return write_checkpoint(",
        "        return write_checkpoint(",
    ),
    Mutation(
        "a worker saves under its claim",
        "workers/worker.py",
        "passing=passing, save=save)",
        "passing=passing)",
    ),
    Mutation(
        "a retry is bounded",
        "workers/worker.py",
        " or attempt == attempts - 1:",
        ":",
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
    ),
    Mutation(
        "a full batch is committed",
        "stores/sqlite/batches.py",
        "self._limit, self._delay = connection, limit, delay",
        "self._limit, self._delay = connection, 10**9, delay",
    ),
    Mutation(
        "in a storm, checkpoints wait for each other",
        "stores/sqlite/batches.py",
        "not self._last_commit <= now < due:",
        "True:",
    ),
]
