"""The example agent: it answers the tickets of a facility."""

from lesson_lib.tickets.agent import new_run, run_id_for, ticket_agent
from lesson_lib.tickets.reading import (
    DATA,
    Runbook,
    Ticket,
    check_priorities,
    find_ticket,
    read_runbooks,
    read_tickets,
)
from lesson_lib.tickets.rule import classify, runbook_code
from lesson_lib.tickets.tools import Tools

__all__ = [
    "DATA",
    "Runbook",
    "Ticket",
    "Tools",
    "check_priorities",
    "classify",
    "find_ticket",
    "new_run",
    "read_runbooks",
    "read_tickets",
    "run_id_for",
    "runbook_code",
    "ticket_agent",
]
