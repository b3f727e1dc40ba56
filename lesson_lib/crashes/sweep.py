"""Killing the agent at every step of the running code, and what each death leaves."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, groupby
from pathlib import Path
from typing import Any

from lesson_lib import agent, crash
from lesson_lib.errors import ChildError
from lesson_lib.json_text import to_json
from lesson_lib.ledger import Ledger
from lesson_lib.show import TABLES, rows_on_disk
from lesson_lib.stores.sqlite.connection import AgentCursor

type Rows = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Outcome:
    """What a death left on disk, what the next session repeated, and whether the end is the same.

    `version` is None where no run is stored yet. `repeated` names the tools that really ran more
    than once, by the ledger. `recovery` holds the crash points that the last session passed.
    """

    number: int
    point: str
    version: int | None
    events: int
    effects: int
    repeated: tuple[str, ...]
    same_end: bool
    recovery: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class GoodDay:
    """A run that nobody disturbed: where its files are, its crash points, the rows it left."""

    folder: Path
    points: tuple[str, ...]
    rows: Rows


def session(folder: Path, name: str, die_at: str | None, how: str) -> None:
    """Be a child: start or resume the run of T104, and go on to the end or to a crash point.

    The package is wrapped from outside, in this process only. A crash point lies before and after
    each SQL statement that is executed, and wherever the agent names one. What the store
    acknowledged is told outside, as a client would remember it.

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

    def run_next_action(*arguments: Any, passing: Callable[[str], None], **options: Any) -> Any:
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


def live(folder: Path, name: str, die_at: str | None = None, how: str = "kill") -> list[str]:
    """Run a session in a child process and return the crash points that it passed.

    Raises:
        ChildError: The child did not die at `die_at`, or died without being asked to.
    """
    folder.mkdir(exist_ok=True)
    nursery = _nursery()
    assert nursery.stdin
    assert nursery.stdout
    try:
        nursery.stdin.write(json.dumps([str(folder), name, die_at, how]) + "\n")
        nursery.stdin.flush()
        answer = nursery.stdout.readline()
        if not answer:
            raise ChildError("the process that starts the sessions has died: try again")
    except (
        BaseException
    ):  # an interrupt: the answer that comes later must not be taken for the next
        _nursery.cache_clear()
        _end(nursery)
        raise
    died = answer != "0\n"
    file = folder / f"{name}.points"
    passed = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if died != (die_at is not None) or (died and passed[-1:] != [die_at]):
        raise ChildError(
            f"{name} was to {'live' if die_at is None else f'die at {die_at!r}'}, and did not"
        )
    return passed


@cache
def _nursery() -> subprocess.Popen[str]:
    """Start the process that has imported the package already and has a child for each session."""
    nursery = subprocess.Popen(
        [sys.executable, "-P", "-m", "lesson_lib.crashes.sweep"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    atexit.register(_end, nursery)  # it ends too when this process is killed and its input with it
    return nursery


def _end(nursery: subprocess.Popen[str]) -> None:
    # Not killed: a session that lives on would write into the files of the next one.
    with contextlib.suppress(BrokenPipeError):
        nursery.communicate()


def main() -> None:
    """Be the nursery: read one session after the other, and answer each with its exit status."""
    if sys.argv[1:]:
        folder, *others = json.loads(sys.argv[1])
        session(Path(folder), *others)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the nursery
    for line in sys.stdin:
        if not hasattr(os, "fork"):
            command = [sys.executable, "-P", "-m", "lesson_lib.crashes.sweep", line]
            status = subprocess.run(command, check=False).returncode
        elif (child := os.fork()) == 0:
            try:
                folder, *others = json.loads(line)
                session(Path(folder), *others)
                os._exit(0)
            except BaseException:  # noqa: BLE001  (the child says why, and ends)
                traceback.print_exc()
                os._exit(1)
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def good_day(folder: Path) -> GoodDay:
    """Run T104 without a crash, in a child, and return what it passes and what it leaves.

    Args:
        folder: For its files; what is in it goes.
    """
    _empty(folder)
    return GoodDay(folder, tuple(live(folder, "session-1")), rows_left(folder))


def kill_and_resume(whole: GoodDay, point: str, *later: str) -> Outcome:
    """Kill a session at a point, look at the disk, let the next session finish, and compare.

    Args:
        whole: The run without a crash.
        point: Where session-1 dies.
        later: Where session-2, session-3, ... die; the last session lives. The files of all are
            left in the folder `killed` beside that of the run without a crash.

    Raises:
        ChildError: A session did not come to its point, or the last one could not finish the run.
    """
    if point not in whole.points:
        raise ChildError(f"no run comes to {point!r}: choose one of the good day's points")
    folder = whole.folder.with_name("killed")
    _empty(folder)
    for number, die_at in enumerate((point, *later, None), start=1):
        recovery = live(folder, f"session-{number}", die_at)
        if number == 1:
            left = rows_left(folder)
    calls, end = Ledger(folder / "ledger").lines(), rows_left(folder)
    return Outcome(
        number=whole.points.index(point) + 1,
        point=point,
        version=left["agent_runs"][0][5] if left["agent_runs"] else None,
        events=len(left["agent_events"]),
        effects=len(left["tool_effects"]),
        repeated=tuple(sorted({key.split(":")[1] for key in calls if calls.count(key) > 1})),
        same_end=all(end[name] == whole.rows[name] for name in ("agent_runs", "tool_effects")),
        recovery=tuple(recovery),
    )


def rows_left(folder: Path) -> Rows:
    """Return the rows that a new process finds, none where there is no table yet."""
    try:
        return rows_on_disk(folder / "agent.db")
    except sqlite3.OperationalError as error:
        if str(error) != f"no such table: {TABLES[0]}":
            raise
        return {name: [] for name in TABLES}


def _empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def kill_everywhere(whole: GoodDay, every: int = 1) -> list[Outcome]:
    """Kill a session at each crash point, and return what each death left and repeated.

    Args:
        whole: The run without a crash.
        every: Of the points that have no name and are at no COMMIT, take each so-many-th only.
    """
    return [
        kill_and_resume(whole, point)
        for number, point in enumerate(whole.points)
        if number % every == 0 or "COMMIT" in point or ":" in point
    ]


def stretches(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one row for each stretch of crash points that left and repeated the same.

    Args:
        outcomes: In the order of their crash points.
    """
    alike = groupby(outcomes, lambda o: (o.version, o.events, o.effects, o.repeated, o.same_end))
    groups = [list(group) for _, group in alike]
    return [
        {
            "from": group[0].number,
            "to": group[-1].number,
            "version": group[0].version,
            "events": group[0].events,
            "saved results": group[0].effects,
            "repeated": ", ".join(group[0].repeated) or "nothing",
            "same end": group[0].same_end,
        }
        for group in groups
    ]


if __name__ == "__main__":
    main()
