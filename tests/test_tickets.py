"""The ticket data is as promised, and the reader says where a bad file is bad."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import lesson_lib
from lesson_lib.errors import ChildError, TicketDataError, UnknownRunbookError
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.tickets import (
    DATA,
    Tools,
    check_priorities,
    classify,
    find_ticket,
    read_runbooks,
    read_tickets,
    runbook_code,
)

GOLDEN = Path(__file__).parent / "golden"
HEADER = "ticket_id,area,issue,outage_minutes,safety_impact,expected_priority\n"
ROW = "T1,packing,belt stuck,8,no,normal\n"
NEXT = "T2,packing,{},{},no,normal\n"

# What is wrong with the file: what it holds, then the row and the column that the error names.
BAD: dict[str, tuple[Any, int, str]] = {
    "missing column": (HEADER.replace("safety_impact,", ""), 1, "safety_impact"),
    "column twice": (HEADER.replace("issue", "area") + ROW, 1, "area"),
    "empty file": ("", 1, "ticket_id"),
    "header only": (HEADER, 1, "ticket_id"),
    "unknown safety value": (HEADER + ROW.replace("no,", "maybe,"), 2, "safety_impact"),
    "unknown priority": (HEADER + ROW.replace("normal", "high"), 2, "expected_priority"),
    "negative outage": (HEADER + ROW + NEXT.format("jam", "-1"), 3, "outage_minutes"),
    "outage in words": (HEADER + ROW.replace("8", "eight"), 2, "outage_minutes"),
    "half a minute": (HEADER + ROW.replace("8", "8.5"), 2, "outage_minutes"),
    "outage with a space": (HEADER + ROW.replace("8", " 8"), 2, "outage_minutes"),
    "Arabic digit": (HEADER + ROW.replace("8", "\u0668"), 2, "outage_minutes"),
    "superscript": (HEADER + ROW.replace("8", "\u00b2"), 2, "outage_minutes"),
    "5,000 digits": (HEADER + ROW.replace("8", "8" * 5_000), 2, "outage_minutes"),
    "no outage": (HEADER + ROW.replace("8", ""), 2, "outage_minutes"),
    "blank area": (HEADER + ROW.replace("packing", "  "), 2, "area"),
    "id twice": (HEADER + ROW + ROW, 3, "ticket_id"),
    "short row": (HEADER + ROW + "T2,packing,jam\n", 3, "outage_minutes"),
    "long row": (HEADER + ROW + NEXT.format("jam, and noise", 8), 3, "expected_priority"),
    "blank line": (HEADER + ROW + "\n" + NEXT.format("jam", 8), 3, "ticket_id"),
    "unclosed quote": (HEADER + ROW + NEXT.format('"jam', 8), 3, "ticket_id"),
    "cell beyond csv's limit": (HEADER + ROW + NEXT.format("jam" * 50_000, 8), 3, "ticket_id"),
    "latin-1": ((HEADER + ROW + NEXT.format("Störung", 8)).encode("latin-1"), 3, "issue"),
    "UTF-16": ((HEADER + ROW).encode("utf-16"), 1, "ticket_id"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "row", "column"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_by_file_row_and_column(
    tmp_path: Path, content: str | bytes, row: int, column: str
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TicketDataError) as caught:
        read_tickets(file)
    message = str(caught.value)
    assert message.startswith(f"{file}, row {row}, column {column}: ")
    assert message.isprintable()
    assert len(message) < len(str(file)) + 300


@pytest.mark.parametrize("name", ["absent.csv", "."])
def test_what_is_no_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TicketDataError, match="cannot be read") as caught:
        read_tickets(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("case", ["latin-1", "UTF-16"])
def test_a_wrong_encoding_is_called_so(tmp_path: Path, case: str) -> None:
    file = tmp_path / "tickets.csv"
    file.write_bytes(BAD[case][0])
    with pytest.raises(TicketDataError, match="UTF-8"):
        read_tickets(file)


def test_a_bom_crlf_and_more_columns_in_any_order_are_fine(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    plain.write_bytes((HEADER + ROW.replace("belt stuck", '"belt, stück 🔧"')).encode())
    with plain.open(encoding="utf-8", newline="") as file:
        rows = [[*reversed(row), "note"] for row in csv.reader(file)]
    with other.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, lineterminator="\r\n").writerows(rows)
    assert read_tickets(other) == read_tickets(plain)
    assert read_tickets(plain)[0].issue == "belt, stück 🔧"


def test_a_runbook_code_stands_once(tmp_path: Path) -> None:
    file = tmp_path / "runbooks.csv"
    file.write_text("code,audience,step\na,b,c\na,d,e\n", encoding="utf-8")
    with pytest.raises(TicketDataError, match=r"row 3, column code: 'a'"):
        read_runbooks(file)


def test_six_tickets_hold_the_three_fixed_rows() -> None:
    lines = (DATA / "facility_tickets.csv").read_bytes().splitlines(keepends=True)
    fixed = (GOLDEN / "facility_tickets_known_rows.csv").read_bytes().splitlines(keepends=True)
    assert [lines[0], lines[1], lines[4], lines[5]] == fixed
    assert [t.ticket_id for t in read_tickets()] == ["T101", "T102", "T103", "T104", "T105", "T106"]


def test_the_edges_of_the_rule_are_in_the_data() -> None:
    by_outage = {
        t.outage_minutes: t.expected_priority for t in read_tickets() if not t.safety_impact
    }
    assert (by_outage[44], by_outage[45]) == ("normal", "urgent")
    shortest = min(read_tickets(), key=lambda ticket: ticket.outage_minutes)
    assert (shortest.safety_impact, shortest.expected_priority) == (True, "urgent")


@pytest.mark.parametrize(
    ("minutes", "safety", "priority"),
    [(0, False, "normal"), (44, False, "normal"), (45, False, "urgent"), (0, True, "urgent")],
)
def test_urgent_means_safety_or_45_minutes(minutes: int, safety: bool, priority: str) -> None:
    assert classify(minutes, safety) == priority


def test_every_ticket_has_a_runbook_whatever_its_priority() -> None:
    codes = {
        runbook_code(t.area, priority) for t in read_tickets() for priority in ("normal", "urgent")
    }
    assert codes == set(read_runbooks())


def test_the_step_of_t104_is_the_fixed_one() -> None:
    ticket = find_ticket(read_tickets(), "T104")
    assert read_runbooks()[runbook_code(ticket.area, "urgent")].step == (
        "Check the gateway heartbeat, then ask a technician to inspect the sensor."
    )


def test_the_data_is_cc0() -> None:
    assert "CC0 1.0" in (DATA / "LICENSE").read_text(encoding="utf-8")


def test_an_unknown_ticket_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TicketDataError, match="'T999': choose one of T101, T102"):
        find_ticket(read_tickets(), "T999")


def test_a_tool_call_leaves_its_key_in_the_ledger_even_when_it_fails(tmp_path: Path) -> None:
    tools = Tools(read_runbooks(), Ledger(tmp_path / "ledger.txt"))
    assert tools.draft_reply("k1", "normal", "Wait.") == "Priority: normal. Next step: Wait."
    with pytest.raises(UnknownRunbookError, match="'attic-urgent'"):
        tools.lookup_runbook("k2", "attic-urgent")
    assert tools.ledger.lines() == ["k1", "k2"]


def test_all_six_priorities_match_the_rule() -> None:
    assert check_priorities(read_tickets()) == 6


def test_a_mismatch_names_the_ticket_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, data, out = tmp_path / "lesson_lib", tmp_path / "data", tmp_path / "out"
    shutil.copytree(Path(lesson_lib.__file__).parent, package)
    shutil.copytree(DATA, data)
    out.mkdir()
    tickets = data / "facility_tickets.csv"
    text = tickets.read_text(encoding="utf-8")
    tickets.write_text(text.replace("44,no,normal", "44,no,urgent"), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ChildError, match=r"ticket T102 expects .* 'urgent'"):
        run_agent_in_child(out / "agent.db", out / "ledger.txt", "T104", "session-1")
    assert list(out.iterdir()) == []
