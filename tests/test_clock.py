"""Times as text, and a clock that is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lesson_lib.clock import aware, utc_now, utc_text
from lesson_lib.errors import InvalidStateError
from lesson_lib.labs.kit.clock import HandClock


def test_times_are_stored_in_utc_as_text_that_sorts() -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=timezone(timedelta(hours=2)))
    times = [noon - timedelta(seconds=1), noon, noon + timedelta(microseconds=1)]
    texts = [utc_text(moment) for moment in times]
    assert texts[1] == "2026-01-05T10:00:00.000000Z"
    assert sorted(texts) == texts
    assert aware(noon).utcoffset() == utc_now().utcoffset() == timedelta(0)


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(InvalidStateError, match=r"naive time: use datetime\.now\(UTC\)"):
        utc_text(datetime(2026, 1, 5))  # noqa: DTZ001  (that is the point)


def test_a_hand_clock_stands_still_until_it_is_moved() -> None:
    clock = HandClock()
    assert clock() == clock() == datetime(2026, 1, 5, 8, tzinfo=UTC)
    clock.move(90)
    clock.move(-0.5)
    assert clock() - HandClock.start == timedelta(seconds=89.5)
