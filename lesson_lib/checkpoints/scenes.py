"""Scenes of the lesson: runs of every age and kind, and checkpoints with papers in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lesson_lib.agent import run_next_action, run_to_end, start
from lesson_lib.checkpoints.archive import create_archive, save_kept
from lesson_lib.checkpoints.retention import create_retention
from lesson_lib.json_text import JSONValue
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, ToolResult
from lesson_lib.stores.sqlite import (
    AgentConnection,
    create_schema,
    execute_once,
    load_state,
)
from lesson_lib.stores.sqlite.questions import ask, create_questions
from lesson_lib.tickets import Ticket, Tools, read_runbooks, read_tickets

SESSION = "session-1"


def create_tables(connection: AgentConnection) -> None:
    """Create the three records, the archive, the questions, and what expiry needs."""
    for create in (create_schema, create_archive, create_questions, create_retention):
        create(connection)


def four_runs(connection: AgentConnection) -> list[str]:
    """Work on the first four tickets: two are finished, one is half done, one asks a person.

    Returns:
        The ids of their runs.
    """
    tickets = read_tickets()[:4]
    for ticket in tickets[:2]:
        finished_run(connection, ticket)
    for ticket in tickets[2:]:
        run = start(connection, ticket, SESSION)
        run_next_action(connection, run, SESSION, _tools(connection), save=save_kept)
    with connection:
        ask(
            connection,
            run_id=run.run_id,
            session=SESSION,
            question_id=f"{run.run_id}:paid",
            question="Was the fee paid?",
            choices=["yes", "no"],
        )
    return [f"run-{ticket.ticket_id}" for ticket in tickets]


def finished_run(connection: AgentConnection, ticket: Ticket) -> RunState:
    """Work on a ticket to the end, with every checkpoint kept."""
    run = start(connection, ticket, SESSION)
    return run_to_end(connection, run, SESSION, _tools(connection), save=save_kept)


def ask_again(connection: AgentConnection, run_id: str) -> ToolResult:
    """Repeat the request for the runbook of a run, as a caller does whose answer got lost."""
    key = f"{run_id}:lookup_runbook"
    code: str = load_state(connection, run_id).context["runbook"]["code"]
    return execute_once(
        connection,
        partial(_tools(connection).lookup_runbook, key, code),
        run_id=run_id,
        session="caller",
        key=key,
        tool_name="lookup_runbook",
        tool_input={"code": code},
    )


def save_papers(
    connection: AgentConnection,
    state: RunState,
    papers: Sequence[JSONValue],
    save: Callable[..., RunState] = save_kept,
) -> RunState:
    """Save the next checkpoint of a run, with these documents in its context."""
    return save(
        connection,
        state,
        session=SESSION,
        action="read_papers",
        next_action="read_papers",
        context=state.context | {"documents": list(papers)},
    )


def _tools(connection: AgentConnection) -> Tools:
    return Tools(read_runbooks(), Ledger(Path(connection.path).with_suffix(".ledger.txt")))
