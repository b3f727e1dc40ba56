"""A worker in a child process of its own: it may die or pause at a crash point, or claim nothing.

A paused process stops as a whole. Here one thread stands still at the crash point, so the one that
renews is stopped as well: a hook makes it wait.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path

from lesson_lib import workers
from lesson_lib.errors import LessonError
from lesson_lib.labs.several_workers.overlap import tell_spans
from lesson_lib.ledger import Ledger
from lesson_lib.processes import die
from lesson_lib.riders.claims import create_claims
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema
from lesson_lib.sweep.hooks import around
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent


def command(database: Path, ledger: Path, worker: str, **options: object) -> list[str]:
    """Return the command of a worker process, for `processes.Child` or `processes.together`.

    Args:
        database: The database file.
        ledger: The witness file of the tools.
        worker: The worker's name.
        options: Those of `main`, such as `lease=0.3` or `die_at=7`.
    """
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    module = "lesson_lib.labs.several_workers.worker_process"
    return ["-m", module, str(database), str(ledger), worker, *flags]


def main(arguments: Sequence[str] | None = None) -> None:
    """Be a worker process: get ready, wait for a line, work until no unfinished run is left."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.labs.several_workers.worker_process", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("worker", help="its name")
    parser.add_argument("--lease", type=float, default=30.0, help="in seconds")
    parser.add_argument("--takes", type=float, default=0.0, help="how long a tool takes, seconds")
    parser.add_argument(
        "--spans", type=Path, default=os.devnull, help="where to tell what begins and ends"
    )
    parser.add_argument("--die-at", type=int, help="which crash point is the last, counted from 1")
    parser.add_argument("--pause-at", help="the crash point at which to wait for a line")
    parser.add_argument("--unclaimed", help="do one action of this run, without a claim")
    options = parser.parse_args(arguments)
    points, awake = count(1), threading.Lock()

    def passing(point: str) -> None:
        if point == options.pause_at:
            with awake:
                print("paused", flush=True)
                _wait_for_a_line()
        # After a death at `tool_ran` the tool runs again: no claim closes that window.
        if not point.endswith(":tool_ran") and next(points) == options.die_at:
            die("kill")

    def pause(point: str) -> None:
        with awake:
            pass

    tools, lease = Tools(read_runbooks(), Ledger(options.ledger)), timedelta(seconds=options.lease)
    with closing(connect(options.database)) as connection:
        create_schema(connection)
        create_claims(connection)
        if options.unclaimed:
            _act(connection, options.unclaimed, options.worker, tools)
            return
        print("ready", flush=True)
        _wait_for_a_line()
        with (
            around(workers, "renew", pause, lambda *_: "renew"),
            tell_spans(options.spans, options.takes),
        ):
            workers.work(
                connection, options.worker, ticket_agent, tools, lease=lease, passing=passing
            )


def _act(connection: AgentConnection, run_id: str, session: str, tools: Tools) -> None:
    """Resume a run, get ready, wait for a line, perform one action, and say how that ended."""
    store = SQLiteStore(connection, session)
    state = ticket_agent.resume(store, run_id)
    print("ready", flush=True)
    _wait_for_a_line()
    try:
        print("saved version", ticket_agent.run_next_action(store, state, tools).version)
    except LessonError as error:
        print(f"refused: {type(error).__name__}")


def _wait_for_a_line() -> None:
    if not sys.stdin.readline():  # the parent has died
        die("kill")


if __name__ == "__main__":
    main()
