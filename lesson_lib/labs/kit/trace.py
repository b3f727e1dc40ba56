"""The trace of a run: its events as a table, a summary, a timeline figure and a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lesson_lib.labs.kit.drawing import (
    BLACK,
    BLUE,
    GREEN,
    PALE,
    PURPLE,
    VERMILION,
    YELLOW,
    Picture,
    picture,
)
from lesson_lib.model import Event

KINDS = {
    "run_started": (BLACK, "s"),
    "checkpoint_saved": (BLUE, "D"),
    "tool_executed": (VERMILION, "o"),
    "run_resumed": (GREEN, "^"),
    "tool_reused": (PURPLE, "X"),
}
OTHER_COLOUR, OTHER_MARKERS = YELLOW, "vP*hp<>d"


@dataclass(frozen=True)
class ToolSummary:
    """How often a tool was asked for, really executed, and answered from a saved result."""

    attempts: int
    executions: int
    saved_results_reused: int


def to_frame(events: Sequence[Event]) -> pd.DataFrame:
    """Return events as a DataFrame with the columns seq, session, event, action.

    Times and details stay out: they differ from run to run, and a trace is there to be compared.
    """
    return pd.DataFrame(
        [(e.sequence, e.session, e.event_type, e.action) for e in events],
        columns=["seq", "session", "event", "action"],
    )


def count_calls(events: Sequence[Event], tool_name: str) -> ToolSummary:
    """Count what the events tell of one tool. A witness outside must confirm `executions`."""
    kinds = [event.event_type for event in events if event.action == tool_name]
    executions, reused = kinds.count("tool_executed"), kinds.count("tool_reused")
    return ToolSummary(executions + reused, executions, reused)


def export_trace(trace: pd.DataFrame, path: Path) -> None:
    """Write the trace as CSV, UTF-8 with LF line ends on every system."""
    trace.to_csv(path, index=False, encoding="utf-8", lineterminator="\n")


def timeline(events: Sequence[Event]) -> Picture:
    """Draw the events in order: a row per session, a marker per kind, a dashed line per restart."""
    sessions = list(dict.fromkeys(event.session for event in events))
    restarts = [b.sequence for a, b in pairwise(events) if a.session != b.session]
    figure = Figure(figsize=(9, 1.9 + 0.6 * len(sessions)), layout="constrained")
    axes = figure.add_subplot()
    others = dict.fromkeys(e.event_type for e in events if e.event_type not in KINDS)
    extra = {kind: (OTHER_COLOUR, m) for kind, m in zip(others, cycle(OTHER_MARKERS), strict=False)}
    for kind, (colour, marker) in (KINDS | extra).items():
        chosen = [event for event in events if event.event_type == kind]
        axes.scatter(
            [event.sequence for event in chosen],
            [sessions.index(event.session) for event in chosen],
            s=130,
            c=colour,
            marker=marker,
            edgecolors="black",
            label=kind,
            zorder=3,
        )
    for event in events:
        axes.annotate(
            event.action.replace("_", "\n"),
            (event.sequence, sessions.index(event.session)),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=8,
        )
    for sequence in restarts:
        axes.axvline(sequence - 0.5, color="black", linestyle="--", linewidth=1.5)
        axes.text(sequence - 0.45, -0.62, "restart", fontsize=9, style="italic")
    axes.set_xticks([event.sequence for event in events])
    axes.set_yticks(range(len(sessions)), sessions)
    axes.set_ylim(len(sessions) - 0.2, -0.8)
    axes.set_xlim(0.4, len(events) + 0.6)
    axes.set_xlabel("sequence of the event")
    axes.grid(axis="y", color=PALE)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(KINDS), fontsize=8, frameon=False)
    return picture(figure, _in_words(events))


def _in_words(events: Sequence[Event]) -> str:
    words, session = [], ""
    for event in events:
        if event.session != session:
            words.append(f"{'restart; ' if session else ''}{event.session}:")
            session = event.session
        words.append(f"{event.sequence} {event.event_type} {event.action},")
    return f"Timeline of {len(events)} events. " + " ".join(words).rstrip(",") + "."
