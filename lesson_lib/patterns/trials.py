"""The experiments of lesson 11: the same ticket and the same death under each pattern."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from lesson_lib.checkpoints.archive import save_kept
from lesson_lib.crash import die, run_child
from lesson_lib.errors import ChildError, LessonError, UnknownRunError
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.patterns.checkpointing import Checkpoint
from lesson_lib.patterns.ephemeral import Ephemeral
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid
from lesson_lib.patterns.protocol import Pattern, Step, ToolCall, load_or_start, work
from lesson_lib.stores.sqlite import AgentConnection, connect
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

RUN = "run-T104"


class EventSourcingWithoutKeys(EventSourcing):
    """Event sourcing whose log is all that it keeps."""

    def call(self, state: RunState, call: ToolCall) -> JSONValue:
        """Call the tool."""
        return call.function()


PATTERNS: dict[str, Callable[[AgentConnection, str], Pattern]] = {
    "ephemeral": lambda connection, session: Ephemeral(),
    "checkpoint": lambda connection, session: Checkpoint(connection, session, keys=False),
    "checkpoint + keys": Checkpoint,
    "checkpoint + keys + archive": lambda connection, session: Checkpoint(
        connection, session, save=save_kept
    ),
    "event sourcing, no keys": EventSourcingWithoutKeys,
    "event sourcing": EventSourcing,
    "hybrid": Hybrid,
}
QUESTIONS: dict[str, Callable[[Pattern], object]] = {
    "reply": lambda pattern: pattern.load(RUN).context["reply"],
    "priority at version 2": lambda pattern: pattern.at(RUN, 2).context["priority"],
    "why that priority": lambda pattern: pattern.why(RUN, 1),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Be a child process: one session of run T104 under a pattern, perhaps killed."""
    parser = argparse.ArgumentParser(prog="python -m lesson_lib.patterns.trials")
    parser.add_argument("database", type=Path)
    parser.add_argument("pattern", choices=PATTERNS)
    parser.add_argument("session")
    parser.add_argument("die_at", nargs="?")
    options = parser.parse_args(arguments)

    def passing(point: str) -> None:
        if point == options.die_at:
            die("kill")

    tools = Tools(read_runbooks(), witness(options.database))
    with closing(connect(options.database)) as connection:
        pattern = PATTERNS[options.pattern](connection, options.session)
        state = load_or_start(pattern, find_ticket(read_tickets(), "T104"))
        print(work(pattern, state, tools, passing).context["reply"])


def witness(database: Path) -> Ledger:
    """Return the ledger that lies beside a database."""
    return Ledger(database.with_suffix(".txt"))


def session(database: Path, pattern: str, name: str, die_at: str | None = None) -> str:
    """Run one session of run T104 in a child process; return how it ended.

    Args:
        database: The database file; `witness` gives the ledger of its tools.
        pattern: One of `PATTERNS`.
        name: The session's name.
        die_at: The crash point to be killed at, such as `draft_reply:before_save`.

    Raises:
        ChildError: It failed, or never came to `die_at`.
    """
    command = ["-m", "lesson_lib.patterns.trials", str(database), pattern, name]
    end = run_child([*command, die_at] if die_at else command)
    if die_at is not None and end.ended == "finished":
        raise ChildError(f"{name} never came to {die_at}: is the run in {database} a new one?")
    return end.ended


def kill_and_resume(folder: Path, pattern: str, die_at: str) -> dict[str, object]:
    """Kill the first session of run T104, let a second one finish it, and look after each.

    Args:
        folder: Where to put the pattern's database, which must be new.
        pattern: One of `PATTERNS`.
        die_at: See `session`.
    """
    database = folder / f"{pattern}.db"
    session(database, pattern, "session-1", die_at)
    with closing(connect(database)) as connection:
        try:
            survived = f"version {PATTERNS[pattern](connection, 'a look').load(RUN).version}"
        except UnknownRunError:
            survived = "nothing"
    session(database, pattern, "session-2")
    calls = witness(database).lines()
    return {
        "pattern": pattern,
        "survived": survived,
        "tool calls": len(calls),
        "repeated": len(calls) - len(set(calls)),
    }


def audit(folder: Path, pattern: str) -> dict[str, object]:
    """Ask a finished run about its past, as a new process would."""
    answers: dict[str, object] = {"pattern": pattern}
    with closing(connect(folder / f"{pattern}.db")) as connection:
        asked = PATTERNS[pattern](connection, "auditor")
        for question, ask in QUESTIONS.items():
            try:
                answers[question] = ask(asked)
            except LessonError:
                answers[question] = "-"
    return answers


def read_pages(
    pattern: Pattern,
    run_id: str,
    steps: int,
    action: str = "read_page",
    found: Callable[[int], JSONObject] = lambda version: {"cursors": {"page": version}},
) -> RunState:
    """Make a long run: one action again and again, without tools; return its last state.

    Args:
        pattern: How to keep the run.
        run_id: The run; it is started where it is not known.
        steps: How many steps to do.
        action: The action.
        found: What a step finds, from the version that it leads to.
    """
    try:
        state = pattern.load(run_id)
    except UnknownRunError:
        ticket = {"area": "archive", "issue": "read", "outage_minutes": 0, "safety_impact": False}
        state = RunState(run_id, "T900", "running", action, to_json({"ticket": ticket}), 0)
        pattern.start(state)
    for _ in range(steps):
        step = Step(action, found(state.version + 1), "the next in line", action)
        state = pattern.save(state, step)
    return state


if __name__ == "__main__":
    main()
