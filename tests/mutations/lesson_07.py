"""The guards of lesson 07."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a live claim keeps others out",
        "riders/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return False",
    ),
    Mutation(
        "a lease ends",
        "riders/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return self.expires_at <= now + self.lease",
    ),
    Mutation(
        "an end further away than a lease counts as over",
        "riders/claims.py",
        "return now < self.expires_at <= now + self.lease",
        "return now < self.expires_at",
    ),
    Mutation(
        "a renewed lease begins anew",
        "riders/claims.py",
        "SET expires_at_utc = ? WHERE token = ?",
        "SET expires_at_utc = ? WHERE 0 = ?",
    ),
    Mutation(
        "an old token is refused",
        "riders/claims.py",
        'if row is None or row["token"] != claim.token:',
        "if row is None:",
    ),
    Mutation(
        "a token is never given twice",
        "riders/claims.py",
        " AUTOINCREMENT,\n",
        ",\n",
    ),
    Mutation(
        "a checkpoint needs the claim",
        "riders/claims.py",
        "        require_claim(connection, self.claim)\n",
        "",
    ),
    Mutation(
        "a worker saves under its claim",
        "workers.py",
        "(Claimed(claim), *riders)",
        "riders",
    ),
    Mutation(
        "a retry is bounded",
        "workers.py",
        "range(attempts - 1)",
        "range(50)",
    ),
    Mutation(
        "a batch is one transaction",
        "riders/batches.py",
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
        "riders/batches.py",
        "self._limit, self._delay = limit, delay",
        "self._limit, self._delay = 10**9, delay",
    ),
    Mutation(
        "in a storm, checkpoints wait for each other",
        "riders/batches.py",
        "not self._last_commit <= now < due:",
        "True:",
    ),
]
