"""The guards of lesson 04."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "the crash comes before the checkpoint",
        "agent.py",
        "        if crash_after_tool:",
        "        if False:",
    ),
    Mutation(
        "a finished run is not resumed",
        "agent.py",
        "        state.require_unfinished()\n        store.record_event",
        "        store.record_event",
    ),
    Mutation(
        "a context that lacks a field is not trusted",
        "tickets/agent.py",
        "if not isinstance(value, Mapping) or name not in value:",
        "if False:",
    ),
    Mutation(
        "the tool leaves a line with the witness",
        "tickets/tools.py",
        "        self.ledger.write(key)\n        if code",
        "        if code",
    ),
]
