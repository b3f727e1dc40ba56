"""Child processes that are told a line and answer with lines, so that several can act at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self, cast

from lesson_lib.crash import ChildEnd
from lesson_lib.errors import ChildError


class Child:
    """A Python process that is told a line and answers with lines. It ends with its block."""

    def __init__(self, *arguments: str | Path) -> None:
        """Start it, with the arguments of `python`."""
        # Not a pipe: it would be full one day, and stop the child.
        self._complaints = TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-P", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            encoding="utf-8",
            env=os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHON_COLORS": "0"},
        )
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
        self._complaints.seek(0)
        complaint = self._complaints.read().decode("utf-8", "replace")
        if status == 0:
            return ChildEnd("finished", printed)
        if complaint:  # the dead do not complain
            raise ChildError(f"the child process failed: {complaint.strip().splitlines()[-1]}")
        return ChildEnd("died without cleanup", printed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout, self._complaints):
            with suppress(OSError):
                pipe.close()


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
