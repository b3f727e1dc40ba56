"""The child of the crash sweep: one session of a run, which dies at the point it is told."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from lesson_lib import agent, crash
from lesson_lib.json_text import to_json
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite.connection import AgentCursor


def session(folder: Path, name: str, die_at: str | None, how: str) -> None:
    """Start or resume the run of T104 as the package's own child does, and go on to the end.

    The package is wrapped from outside, in this process only. A point lies before and after each
    SQL statement and wherever the agent names one. What the store acknowledged is told outside.

    Args:
        folder: Holds the database, the ledger, what was told, and the points of each session.
        name: The session.
        die_at: The point to die at; None to live.
        how: See `crash.die`.

    """
    told, numbers, passed = Ledger(folder / "told"), count(1), list[str]()

    def keep_points() -> None:
        (folder / f"{name}.points").write_text("\n".join(passed), encoding="utf-8")

    def point(label: str) -> None:
        passed.append(label)
        if label == die_at:
            keep_points()
            crash.die(how)

    def execute(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        statement = f"{next(numbers)} {' '.join(sql.split()[:3])}"
        point(f"before {statement}")
        found = plain_execute(cursor, sql, parameters)
        point(f"after {statement}")
        return found

    def run_next_action(
        *arguments: Any, passing: Callable[[str], None], **options: Any
    ) -> Any:
        def both(label: str) -> None:
            passing(label)
            point(label)

        return plain_run_next_action(*arguments, passing=both, **options)

    def tell(function: str, words: Callable[[Any], str]) -> None:
        plain = getattr(agent, function)

        def telling(*arguments: Any, **options: Any) -> Any:
            result = plain(*arguments, **options)
            told.write(words(result))
            return result

        setattr(agent, function, telling)

    plain_execute, plain_run_next_action = AgentCursor.execute, agent.run_next_action
    AgentCursor.execute = execute  # type: ignore[method-assign, assignment]
    agent.run_next_action = run_next_action  # type: ignore[assignment]
    tell("start_run", lambda state: f"version {state.version}")
    tell("save_checkpoint", lambda state: f"version {state.version}")
    tell("execute_once", lambda got: f"effect {got.idempotency_key} {to_json(got.value)}")
    tell("resume", lambda state: f"resumed {name} at version {state.version}")
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(keep_points)
        at_the_end.enter_context(contextlib.redirect_stdout(io.StringIO()))
        crash.main([str(folder / "agent.db"), str(folder / "ledger"), "T104", name])
