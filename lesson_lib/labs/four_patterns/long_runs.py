"""The agent of lesson 11: the ticket agent, with two actions that make a run as long as we like."""

from __future__ import annotations

from lesson_lib.agent import Action, Agent, CallTool, Context
from lesson_lib.errors import UnknownRunError
from lesson_lib.json_text import JSONObject
from lesson_lib.model import RunState, Step
from lesson_lib.store import StateStore
from lesson_lib.tickets import ticket_agent

LONG_RUN = "run-T900"
DOCUMENT = "x" * 400


def read_page(context: Context, call_tool: CallTool) -> JSONObject:
    """Move the cursor, which stays as small as it is."""
    page = context.get("cursors", {"page": 0})["page"]
    return {"cursors": {"page": page + 1}}


def find_document(context: Context, call_tool: CallTool) -> Step:
    """Add a document to those that were found."""
    more = {"documents": [DOCUMENT]}
    return Step("find_document", {}, "find_document", "the next in line", appended=more)


ACTIONS = {
    **ticket_agent.actions,
    "read_page": Action(
        read_page, "cursors", "page_read", "read_page", lambda context: "the next in line"
    ),
    "find_document": Action(find_document, "documents", "document_found", "find_document"),
}
lab_agent = Agent(ACTIONS, ticket_agent.begin, ticket_agent.schema)


def read_pages(
    store: StateStore, run_id: str = LONG_RUN, *, steps: int, action: str = "read_page"
) -> RunState:
    """Do so many steps without tools; a new run begins with `action`, and does nothing else."""
    try:
        state = store.load_state(run_id)
    except UnknownRunError:
        ticket = {"area": "archive", "issue": "read", "outage_minutes": 0, "safety_impact": False}
        state = store.start_run(RunState.begin(run_id, "T900", action, {"ticket": ticket}))
    for _ in range(steps):
        state = lab_agent.run_next_action(store, state, tools=None)
    return state
