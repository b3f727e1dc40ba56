"""Crash points: counted as a process passes them, and the one at which it dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Self

from lesson_lib.processes import die


class Points:
    """Counts the points that this process passes, and dies at one of them.

    It is called with the label of each point. A label that comes again gets a number, such as
    `before COMMIT #2`, so every point of a run has a name of its own.

    Args:
        file: Where the labels are kept, a line each, when the process dies or the block ends.
        die_at: The number of a point, from 1, or its label; None to live.
    """

    def __init__(self, file: Path, die_at: int | str | None = None) -> None:
        """Begin to count."""
        self.passed: list[str] = []
        self._file, self._die_at = file, die_at
        self._seen: Counter[str] = Counter()

    def __call__(self, label: str) -> None:
        """Pass the point, or die there."""
        self._seen[label] += 1
        if self._seen[label] > 1:
            label = f"{label} #{self._seen[label]}"
        self.passed.append(label)
        if self._die_at in (label, len(self.passed)):
            self._keep()
            die("kill")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep()

    def _keep(self) -> None:
        self._file.write_text("\n".join(self.passed), encoding="utf-8")


def read_points(file: Path) -> list[str]:
    """Return the labels that a process passed, in order; none if it never came to an end."""
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
