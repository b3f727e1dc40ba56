"""A watch over a replay: who reads the clock, asks chance or reaches outside is caught."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lesson_lib.errors import ReplayError

# Modules whose C functions give another answer each time, or change the world.
OUTSIDE = {"time", "_random", "posix", "nt", "_io", "_socket", "_sqlite3", "sqlite3"}
CLOCKS = {"now", "today", "utcnow"}
HARMLESS = {"fspath", "StringIO", "BytesIO"}


def complaint[S, E](events: Iterable[E], apply: Callable[[S | None, E], S]) -> str | None:
    """Return what an `apply` called that it must not call, None where a replay is in order."""
    state = None
    try:
        with no_looking_outside():
            for event in events:
                state = apply(state, event)
    except ReplayError as error:
        return str(error).partition(":")[0]
    return None


@contextmanager
def no_looking_outside() -> Iterator[None]:
    """Stop code of this block that calls a clock, a random generator, a file or a database.

    Every call of a function written in C is looked at (`sys.setprofile`), which is slow: for tests.
    What is not seen: a global variable, the order of a set, a C type that is called
    (`io.FileIO`), what a C library calls by itself, other threads, all after the first such call.

    Raises:
        ReplayError: The call, which was not made. Again at the end, if the block caught it.
    """
    seen: list[ReplayError] = []

    def watch(frame: FrameType, kind: str, called: Any) -> None:
        if kind == "c_call" and _reaches_outside(called):
            seen.append(
                ReplayError(
                    f"the replay called {called.__qualname__}: state must follow from the events"
                    " alone, so put the value into the event when it happens"
                )
            )
            raise seen[0]

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


def _reaches_outside(called: Any) -> bool:
    owner = getattr(called, "__self__", None)
    if called.__name__ in HARMLESS or type(owner).__name__ in HARMLESS:
        return False
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    modules = {getattr(called, "__module__", None), *(each.__module__ for each in kinds)}
    return bool(modules & OUTSIDE) or ("datetime" in modules and called.__name__ in CLOCKS)
