"""Checks for the exercises: each prints one line, with a hint that depends on what is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lesson_lib.errors import SimulatedCrash
from lesson_lib.model import RunState
from lesson_lib.sqlite import AgentConnection, connect, create_schema, start_run


class _Todo:
    def __repr__(self) -> str:
        return "TODO"


TODO: Final = _Todo()


class NotSolvedError(Exception):
    """The answer is still the stub."""


def exercise(number: int, missing: str) -> Callable[[Callable[..., str | None]], Any]:
    """Make a check of a function that returns a hint, or None for a correct answer.

    Args:
        number: The exercise's number in its lesson.
        missing: What an untouched stub still lacks, as the end of a sentence.
    """

    def decorate(find_hint: Callable[..., str | None]) -> Callable[..., None]:
        @functools.wraps(find_hint)
        def check(*answers: Any) -> None:
            try:
                for answer in answers:
                    given(answer)
                hint = find_hint(*answers)
            except NotSolvedError:
                print(f"Exercise {number}: not solved yet - {missing}")
            except (Exception, SystemExit, SimulatedCrash) as error:  # noqa: BLE001  (it is the learner's code)
                said = str(error).splitlines()[:1]
                print(f"Exercise {number}: not right yet - {type(error).__name__}: {''.join(said)}")
            else:
                print(f"Exercise {number}: {f'not right yet - {hint}' if hint else 'correct'}")

        return check

    return decorate


def given(value: Any) -> Any:
    """Return the value, unless it is the stub's TODO."""
    if value is TODO:
        raise NotSolvedError
    return value


@contextmanager
def scratch_database() -> Iterator[tuple[AgentConnection, Path]]:
    """Give a connection to a new database without runs, and its folder."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with closing(connect(folder / "agent.db")) as connection:
            create_schema(connection)
            yield connection, folder


@contextmanager
def scratch_run() -> Iterator[tuple[AgentConnection, Path]]:
    """Give a connection to a new database with the run `run-T104` in it, and its folder."""
    with scratch_database() as (connection, folder):
        state = RunState.begin("run-T104", "T104", "classify_priority", {})
        start_run(connection, state, session="session-1")
        yield connection, folder
