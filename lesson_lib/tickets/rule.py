"""The rule that says which ticket is urgent, and which runbook belongs to it."""

from __future__ import annotations

URGENT_FROM_MINUTES = 45


def classify(outage_minutes: int, safety_impact: bool) -> str:
    """Return "urgent" for a safety impact or an outage of at least 45 minutes, else "normal"."""
    return "urgent" if safety_impact or outage_minutes >= URGENT_FROM_MINUTES else "normal"


def runbook_code(area: str, priority: str) -> str:
    """Return the code of the runbook for a ticket, such as `cold-storage-urgent`."""
    return f"{area.replace(' ', '-')}-{priority}"
