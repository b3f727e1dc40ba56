"""Times: aware, in UTC, and stored as text that sorts as they do."""

from __future__ import annotations

from datetime import UTC, datetime

from lesson_lib.errors import InvalidStateError


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(UTC)


def aware(moment: datetime) -> datetime:
    """Return a time in UTC.

    Raises:
        InvalidStateError: The time does not say to which zone it belongs.
    """
    if moment.tzinfo is None:
        raise InvalidStateError("the clock gives a naive time: use datetime.now(UTC)")
    return moment.astimezone(UTC)


def utc_text(moment: datetime) -> str:
    """Return a time as text that sorts as the time does; see `aware` for its error."""
    return aware(moment).isoformat(timespec="microseconds").replace("+00:00", "Z")
