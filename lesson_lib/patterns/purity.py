"""A watch over a replay: whoever reads the clock, draws lots or reaches outside is caught."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lesson_lib.errors import ReplayError

# Modules whose C functions give another answer each time, or change the world.
OUTSIDE = {"time", "_random", "posix", "nt", "_io", "_socket", "_sqlite3", "sqlite3"}
CLOCKS = {"now", "today", "utcnow"}


@contextmanager
def no_looking_outside() -> Iterator[None]:
    """Raise where code of this block calls a clock, a random generator, a file or a database.

    Every call of a function written in C is looked at (`sys.setprofile`). What is not seen: a
    global variable, the order of a set, what a C library calls by itself, other threads.

    Raises:
        ReplayError: Such a call was about to be made. It was not made.
    """
    before = sys.getprofile()
    sys.setprofile(_watch)
    try:
        yield
    finally:
        sys.setprofile(before)


def _watch(_frame: FrameType, kind: str, called: Any) -> None:
    if kind != "c_call":
        return
    owner = getattr(called, "__self__", None)
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    modules = {getattr(called, "__module__", None), *(each.__module__ for each in kinds)}
    clock = "datetime" in modules and called.__name__ in CLOCKS
    if clock or modules & OUTSIDE:
        raise ReplayError(
            f"the replay called {called.__qualname__}: state must follow from the events alone,"
            " so put the value into the event when it happens"
        )
