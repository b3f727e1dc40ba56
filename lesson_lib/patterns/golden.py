"""Golden logs: what older versions of this package wrote, kept in `data/event_logs`."""

from __future__ import annotations

import json
from pathlib import Path

from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.tickets import DATA

LOGS = DATA / "event_logs"


def put_golden_log(connection: AgentConnection, run_id: str, path: Path) -> JSONObject:
    """Write the events of a file into a database, as they were written then.

    A run of that name that is there already goes first, with its log.

    Args:
        connection: An open connection; the log must have been created.
        run_id: What to call the run.
        path: A file of `LOGS`. Each event stands there with the schema version it was written in.

    Returns:
        The context that the events must lead to.
    """
    golden = json.loads(path.read_text(encoding="utf-8"))
    with connection:
        connection.execute("DELETE FROM agent_runs WHERE run_id = ?", (run_id,))
        connection.execute(
            "INSERT INTO agent_runs VALUES (?, 'T104', 'running', 'classify_priority', '{}', 0)",
            (run_id,),
        )
        for sequence, (event_schema, event_type, payload) in enumerate(golden["events"], 1):
            connection.execute(
                "INSERT INTO run_log VALUES (?, ?, ?, ?, ?)",
                (run_id, sequence, event_schema, event_type, to_json(payload)),
            )
    context: JSONObject = golden["context"]
    return context
