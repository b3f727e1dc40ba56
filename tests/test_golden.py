"""The golden run: T104, a crash after the lookup, a new session; its events and its numbers."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from notebook_runner import printed
from strict_nbval import compare_outputs

from lesson_lib.errors import SimulatedCrash
from lesson_lib.labs.kit.drawing import Picture
from lesson_lib.labs.kit.trace import count_calls, export_trace, timeline, to_frame
from lesson_lib.ledger import Ledger
from lesson_lib.model import Event, RunState
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.tickets import (
    DATA,
    Tools,
    check_priorities,
    read_runbooks,
    read_tickets,
    ticket_agent,
)

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Recovery:
    """What is left of a run that crashed and was resumed."""

    before: RunState
    effects_before: int
    after: RunState
    events: list[Event]
    ledger: Ledger


@pytest.fixture(scope="module")
def recovery(tmp_path_factory: pytest.TempPathFactory) -> Recovery:
    folder = tmp_path_factory.mktemp("golden")
    tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))

    with closing(connect(folder / "agent.db")) as connection:
        create_schema(connection)
        first = SQLiteStore(connection, "session-1")
        state = ticket_agent.start(first, "run-T104")
        state = ticket_agent.run_next_action(first, state, tools)
        with pytest.raises(SimulatedCrash):
            ticket_agent.run_next_action(first, state, tools, crash_after_tool=True)

    with closing(connect(folder / "agent.db")) as connection:
        second = SQLiteStore(connection, "session-2")
        before = second.load_state("run-T104")
        (effects,) = connection.execute("SELECT count(*) FROM tool_effects").fetchone()
        ticket_agent.run_to_end(second, ticket_agent.resume(second, "run-T104"), tools)
        after, events = second.load_state("run-T104"), second.read_events("run-T104")
    return Recovery(before, effects, after, events, tools.ledger)


def test_the_nine_events_are_the_golden_ones(recovery: Recovery, tmp_path: Path) -> None:
    export_trace(to_frame(recovery.events), tmp_path / "trace.csv")
    assert (tmp_path / "trace.csv").read_bytes() == (GOLDEN / "recovery_trace.csv").read_bytes()


def test_the_committed_trace_is_the_golden_one() -> None:
    committed = (DATA / "recovery_trace.csv").read_bytes()
    assert committed == (GOLDEN / "recovery_trace.csv").read_bytes()


def test_lesson_05_ends_with_the_golden_lines() -> None:
    lesson = outputs.read(outputs.NOTEBOOKS / "05_recovery_trace.ipynb")
    said = [printed(cell.outputs) for cell in lesson.cells if cell.get("outputs")]
    golden = (GOLDEN / "lesson_output.txt").read_text(encoding="utf-8")
    pattern = re.escape(golden).replace("<version>", r"\d+\.\d+\+")
    assert re.fullmatch(pattern, said[-1]), said[-1]


def test_the_picture_of_the_readme_is_drawn_from_the_golden_events(recovery: Recovery) -> None:
    drawn = timeline(recovery.events)
    committed = Picture(drawn.alt, (DATA / "recovery_timeline.svg").read_bytes())
    shown = [
        NotebookNode(output_type="display_data", metadata={}, data={"text/html": html})
        for html in (committed._repr_html_(), drawn._repr_html_())
    ]
    assert compare_outputs(shown[:1], shown[1:]) is None


def test_the_numbers_of_the_last_lines_come_from_the_run(recovery: Recovery) -> None:
    tickets, before, after = read_tickets(), recovery.before, recovery.after
    lookup = count_calls(recovery.events, "lookup_runbook")
    executions = recovery.ledger.count("run-T104:lookup_runbook")
    sessions = {event.session for event in recovery.events}
    lines = f"""\
tested Python: <version> | SQLite: <version>
tickets checked: {len(tickets)} | priority rules matched: {check_priorities(tickets)}
before restart: status={before.status} next_action={before.next_action} \
version={before.version} tool_effect_rows={recovery.effects_before}
after restart: status={after.status} next_action={after.next_action or "none"} \
version={after.version}
lookup_runbook: attempts={lookup.attempts} executions={executions} \
saved_results_reused={lookup.saved_results_reused}
durable events: {len(recovery.events)} across {len(sessions)} sessions
final reply: {after.context["reply"]}
"""
    assert lines == (GOLDEN / "lesson_output.txt").read_text(encoding="utf-8")


def test_the_events_and_the_witness_agree(recovery: Recovery) -> None:
    for tool in ("lookup_runbook", "draft_reply"):
        executed = count_calls(recovery.events, tool).executions
        assert executed == recovery.ledger.count(f"run-T104:{tool}") == 1
