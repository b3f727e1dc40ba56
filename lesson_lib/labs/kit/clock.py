"""The clock of the lessons: it stands still until it is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class HandClock:
    """A clock for `connect(clock=...)` that only moves when it is told to."""

    start = datetime(2026, 1, 5, 8, tzinfo=UTC)

    def __init__(self) -> None:
        """Begin at `start`."""
        self.now = self.start

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def move(self, seconds: float) -> None:
        """Set the clock forward by this many seconds, or back."""
        self.now += timedelta(seconds=seconds)
