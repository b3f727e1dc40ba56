"""Child processes: started, spoken to, let go together, killed; and how each ended, in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NoReturn, Self, cast

from lesson_lib.errors import ChildError

EXIT_STATUS = 86  # no interpreter or shell uses it for anything else
DEATHS = (EXIT_STATUS, 15) if os.name == "nt" else (EXIT_STATUS, -9)


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


class Child:
    """A Python process that is told a line and answers with lines. It ends with its block."""

    def __init__(self, *arguments: str | Path) -> None:
        """Start it, with the arguments of `python`."""
        # Not a pipe: it would be full one day, and stop the child.
        self._complaints = TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        # -P: a file in the learner's folder must not stand in for a module of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            encoding="utf-8",
            env=os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHON_COLORS": "0"},
        )
        self._was_killed = False
        self._stdin = cast(IO[str], self._process.stdin)
        self._stdout = cast(IO[str], self._process.stdout)

    def read(self) -> str:
        """Wait for its next line; an empty one when there is none any more."""
        return self._stdout.readline().rstrip("\n")

    def tell(self, line: str = "go") -> None:
        """Give it a line to read."""
        with suppress(OSError):  # it has died: `end` says so
            self._stdin.write(f"{line}\n")
            self._stdin.flush()

    def kill(self) -> None:
        """End it at once, without any cleanup of its own."""
        self._was_killed = True
        self._process.kill()

    def end(self) -> ChildEnd:
        """Wait for its end; return how it ended and what it printed that was not read yet.

        Raises:
            ChildError: It failed with an error of its own.
        """
        # Not `communicate`: it would miss what `readline` took from the pipe in advance.
        with suppress(OSError):
            self._stdin.close()
        printed = self._stdout.read()
        status = self._process.wait()
        if status == 0:
            return ChildEnd("finished", printed)
        if status in DEATHS or self._was_killed:
            return ChildEnd("died without cleanup", printed)
        self._complaints.seek(0)
        complaint = self._complaints.read().decode("utf-8", "replace").strip()
        reason = complaint.splitlines() or [f"exit status {status}"]
        raise ChildError(f"the child process failed: {reason[-1]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout, self._complaints):
            with suppress(OSError):
                pipe.close()


def run_child(arguments: Sequence[str | Path]) -> ChildEnd:
    """Run this Python with these arguments, wait for it, and say how it ended.

    Raises:
        ChildError: The child failed with an error of its own.
    """
    with Child(*arguments) as child:
        return child.end()


def run_python(code: str, *arguments: str | Path) -> ChildEnd:
    """Run Python code in a child process, which may `die()`, and say how it ended.

    Args:
        code: The code; it finds the arguments in `sys.argv[1:]`.
        arguments: What the code is given.

    Raises:
        ChildError: The child failed with an error of its own.
    """
    return run_child(["-c", code, *arguments])


def together(commands: Sequence[Sequence[str | Path]]) -> list[ChildEnd]:
    """Start Python processes, wait until each says `ready`, let all go at once, and wait for all.

    Args:
        commands: The arguments of `python` for each of them.

    Raises:
        ChildError: One failed with an error of its own. The others were ended.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(Child(*command)) for command in commands]
        for child in children:
            if child.read() != "ready":
                raise ChildError(f"a child process did not get ready: it {child.end().ended}")
        for child in children:
            child.tell()
        return [child.end() for child in children]
