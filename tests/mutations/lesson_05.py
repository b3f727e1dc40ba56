"""The guards of lesson 05."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "45 minutes are urgent",
        "tickets/rule.py",
        "outage_minutes >= URGENT_FROM_MINUTES",
        "outage_minutes > URGENT_FROM_MINUTES",
    ),
    Mutation(
        "expected priorities are compared with the rule",
        "tickets/reading.py",
        "if found != ticket.expected_priority:",
        "if False:",
    ),
    Mutation(
        "the event of a tool call is recorded",
        "sqlite/effects.py",
        '                            record("tool_executed")',
        "                            pass",
    ),
    Mutation(
        "an unfinished run is not deleted",
        "sqlite/records.py",
        'if row["status"] != "completed":',
        "if False:",
    ),
]
