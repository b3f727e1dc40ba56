"""Golden logs: what older versions of this package wrote, kept in `data/event_logs`."""

from __future__ import annotations

import json
from pathlib import Path

from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.sqlite import AgentConnection
from lesson_lib.tickets import DATA

LOGS = DATA / "event_logs"


def put_golden_log(connection: AgentConnection, run_id: str, path: Path) -> JSONObject:
    """Write the events of a file of `LOGS` as they were written then, each with its version.

    A run of that name that is there already goes first, with its log.

    Returns:
        The context that the events must lead to.
    """
    golden = json.loads(path.read_text(encoding="utf-8"))
    with connection:
        connection.execute("DELETE FROM agent_runs WHERE run_id = ?", (run_id,))
        run = (run_id, "T104", "running", "classify_priority", "{}", 0)
        connection.execute("INSERT INTO agent_runs VALUES (?, ?, ?, ?, ?, ?)", run)
        for sequence, (event_schema, event_type, payload) in enumerate(golden["events"], 1):
            event = (run_id, sequence, event_schema, event_type, to_json(payload))
            connection.execute("INSERT INTO run_log VALUES (?, ?, ?, ?, ?)", event)
    context: JSONObject = golden["context"]
    return context
