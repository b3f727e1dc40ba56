"""The trace says what the events say: as a table, in numbers, in a picture, in a file."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lesson_lib.labs.kit.trace import (
    KINDS,
    ToolSummary,
    count_calls,
    export_trace,
    timeline,
    to_frame,
)
from lesson_lib.model import Event

SVG = "{http://www.w3.org/2000/svg}"


def events(text: str) -> list[Event]:
    """Make events from words such as `1 tool_executed lookup`: session, kind, action."""
    rows = [row.split() for row in text.strip().splitlines()]
    return [
        Event("run-T104", number, f"session-{session}", kind, action, "{}", "2026-01-01T00:00:00Z")
        for number, (session, kind, action) in enumerate(rows, 1)
    ]


TWO_SESSIONS = events("""
    1 run_started start
    1 tool_executed lookup
    2 run_resumed resume
    2 tool_reused lookup
    2 checkpoint_saved lookup
    2 tool_executed draft
""")


def test_the_frame_holds_what_can_be_compared_and_no_clock() -> None:
    frame = to_frame(TWO_SESSIONS)
    assert list(frame.columns) == ["seq", "session", "event", "action"]
    assert frame.iloc[3].tolist() == [4, "session-2", "tool_reused", "lookup"]
    assert list(frame["seq"]) == [1, 2, 3, 4, 5, 6]


def test_no_events_make_a_frame_with_the_same_columns() -> None:
    assert list(to_frame([]).columns) == list(to_frame(TWO_SESSIONS).columns)


def test_the_summary_is_counted_from_the_events_of_this_tool() -> None:
    assert count_calls(TWO_SESSIONS, "lookup") == ToolSummary(2, 1, 1)
    assert count_calls(TWO_SESSIONS, "draft") == ToolSummary(1, 1, 0)
    assert count_calls(TWO_SESSIONS, "send") == ToolSummary(0, 0, 0)


def test_a_checkpoint_of_an_action_is_no_attempt_at_its_tool() -> None:
    assert count_calls(events("1 checkpoint_saved lookup"), "lookup") == ToolSummary(0, 0, 0)


def test_the_export_is_utf_8_with_lf(tmp_path: Path) -> None:
    export_trace(to_frame(events("1 run_started größer")), tmp_path / "trace.csv")
    expected = "seq,session,event,action\n1,session-1,run_started,größer\n"
    assert (tmp_path / "trace.csv").read_bytes() == expected.encode()


def test_the_export_reads_back_as_it_was(tmp_path: Path) -> None:
    frame = to_frame(TWO_SESSIONS)
    export_trace(frame, tmp_path / "trace.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "trace.csv"), frame)


def test_the_words_say_what_the_picture_shows() -> None:
    assert timeline(TWO_SESSIONS).alt == (
        "Timeline of 6 events. session-1: 1 run_started start, 2 tool_executed lookup, restart;"
        " session-2: 3 run_resumed resume, 4 tool_reused lookup, 5 checkpoint_saved lookup,"
        " 6 tool_executed draft."
    )


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_each_restart_is_one_dashed_line_with_its_word(sessions: int) -> None:
    kinds = ["run_started start", *["run_resumed resume"] * (sessions - 1)]
    shown = timeline(events("\n".join(f"{n} {kind}" for n, kind in enumerate(kinds, 1))))
    assert shown.svg.count(b"stroke-dasharray") == sessions - 1
    assert shown.svg.count(b"<!-- restart -->") == sessions - 1
    assert shown.alt.count("restart;") == sessions - 1
    for session in range(1, sessions + 1):
        assert b"<!-- session-%d -->" % session in shown.svg


def test_kinds_differ_by_shape_and_each_event_is_drawn_once() -> None:
    root = ET.fromstring(timeline(TWO_SESSIONS).svg)
    axes = next(group for group in root.iter(f"{SVG}g") if group.get("id") == "axes_1")
    shapes: set[str | None] = set()
    drawn = []
    for group in axes.iter(f"{SVG}g"):
        if group.get("id", "").startswith("PathCollection"):
            shapes.update(path.get("d") for path in group.iter(f"{SVG}path"))
            drawn.append(sum(1 for _ in group.iter(f"{SVG}use")))
    counted = Counter(event.event_type for event in TWO_SESSIONS)
    assert drawn == [counted[kind] for kind in KINDS]
    assert len(shapes) == len(KINDS)


def test_the_legend_names_every_kind() -> None:
    svg = timeline(TWO_SESSIONS).svg
    for kind in KINDS:
        assert f"<!-- {kind} -->".encode() in svg


def test_a_kind_of_a_later_lesson_has_a_marker_of_its_own() -> None:
    others = [
        replace(TWO_SESSIONS[0], sequence=n, event_type=f"of_lesson_{n:02}") for n in range(1, 4)
    ]
    svg = timeline(others).svg
    root = ET.fromstring(svg)
    shapes = {
        path.get("d")
        for group in root.iter(f"{SVG}g")
        if group.get("id", "").startswith("PathCollection")
        for path in group.iter(f"{SVG}path")
    }
    assert len(shapes) >= len(others)
    for event in others:
        assert f"<!-- {event.event_type} -->".encode() in svg


def test_the_same_events_make_the_same_bytes() -> None:
    first, second = timeline(TWO_SESSIONS), timeline(TWO_SESSIONS)
    assert first == second
    assert b"dc:date" not in first.svg
