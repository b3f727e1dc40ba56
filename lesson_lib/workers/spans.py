"""What takes its time, told to a witness: begin and end of tool calls and of write transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.tickets import Tools


@dataclass(frozen=True)
class SlowTools(Tools):
    """Tools that take their time, in seconds, and tell a witness when a call begins and ends."""

    takes: float
    spans: Ledger

    def lookup_runbook(self, key: str, code: str) -> JSONObject:
        """See `Tools`."""
        with self._call():
            return super().lookup_runbook(key, code)

    def draft_reply(self, key: str, priority: str, step: str) -> str:
        """See `Tools`."""
        with self._call():
            return super().draft_reply(key, priority, step)

    @contextmanager
    def _call(self) -> Iterator[None]:
        self.spans.write("tool begin")
        try:
            time.sleep(self.takes)
            yield
        finally:
            self.spans.write("tool end")


def watch_writes(connection: AgentConnection, spans: Ledger) -> None:
    """Tell a witness when each write transaction has the lock, and before it lets go."""
    inside = False

    def before(statement: str) -> None:
        nonlocal inside
        ends = statement in ("COMMIT", "ROLLBACK")
        if connection.in_transaction and inside == ends:
            inside = not ends
            spans.write(f"write {'end' if ends else 'begin'}")

    connection.set_trace_callback(before)


def most_at_once(spans: Ledger, kind: str) -> int:
    """Return how many spans of a kind, "tool" or "write", were open at the same time."""
    steps = [1 if line == f"{kind} begin" else -1 for line in spans.lines() if kind in line]
    return max(accumulate(steps), default=0)
