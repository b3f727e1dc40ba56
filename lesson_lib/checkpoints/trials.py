"""What a crash takes from each kind of state that lies in the right or in the wrong place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib import agent
from lesson_lib.checkpoints.history import append, create_history, read_history, slide
from lesson_lib.checkpoints.inventory import KINDS, worked_context
from lesson_lib.crash import die, run_child
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    execute_once,
    load_state,
    save_checkpoint,
)
from lesson_lib.tickets import find_ticket, read_tickets

RUN = "run-T104"
BEFORE, NOW = (58, 1), (60, 2)  # entries said and sub-goals done; see `worked_context`


def trial(folder: Path, places: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run T104 with each kind of state in its place, crash it, and look what is left.

    A child process stores each kind as it was, and again as it is now. Then it calls the tool, and
    dies before the checkpoint that would tell of it.

    Args:
        folder: Where to work. What is written there goes again.
        places: For each field of `KINDS` one of `PLACES`.

    Returns:
        For each kind: its place, the bytes it adds to each checkpoint, and how a new process
        finds it: as it was, out of date, lost, or the tool called so many times.
    """
    with TemporaryDirectory(dir=folder) as scratch:
        database, ledger = Path(scratch, "agent.db"), Ledger(Path(scratch, "ledger.txt"))
        run_child(["-m", "lesson_lib.checkpoints.trials", scratch, to_json(dict(places))])
        with closing(connect(database)) as connection:
            state = load_state(connection, RUN)
            _call_tool(connection, places["effects"], "session-2", ledger)
            calls = ledger.count(f"{RUN}:lookup_runbook")
            found = {
                kind.field: _found(connection, state, kind.field, places[kind.field])
                for kind in KINDS
                if kind.field != "effects"
            }
    found["effects"] = {1: "called once", 2: "called twice"}[calls]
    sizes = {name: len(to_json(value)) for name, value in state.context.items()}
    return [
        {
            "kind": kind.name,
            "priority": kind.priority,
            "goes to": places[kind.field],
            "bytes per checkpoint": sizes.get(kind.field, 0),
            "after the crash": found[kind.field],
        }
        for kind in KINDS
    ]


def _session_1(connection: AgentConnection, places: Mapping[str, str], ledger: Ledger) -> None:
    create_schema(connection)
    create_history(connection)
    state = agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")
    seen = 0
    for now in (worked_context(*BEFORE), worked_context(*NOW)):
        context = {name: now[name] for name in ("ticket", "priority")}
        for field in (kind.field for kind in KINDS if kind.field in now):
            value, where = now[field], places[field]
            if field == "conversation":
                new, seen = value[seen:], len(value)
                if where == "history":
                    with connection:
                        append(connection, RUN, new)
                    context[field] = slide(value)
            elif where == "history":
                with connection:
                    append(connection, RUN, [{"field": field, "value": value}])
            if where == "checkpoint":
                context[field] = value
            elif where == "effects":
                _save_effect(connection, field, value)
        state = save_checkpoint(
            connection,
            state,
            session="session-1",
            action="classify_priority",
            next_action="lookup_runbook",
            context=context,
        )
    _call_tool(connection, places["effects"], "session-1", ledger)


def _call_tool(connection: AgentConnection, where: str, session: str, ledger: Ledger) -> None:
    """Call the tool; its result is durable at once only where it goes to the effects."""
    key = f"{RUN}:lookup_runbook"

    def function() -> JSONValue:
        ledger.write(key)
        return {"code": "cold-storage-urgent"}

    if where == "effects":
        execute_once(
            connection,
            function,
            run_id=RUN,
            session=session,
            key=key,
            tool_name="lookup_runbook",
            tool_input={},
        )
    else:
        function()


def _save_effect(connection: AgentConnection, field: str, value: JSONValue) -> JSONValue:
    """Keep a value as if a tool had returned it: the first one stays."""
    return execute_once(
        connection,
        lambda: value,
        run_id=RUN,
        session="session-1",
        key=f"{RUN}:{field}",
        tool_name=field,
        tool_input={},
    ).value


def _found(connection: AgentConnection, state: RunState, field: str, where: str) -> str:
    wanted = worked_context(*NOW)[field]
    found: JSONValue = state.context.get(field)
    if where == "history":
        entries = read_history(connection, RUN)
        if field == "conversation":
            found = [entry for entry in entries if "role" in entry]
        else:
            found = [entry["value"] for entry in entries if entry.get("field") == field][-1]
    elif where == "effects":
        found = _save_effect(connection, field, None)
    if found == wanted:
        return "whole"
    if found is not None:
        return "out of date"
    return "computed again" if field == "documents" else "lost"


def main() -> None:
    """Be the child of `trial`: its first session, up to its death."""
    folder, places = Path(sys.argv[1]), from_json(sys.argv[2])
    with closing(connect(folder / "agent.db")) as connection:
        _session_1(connection, places, Ledger(folder / "ledger.txt"))
        die("kill")


if __name__ == "__main__":
    main()
