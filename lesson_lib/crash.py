"""Dying for real: a child process that stops at a named point, without any cleanup."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lesson_lib import agent
from lesson_lib.errors import ChildError
from lesson_lib.ledger import Ledger
from lesson_lib.stores.sqlite import connect, create_schema
from lesson_lib.tickets import Tools, check_priorities, find_ticket, read_runbooks, read_tickets

EXIT_STATUS = 86  # no interpreter or shell uses it for anything else


@dataclass(frozen=True)
class ChildEnd:
    """How a child process ended, in words, and what it printed."""

    ended: str
    printed: str


def die(how: str = "exit") -> NoReturn:  # pragma: no cover (the dead do not report)
    """End this process at once: no `finally`, no `atexit`, no flush of the database.

    Args:
        how: "exit" stops from within (`os._exit`); "kill" is the signal of `kill -9`
            (on Windows, TerminateProcess).
    """
    sys.stdout.flush()
    if how == "kill":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    os._exit(EXIT_STATUS)


def run_python(code: str, *arguments: str | Path) -> ChildEnd:
    """Run Python code in a child process, which may `die()`, and say how it ended.

    Args:
        code: The code; it finds the arguments in `sys.argv[1:]`.
        arguments: What the code is given.

    Raises:
        ChildError: The child failed with an error of its own.
    """
    return run_child(["-c", code, *map(str, arguments)])


def run_agent_in_child(
    database: Path,
    ledger: Path,
    ticket_id: str,
    session: str,
    *,
    die_at: str | None = None,
    how: str = "exit",
) -> ChildEnd:
    """Start or resume the run of a ticket in a child process and go on to the end.

    Args:
        database: The database file.
        ledger: The witness file.
        ticket_id: The ticket, such as `T104`.
        session: The child's session name.
        die_at: The crash point to die at, such as `lookup_runbook:before_checkpoint`;
            None to live.
        how: See `die`.

    Raises:
        ChildError: The child failed, or never came to `die_at`.
    """
    command = ["-m", "lesson_lib.crash", str(database), str(ledger), ticket_id, session]
    if die_at is not None:
        command += ["--die-at", die_at, "--how", how]
    end = run_child(command)
    if die_at is None and end.ended != "finished":
        raise ChildError(f"the child process was not asked to die, and {end.ended}")
    return end


def run_child(arguments: Sequence[str]) -> ChildEnd:
    """Run this Python with these arguments, wait for it, and say how it ended.

    Raises:
        ChildError: The child failed with an error of its own.
    """
    # -P: a file in the learner's folder must not stand in for a module of the same name.
    child = subprocess.run(
        [sys.executable, "-P", *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHON_COLORS": "0"},
    )
    if child.returncode == 0:
        return ChildEnd("finished", child.stdout)
    if child.returncode in (EXIT_STATUS, -9) or (os.name == "nt" and child.returncode == 15):
        return ChildEnd("died without cleanup", child.stdout)
    reason = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
    raise ChildError(f"the child process failed: {reason[-1]}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the child of `run_agent_in_child`: one session of a run."""
    parser = argparse.ArgumentParser(prog="python -m lesson_lib.crash", description=main.__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("ticket_id")
    parser.add_argument("session")
    parser.add_argument("--die-at", help="the crash point, such as lookup_runbook:tool_ran")
    parser.add_argument("--how", choices=("exit", "kill"), default="exit")
    options = parser.parse_args(arguments)
    passed: list[str] = []

    def passing(point: str) -> None:
        passed.append(point)
        if point == options.die_at:
            die(options.how)

    # Everything that can be wrong with the data is found before anything is stored.
    tickets, runbooks = read_tickets(), read_runbooks()
    check_priorities(tickets)
    ticket = find_ticket(tickets, options.ticket_id)
    tools = Tools(runbooks, Ledger(options.ledger))
    with closing(connect(options.database)) as connection:
        create_schema(connection)
        state = agent.resume_or_start(connection, ticket, options.session)
        state = agent.run_to_end(connection, state, options.session, tools, passing=passing)
    if options.die_at is not None:
        sys.exit(f"{options.session} never came to {options.die_at}; it passed {', '.join(passed)}")
    print(state.context["reply"])


if __name__ == "__main__":
    main()
