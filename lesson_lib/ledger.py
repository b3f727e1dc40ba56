"""The witness: a file outside the database that gets one line for each real tool call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ledger:
    """An append-only file of tool calls.

    The state database says what the agent believes; the ledger says what happened. It stands for
    the world outside: the bank, the mail server, the sensor.

    Args:
        path: The file, made at the first line.
    """

    path: Path

    def write(self, line: str) -> None:
        """Append one line, in one write, so that two processes never mix theirs."""
        # On Windows, a file that is not opened as binary gets CR LF for each LF.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self.path, flags, 0o644)
        try:
            os.write(descriptor, f"{_one_line(line)}\n".encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[str]:
        """Return the lines written so far, oldest first."""
        try:
            return self.path.read_bytes().decode().split("\n")[:-1]
        except FileNotFoundError:
            return []

    def count(self, line: str) -> int:
        """Return how often exactly this line was written."""
        return self.lines().count(_one_line(line))


def _one_line(line: str) -> str:
    return line.replace("\n", " ")
