"""A watch over a replay: who reads the clock, asks chance or reaches outside is caught."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lesson_lib.errors import ReplayError

# Modules whose C functions give another answer each time, or change the world.
OUTSIDE = {"time", "_random", "posix", "nt", "_io", "_socket", "_sqlite3", "sqlite3"}
CLOCKS = {"now", "today", "utcnow"}
HARMLESS = {"fspath", "StringIO", "BytesIO"}


@contextmanager
def no_looking_outside() -> Iterator[None]:
    """Raise where code of this block calls a clock, a random generator, a file or a database.

    Every call of a function written in C is looked at (`sys.setprofile`). What is not seen: a
    global variable, the order of a set, a C type that is called (`io.FileIO`), what a C library
    calls by itself, other threads. After the first such call nothing is watched any more.

    Raises:
        ReplayError: Such a call was about to be made. It was not made. Raised at the end of the
            block too, if the block caught it.
    """
    seen: list[ReplayError] = []

    def watch(frame: FrameType, kind: str, called: Any) -> None:
        try:
            _watch(frame, kind, called)
        except ReplayError as error:
            seen.append(error)
            raise

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # it would run finalisers of others under this watch
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    if seen:
        raise seen[0]


def _watch(_frame: FrameType, kind: str, called: Any) -> None:
    if kind != "c_call":
        return
    owner = getattr(called, "__self__", None)
    if called.__name__ in HARMLESS or type(owner).__name__ in HARMLESS:
        return
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    modules = {getattr(called, "__module__", None), *(each.__module__ for each in kinds)}
    clock = "datetime" in modules and called.__name__ in CLOCKS
    if clock or modules & OUTSIDE:
        raise ReplayError(
            f"the replay called {called.__qualname__}: state must follow from the events alone,"
            " so put the value into the event when it happens"
        )
