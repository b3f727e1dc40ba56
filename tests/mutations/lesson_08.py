"""The guards of lesson 08."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a repeated key gets its first answer",
        "labs/remote_effects/accounts.py",
        "            if row is None:\n                sql",
        "            if True:\n                sql",
    ),
    Mutation(
        "a key belongs to one request",
        "labs/remote_effects/accounts.py",
        'if row["request"] != text:',
        "if False:",
    ),
    Mutation(
        "a request in progress is not made again",
        "labs/remote_effects/accounts.py",
        '    if row["status"] is None:\n        raise Problem(409',
        "    if False:\n        raise Problem(409",
    ),
    Mutation(
        "a key is forgotten after its time",
        "labs/remote_effects/accounts.py",
        "AND answered <= ?",
        "AND answered < 0 * ?",
    ),
    Mutation(
        "a service that starts looks into the bank's statement",
        "labs/remote_effects/accounts.py",
        "if f\"payment-{row['number']}\" in self._statement():",
        "if False:",
    ),
    Mutation(
        "a payment needs a key",
        "labs/remote_effects/service.py",
        "        if not found:\n            raise",
        "        if False:\n            raise",
    ),
    Mutation(
        "a payment that is found is not made again",
        "riders/intents.py",
        "    if answer is not None:\n        return",
        "    if False:\n        return",
    ),
    Mutation(
        "a key that may be forgotten is not used again",
        "riders/intents.py",
        "if not timedelta() <= age < key_lives:",
        "if False:",
    ),
    Mutation(
        "a run keeps what its commands need",
        "riders/outbox.py",
        "WHERE run_id = OLD.run_id AND status IN ('waiting', 'dead'))",
        "WHERE run_id = OLD.run_id AND 0)",
    ),
    Mutation(
        "a claimed command is nobody else's",
        "riders/outbox.py",
        "(utc_text(now + claim), utc",
        "(utc_text(now), utc",
    ),
    Mutation(
        "an attempt is counted before it is made",
        "riders/outbox.py",
        "attempts = attempts + 1",
        "attempts = attempts + 0",
    ),
    Mutation(
        "the commands of a run stay in order",
        "riders/outbox.py",
        "AND earlier.position < this.position",
        "AND earlier.position < 0",
    ),
    Mutation(
        "what is refused for good is not tried again",
        "riders/delivery.py",
        "hopeless = isinstance(error, RefusedError)",
        "hopeless = False",
    ),
    Mutation(
        "the attempts are bounded",
        "riders/outbox.py",
        "if command.attempts >= most:",
        "if False:",
    ),
    Mutation(
        "those who failed together do not come back together",
        "riders/delivery.py",
        "self.longest_wait(attempt) * chance.random()",
        "self.longest_wait(attempt)",
    ),
    Mutation(
        "the first answer of a person stays",
        "riders/questions.py",
        "        if found.answer is not None:",
        "        if False:",
    ),
    Mutation(
        "what was paid twice is paid back",
        "labs/remote_effects/client.py",
        "paid[1:]",
        "paid[2:]",
    ),
    Mutation(
        "what rides with a checkpoint is in its transaction",
        "sqlite/records.py",
        "    for rider in saving.riders:\n        rider.write(connection, saving)\n    return new",
        '    for sql in ("COMMIT", "BEGIN"):\n'
        "        sqlite3.Connection.execute(connection, sql)\n"
        "    for rider in saving.riders:\n        rider.write(connection, saving)\n    return new",
    ),
]
