"""The guards of lesson 08."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "a repeated key gets its first answer",
        "payments/books.py",
        "            if row is None:\n                new",
        "            if True:\n                new",
    ),
    Mutation(
        "a key belongs to one request",
        "payments/books.py",
        'if row["fingerprint"] != fingerprint:',
        "if False:",
    ),
    Mutation(
        "a request in progress is not made again",
        "payments/books.py",
        '    if row["status"] is None:\n        raise Problem(409',
        "    if False:\n        raise Problem(409",
    ),
    Mutation(
        "a key is forgotten after its time",
        "payments/books.py",
        "AND answered <= ?",
        "AND answered < 0 * ?",
    ),
    Mutation(
        "a service that starts looks into the bank's statement",
        "payments/books.py",
        "if self.has(f\"payment-{row['number']}\"):",
        "if False:",
    ),
    Mutation(
        "a payment needs a key",
        "payments/service.py",
        "        if not found:\n            raise",
        "        if False:\n            raise",
    ),
    Mutation(
        "a payment that is found is not made again",
        "stores/sqlite/intents.py",
        "    if answer is not None:\n        return",
        "    if False:\n        return",
    ),
    Mutation(
        "a key that may be forgotten is not used again",
        "stores/sqlite/intents.py",
        "if not timedelta() <= age < key_lives:",
        "if False:",
    ),
    Mutation(
        "a run keeps what its commands need",
        "stores/sqlite/outbox.py",
        "WHERE run_id = OLD.run_id AND status IN ('waiting', 'dead'))",
        "WHERE run_id = OLD.run_id AND 0)",
    ),
    Mutation(
        "a claimed command is nobody else's",
        "stores/sqlite/outbox.py",
        "(utc_text(now + claim), utc",
        "(utc_text(now), utc",
    ),
    Mutation(
        "an attempt is counted before it is made",
        "stores/sqlite/outbox.py",
        "attempts = attempts + 1",
        "attempts = attempts + 0",
    ),
    Mutation(
        "the commands of a run stay in order",
        "stores/sqlite/outbox.py",
        "AND earlier.position < this.position",
        "AND earlier.position < 0",
    ),
    Mutation(
        "what is refused for good is not tried again",
        "payments/delivery.py",
        "hopeless = isinstance(error, RefusedError)",
        "hopeless = False",
    ),
    Mutation(
        "the attempts are bounded",
        "stores/sqlite/outbox.py",
        'if row["attempts"] >= max_attempts:',
        "if False:",
    ),
    Mutation(
        "those who failed together do not come back together",
        "payments/delivery.py",
        "limit * chance.random()",
        "limit",
    ),
    Mutation(
        "the first answer of a person stays",
        "stores/sqlite/questions.py",
        "        if found.answer is not None:",
        "        if False:",
    ),
    Mutation(
        "what was paid twice is paid back",
        "payments/client.py",
        "paid[1:]",
        "paid[2:]",
    ),
]
