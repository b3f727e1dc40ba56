"""Hooks: crash points in running code that does not know of them.

Each hook calls `point(label)` where something happens. That is `Points`, which counts and kills, or
any function: a list's `append`, or one that raises at a label. So whatever `work` does, it dies at
the 77th statement or request:

    with (
        Points(folder / "session-1.points", die_at=77) as point,
        statements(AgentCursor, point),
        around(Service, "ask", point, lambda service, method, path: f"{method} {path}"),
    ):
        work()
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

type Point = Callable[[str], None]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a module or class another value under a name, for the block."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def around(owner: Any, name: str, point: Point, label: Callable[..., str]) -> Iterator[None]:
    """Pass a point before and after each call of a function or a method.

    Args:
        owner: The module or class that is asked for it at each call. Not a built-in class.
        name: Its name there.
        point: Called with `before …` and, if the call returns, with `after …`.
        label: Says what the call is, from its arguments (a method's begin with the object);
            "": no point.
    """
    plain = getattr(owner, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        what = label(*arguments, **options)
        if what:
            point(f"before {what}")
        result = plain(*arguments, **options)
        if what:
            point(f"after {what}")
        return result

    with replaced(owner, name, watched):
        yield


@contextmanager
def statements(cursor: type, point: Point) -> Iterator[None]:
    """Pass a point, such as `before INSERT INTO agent_events`, around each SQL statement.

    Args:
        cursor: A class of cursors or connections written in Python, such as `AgentCursor`.
        point: Called with the first three words.
    """

    def words(_: Any, sql: str, *__: Any) -> str:
        return " ".join(re.sub(r"--.*", "", sql).split()[:3])

    with ExitStack() as hooks:
        for name in ("execute", "executemany", "executescript"):
            hooks.enter_context(around(cursor, name, point, words))
        yield


@contextmanager
def lines(point: Point, *files: str | Path) -> Iterator[None]:
    """Pass a point before each line of these source files, in all threads."""
    names = {str(Path(file).resolve()) for file in files}
    watch, event = sys.monitoring, sys.monitoring.events.LINE
    tool = next(number for number in (3, 4) if watch.get_tool(number) is None)  # nobody's

    def line(code: CodeType, number: int) -> Any:
        if code.co_filename not in names:
            return watch.DISABLE
        point(f"{Path(code.co_filename).name} line {number}")
        return None

    watch.use_tool_id(tool, "crash points")
    watch.register_callback(tool, event, line)
    watch.restart_events()
    watch.set_events(tool, event)
    try:
        yield
    finally:
        watch.set_events(tool, 0)
        watch.register_callback(tool, event, None)
        watch.free_tool_id(tool)


@contextmanager
def file_operations(folder: Path, point: Point) -> Iterator[None]:
    """Pass a point before and after Python opens a file to write, renames or removes one.

    SQLite writes past Python, and a file that stays open is written later: neither is seen here.
    A point is such as `after open agent.json`. What lies outside of the folder is left alone.
    """
    inside = f"{folder.resolve()}{os.sep}"

    def label(name: str, path: Any, *_: Any, **__: Any) -> str:
        where = "" if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
        return f"{name} {where.removeprefix(inside)}" if where.startswith(inside) else ""

    def opening(path: Any, how: str | int = "r", *_: Any, mode: str | int = "r", **__: Any) -> str:
        reads = not {*"wax+"} & {*f"{how}{mode}"}
        if isinstance(how, int):  # the flags of os.open
            reads = not how & (os.O_WRONLY | os.O_RDWR)
        return "" if reads else label("open", path)

    def moving(name: str, source: Any, target: Any, **_: Any) -> str:
        return label(name, target) or label(name, source)

    with ExitStack() as hooks:
        for owner in (builtins, io, os):  # pathlib asks `io`
            hooks.enter_context(around(owner, "open", point, opening))
        for names, told in ((("rename", "replace"), moving), (("remove", "unlink"), label)):
            for name in names:
                hooks.enter_context(around(os, name, point, functools.partial(told, name)))
        yield
