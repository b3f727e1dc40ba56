"""What happens at the same time: a witness is told when tool calls and writes begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import AgentConnection
from lesson_lib.sweep.hooks import around
from lesson_lib.tickets import Tools

WATCHED = (
    (Tools, "lookup_runbook", "tool"),
    (Tools, "draft_reply", "tool"),
    (AgentConnection, "__enter__", "getting the lock"),
    (AgentConnection, "__exit__", "letting it go"),
)
SPANS = {
    "before tool": "tool begin",
    "after tool": "tool end",
    "after getting the lock": "write begin",
    "before letting it go": "write end",
}


@contextmanager
def tell_spans(spans: Path, takes: float) -> Iterator[None]:
    """Let each tool of this process take so many seconds, and tell a witness of tools and writes.

    A span of a write lies inside the time in which its transaction holds the lock.
    """

    def point(name: str) -> None:
        if name in SPANS:
            Ledger(spans).write(SPANS[name])
        if name == "before tool":
            time.sleep(takes)

    with ExitStack() as hooks:
        for owner, name, what in WATCHED:
            hooks.enter_context(around(owner, name, point, partial(_label, what)))
        yield


def most_at_once(spans: Path, kind: str) -> int:
    """Return how many spans of a kind, "tool" or "write", were open at the same time."""
    lines = [line for line in Ledger(spans).lines() if kind in line]
    steps = [1 if line.endswith("begin") else -1 for line in lines]
    return max(accumulate(steps), default=0)


def _label(what: str, *_: Any, **__: Any) -> str:
    return what
