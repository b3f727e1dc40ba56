"""Memory: facts that belong to no run, under keys of their own, for every later run."""

from __future__ import annotations

from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.sqlite import AgentConnection

TABLE = """CREATE TABLE IF NOT EXISTS agent_memory (
    fact_key  TEXT NOT NULL PRIMARY KEY,
    fact_json TEXT NOT NULL CHECK (json_valid(fact_json))
) STRICT"""


def create_memory(connection: AgentConnection) -> None:
    """Create the table of facts where it is missing. No column names a run."""
    with connection:
        connection.execute(TABLE)


def remember(connection: AgentConnection, key: str, fact: JSONValue) -> None:
    """Keep a fact, instead of an older one under the same key."""
    values = (key, to_json(fact, "fact"))
    with connection:
        connection.execute("INSERT OR REPLACE INTO agent_memory VALUES (?, ?)", values)


def recall(connection: AgentConnection, key: str) -> JSONValue:
    """Return the fact of this key, None where there is none."""
    find = "SELECT fact_json FROM agent_memory WHERE fact_key = ?"
    row = connection.execute(find, (key,)).fetchone()
    return None if row is None else from_json(row["fact_json"])
