"""Agents that the sweep is tried on: that of the lessons line by line, and others without a store.

Each of the others makes three calls and keeps by itself how far it has come.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from lesson_lib import agent
from lesson_lib.labs.crash_everywhere import ticket_target
from lesson_lib.labs.crash_everywhere.ticket_target import TICKET_TARGET
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import effects, records, store
from lesson_lib.sweep import Target
from lesson_lib.sweep.hooks import Point, file_operations, lines, statements

STEPS = "abc"
CORE = [module.__file__ or "" for module in (agent, effects, records, store)]


def line_session(folder: Path, session: str, point: Point) -> None:
    """Be the ticket agent, with a point at each line of the core."""
    with lines(point, *CORE):
        ticket_target.session(folder, session, lambda label: None)


def _work(folder: Path, save: Callable[[list[str]], None], point: Point) -> None:
    file, calls = folder / "done.json", Ledger(folder / "calls")
    done = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for step in STEPS[len(done) :]:
        calls.write(step)
        point(f"{step}:called")
        done.append(step)
        save(done)


def replacing(folder: Path, session: str, point: Point) -> None:
    def save(done: list[str]) -> None:
        (folder / "new.json").write_text(json.dumps(done), encoding="utf-8")
        (folder / "new.json").replace(folder / "done.json")

    with file_operations(folder, point):
        _work(folder, save, point)


def overwriting(folder: Path, session: str, point: Point) -> None:
    def save(done: list[str]) -> None:
        (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")

    with file_operations(folder, point):
        _work(folder, save, point)


def forgetful(folder: Path, session: str, point: Point) -> None:
    """Save that a call was made before it is made."""
    file, calls = folder / "done.json", Ledger(folder / "calls")
    done = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for step in STEPS[len(done) :]:
        done.append(step)
        file.write_text(json.dumps(done), encoding="utf-8")
        point(f"{step}:saved")
        calls.write(step)


class Own(sqlite3.Connection):
    """A connection that knows nothing of this package's."""


def with_sqlite(folder: Path, session: str, point: Point) -> None:
    print("an agent may say what it likes")
    calls = Ledger(folder / "calls")
    opened = sqlite3.connect(folder / "own.db", autocommit=True, factory=Own)
    with statements(Own, point), closing(opened) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS done (step)")
        for step in STEPS:
            if not connection.execute("SELECT 1 FROM done WHERE step = ?", (step,)).fetchone():
                calls.write(step)
                connection.execute("INSERT INTO done VALUES (?)", (step,))


def failing(folder: Path, session: str, point: Point) -> None:
    point("a:begin")
    raise ValueError("no paper\nin the printer")


def leaving(folder: Path, session: str, point: Point) -> None:
    point("a:begin")
    raise SystemExit(3)


def endless(folder: Path, session: str, point: Point) -> None:
    point("a:begin")
    threading.Event().wait()


def pointless(folder: Path, session: str, point: Point) -> None:
    """Do all that a sound agent does, and pass no point."""
    replacing(folder, session, lambda label: None)


def with_a_child(folder: Path, session: str, point: Point) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "child").write_text(str(sleeper.pid), encoding="utf-8")
    point(f"read {sys.stdin.read()!r}")


def target(entry: Callable[[Path, str, Point], None]) -> Target:
    def end(folder: Path) -> object:
        if (folder / "done.json").exists():
            return json.loads((folder / "done.json").read_text(encoding="utf-8"))
        with closing(sqlite3.connect(folder / "own.db")) as connection:
            return connection.execute("SELECT * FROM done ORDER BY 1").fetchall()

    return Target(
        f"{__name__}:{entry.__name__}",
        look=lambda folder: {"calls": len(Ledger(folder / "calls").lines())},
        end=end,
        calls=lambda folder: Ledger(folder / "calls").lines(),
    )


LINE_TARGET = replace(TICKET_TARGET, entry=f"{__name__}:line_session")
