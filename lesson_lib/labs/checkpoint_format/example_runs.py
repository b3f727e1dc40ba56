"""Example runs of every age and kind: finished, half done, waiting, asked for again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lesson_lib.checkpoints.history import create_history
from lesson_lib.checkpoints.retention import create_retention
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, ToolCall, ToolResult
from lesson_lib.riders.questions import Ask, create_questions
from lesson_lib.sqlite import AgentConnection, SQLiteStore, create_schema
from lesson_lib.tickets import Ticket, Tools, new_run, read_runbooks, read_tickets, ticket_agent

REWRITES = (  # what nobody may do to a history
    "UPDATE run_history SET entry_json = '{}'",
    "DELETE FROM run_history WHERE position = 1",
    "REPLACE INTO run_history VALUES ('run-T104', 1, '{}')",
)


def create_tables(connection: AgentConnection) -> None:
    """Create the three records, the questions, the archive, the history, and what expiry needs."""
    for create in (create_schema, create_questions, create_history, create_retention):
        create(connection)


def four_runs(store: SQLiteStore) -> list[str]:
    """Work on the first four tickets: two are finished, one is half done, one asks a person.

    Returns:
        The ids of their runs.
    """
    first, second, third, fourth = read_tickets()[:4]
    runs = [finished_run(store, ticket) for ticket in (first, second)]
    runs += [store.start_run(new_run(ticket)) for ticket in (third, fourth)]
    asks = Ask(f"{runs[3].run_id}:paid", "Was the fee paid?", ["yes", "no"])
    asking = replace(store, riders=(*store.riders, asks))
    ticket_agent.run_next_action(store, runs[2], _tools(store))
    ticket_agent.run_next_action(asking, runs[3], _tools(store))
    return [run.run_id for run in runs]


def finished_run(store: SQLiteStore, ticket: Ticket) -> RunState:
    """Work on a ticket to the end."""
    return ticket_agent.run_to_end(store, store.start_run(new_run(ticket)), _tools(store))


def ask_again(connection: AgentConnection, run_id: str) -> ToolResult:
    """Repeat the request for the runbook of a run, as a caller does whose answer got lost."""
    caller = SQLiteStore(connection, "caller")
    code = caller.load_state(run_id).context["runbook"]["code"]
    key = f"{run_id}:lookup_runbook"
    look_up = partial(_tools(caller).lookup_runbook, key, code)
    return caller.execute_once(ToolCall(run_id, key, "lookup_runbook", {"code": code}, look_up))


def _tools(store: SQLiteStore) -> Tools:
    return Tools(read_runbooks(), Ledger(store.connection.path.with_suffix(".ledger.txt")))
