"""What a crash takes from each kind of state that lies in the right or in the wrong place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.checkpoints.history import Window, append, create_history, read_history
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.labs.checkpoint_format.inventory import KINDS, worked_context
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import die, run_child
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema
from lesson_lib.tickets import ticket_agent

RUN = "run-T104"
BEFORE, NOW = (58, 1), (60, 2)  # entries said and sub-goals done; see `worked_context`


def trial(folder: Path, places: Mapping[str, str]) -> list[dict[str, Any]]:
    """Run T104 with each kind of state in its place, crash it, and look what is left.

    A child process stores each kind as it was, and again as it is now. Then it calls the tool, and
    dies before the checkpoint that would tell of it. `places` has one of `PLACES` for each field
    of `KINDS`.

    Returns:
        For each kind: its place, its bytes in each checkpoint, and how a new process finds it.
    """
    with TemporaryDirectory(dir=folder) as scratch:
        database, ledger = Path(scratch, "agent.db"), Ledger(Path(scratch, "ledger.txt"))
        run_child(["-m", __name__, scratch, to_json(dict(places))])
        with closing(connect(database)) as connection:
            store = SQLiteStore(connection, "session-2")
            state = store.load_state(RUN)
            _call_tool(store, places["effects"], ledger)
            calls = ledger.count(f"{RUN}:lookup_runbook")
            found = {k.field: _found(store, state, k.field, places[k.field]) for k in KINDS[:-1]}
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
    riders = (Window(),) if places["conversation"] == "history" else ()
    store = SQLiteStore(connection, "session-1", riders)
    state = ticket_agent.start(store, RUN)
    seen = 0
    for now in (worked_context(*BEFORE), worked_context(*NOW)):
        found, appended = {"priority": now["priority"]}, {}
        for field in (kind.field for kind in KINDS[:-1]):
            where = places[field]
            if where == "checkpoint":
                found[field] = now[field]
            elif where == "effects":
                _save_effect(store, field, now[field])
            elif where == "history" and field == "conversation":
                appended[field], seen = now[field][seen:], len(now[field])
            elif where == "history":
                with connection:
                    append(connection, RUN, [{"field": field, "value": now[field]}])
        step = Step("classify_priority", found, "lookup_runbook", appended=appended)
        state = store.save_checkpoint(state, step)
    _call_tool(store, places["effects"], ledger)


def _call_tool(store: SQLiteStore, where: str, ledger: Ledger) -> None:
    """Call the tool; its result is durable at once only where it goes to the effects."""
    key = f"{RUN}:lookup_runbook"

    def function() -> JSONValue:
        ledger.write(key)
        return {"code": "cold-storage-urgent"}

    if where == "effects":
        store.execute_once(ToolCall(RUN, key, "lookup_runbook", {}, function))
    else:
        function()


def _save_effect(store: SQLiteStore, field: str, value: JSONValue) -> JSONValue:
    """Keep a value as if a tool had returned it: the first one stays."""
    return store.execute_once(ToolCall(RUN, f"{RUN}:{field}", field, {}, lambda: value)).value


def _found(store: SQLiteStore, state: RunState, field: str, where: str) -> str:
    wanted = worked_context(*NOW)[field]
    found: JSONValue = state.context.get(field)
    if where == "history":
        entries = read_history(store.connection, RUN)
        if field == "conversation":
            found = [entry for entry in entries if "role" in entry]
        else:
            found = [entry["value"] for entry in entries if entry.get("field") == field][-1]
    elif where == "effects":
        found = _save_effect(store, field, None)
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
