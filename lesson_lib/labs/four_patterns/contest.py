"""The same ticket and the same death under each pattern, and the questions of an auditor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lesson_lib.errors import ChildError, LessonError
from lesson_lib.labs.four_patterns.long_runs import lab_agent
from lesson_lib.labs.four_patterns.stores import Store, open_store
from lesson_lib.ledger import Ledger
from lesson_lib.processes import die, run_child
from lesson_lib.sqlite import connect
from lesson_lib.tickets import Tools, read_runbooks

RUN = "run-T104"
QUESTIONS: dict[str, Callable[[Store], object]] = {
    "reply": lambda store: store.load_state(RUN).context["reply"],
    "priority at version 2": lambda store: store.at(RUN, 2).context["priority"],
    "why that priority": lambda store: store.why(RUN, 1),
}


def main() -> None:
    """Be a child process: one session of run T104 under a pattern, perhaps killed."""
    database, pattern, name, die_at = sys.argv[1:]

    def passing(point: str) -> None:
        if point == die_at:
            die("kill")

    tools = Tools(read_runbooks(), witness(Path(database)))
    with closing(connect(database)) as connection:
        store = open_store(connection, pattern, name)
        state = lab_agent.resume_or_start(store, RUN)
        lab_agent.run_to_end(store, state, tools, passing=passing)


def witness(database: Path) -> Ledger:
    """Return the ledger that lies beside a database."""
    return Ledger(database.with_suffix(".txt"))


def session(database: Path, pattern: str, name: str, die_at: str = "") -> None:
    """Run one session of run T104 in a child process, killed at a crash point if one is given.

    Raises:
        ChildError: It failed, or never came to that point.
    """
    module = "lesson_lib.labs.four_patterns.contest"
    end = run_child(["-m", module, database, pattern, name, die_at])
    if die_at and end.ended == "finished":
        raise ChildError(f"{name} never came to {die_at}: is the run in {database} a new one?")


def kill_and_resume(folder: Path, pattern: str, die_at: str) -> dict[str, object]:
    """Kill the first session of run T104, let a second one finish it, and look after each.

    Args:
        folder: Where to put the pattern's database, which must be new.
        pattern: One of `PATTERNS`.
        die_at: The crash point, such as `draft_reply:before_checkpoint`.
    """
    database = folder / f"{pattern}.db"
    session(database, pattern, "session-1", die_at)
    version = ask(database, pattern, lambda store: store.load_state(RUN).version)
    session(database, pattern, "session-2")
    calls = witness(database).lines()
    return {
        "pattern": pattern,
        "survived": "nothing" if version == "-" else f"version {version}",
        "tool calls": len(calls),
        "repeated": len(calls) - len(set(calls)),
    }


def audit(folder: Path, pattern: str) -> dict[str, object]:
    """Ask a finished run about its past, as a new process would."""
    database = folder / f"{pattern}.db"
    answers = {said: ask(database, pattern, question) for said, question in QUESTIONS.items()}
    return {"pattern": pattern, **answers}


def ask(database: Path, pattern: str, question: Callable[[Store], object]) -> object:
    """Ask a new session; a dash says that it has not kept the answer."""
    with closing(connect(database)) as connection:
        try:
            return question(open_store(connection, pattern, "auditor"))
        except LessonError:
            return "-"


if __name__ == "__main__":
    main()
