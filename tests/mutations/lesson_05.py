"""The guards of lesson 05."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "45 minutes are urgent",
        "tickets.py",
        "outage_minutes >= URGENT_FROM_MINUTES",
        "outage_minutes > URGENT_FROM_MINUTES",
    ),
    Mutation(
        "expected priorities are compared with the rule",
        "tickets.py",
        "if found != ticket.expected_priority:",
        "if False:",
    ),
    Mutation(
        "the event of a tool call is recorded",
        "stores/sqlite/effects.py",
        '                            record("tool_executed")',
        "                            pass",
    ),
    Mutation(
        "an unfinished run is not deleted",
        "stores/sqlite/records.py",
        'if row["status"] != "completed":',
        "if False:",
    ),
]
