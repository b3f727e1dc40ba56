"""The guards that the lessons are about, one module a lesson, and how each is taken away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A guard that is taken away: `old`, once in a file of `lesson_lib`, becomes `new`."""

    guard: str
    file: str
    old: str
    new: str
