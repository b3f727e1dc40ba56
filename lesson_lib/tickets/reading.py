"""The tickets and the runbooks, read from their files, or an error that names row and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lesson_lib.errors import TicketDataError
from lesson_lib.tickets.rule import classify

DATA = Path(__file__).parents[2] / "data"
TICKET_COLUMNS = (
    "ticket_id",
    "area",
    "issue",
    "outage_minutes",
    "safety_impact",
    "expected_priority",
)
RUNBOOK_COLUMNS = ("code", "audience", "step")
NOT_UTF_8 = "is not UTF-8: save the file as UTF-8"


@dataclass(frozen=True)
class Ticket:
    """One row of the ticket file. `outage_minutes` is a whole number of minutes."""

    ticket_id: str
    area: str
    issue: str
    outage_minutes: int
    safety_impact: bool
    expected_priority: str


@dataclass(frozen=True)
class Runbook:
    """One row of the runbook file: the step to take, and who takes it."""

    code: str
    audience: str
    step: str


def check_priorities(tickets: Sequence[Ticket]) -> int:
    """Compare every expected priority with the rule and return how many matched: all.

    Raises:
        TicketDataError: A ticket expects another priority. Nothing was stored yet.
    """
    for ticket in tickets:
        found = classify(ticket.outage_minutes, ticket.safety_impact)
        if found != ticket.expected_priority:
            raise TicketDataError(
                f"ticket {ticket.ticket_id} expects the priority {ticket.expected_priority!r}, the"
                f" rule says {found!r}: correct the ticket or the rule before any run starts"
            )
    return len(tickets)


def read_tickets(path: Path = DATA / "facility_tickets.csv") -> list[Ticket]:
    """Read the ticket file, UTF-8 with or without a BOM.

    Raises:
        TicketDataError: The file, a row or a column cannot be trusted.
    """
    tickets: dict[str, Ticket] = {}
    for fail, row in _rows(path, TICKET_COLUMNS):
        if row["ticket_id"] in tickets:
            raise fail("ticket_id", f"{row['ticket_id']!r:.40} stands in an earlier row too")
        if not re.fullmatch("[0-9]{1,9}", row["outage_minutes"]):
            raise fail(
                "outage_minutes", f"{row['outage_minutes']!r:.40} is not a whole number from 0"
            )
        if row["safety_impact"] not in ("yes", "no"):
            raise fail("safety_impact", f"{row['safety_impact']!r:.40} is neither yes nor no")
        if row["expected_priority"] not in ("urgent", "normal"):
            raise fail("expected_priority", f"{row['expected_priority']!r:.40} is no priority")
        tickets[row["ticket_id"]] = Ticket(
            ticket_id=row["ticket_id"],
            area=row["area"],
            issue=row["issue"],
            outage_minutes=int(row["outage_minutes"]),
            safety_impact=row["safety_impact"] == "yes",
            expected_priority=row["expected_priority"],
        )
    return list(tickets.values())


def find_ticket(tickets: Sequence[Ticket], ticket_id: str) -> Ticket:
    """Return the ticket of this id.

    Raises:
        TicketDataError: There is none.
    """
    for ticket in tickets:
        if ticket.ticket_id == ticket_id:
            return ticket
    known = ", ".join(ticket.ticket_id for ticket in tickets)
    raise TicketDataError(f"there is no ticket {ticket_id!r}: choose one of {known}")


def read_runbooks(path: Path = DATA / "runbooks.csv") -> dict[str, Runbook]:
    """Read the runbook file into a dict by code.

    Raises:
        TicketDataError: The file, a row or a column cannot be trusted.
    """
    runbooks: dict[str, Runbook] = {}
    for fail, row in _rows(path, RUNBOOK_COLUMNS):
        if row["code"] in runbooks:
            raise fail("code", f"{row['code']!r:.40} stands in an earlier row too")
        runbooks[row["code"]] = Runbook(**row)
    return runbooks


type _Fail = Callable[[str, str], TicketDataError]


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[_Fail, dict[str, str]]]:
    """Yield each data row with a function that makes an error about one of its columns."""
    number = 1  # the header; spreadsheets count the same way

    def fail(column: str, problem: str) -> TicketDataError:
        return TicketDataError(f"{path}, row {number}, column {column}: {problem}")

    try:
        # surrogateescape: a byte that is not UTF-8 is then found in its row and column.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if any(_undecoded(cell) for cell in header):
                raise fail(columns[0], NOT_UTF_8)
            for column in columns:
                if header.count(column) != 1:
                    raise fail(column, "must stand in the header line, once")
            number = 2
            for cells in reader:
                if len(cells) != len(header):
                    column = header[min(len(cells), len(header) - 1)]
                    raise fail(column, f"the row has {len(cells)} cells, the header {len(header)}")
                row = {column: cells[header.index(column)] for column in columns}
                for column, cell in row.items():
                    if _undecoded(cell):
                        raise fail(column, NOT_UTF_8)
                    if not cell.strip():
                        raise fail(column, "is empty")
                yield fail, row
                number += 1
            if number == 2:
                number = 1
                raise fail(columns[0], "no data row follows the header")
    except (OSError, csv.Error) as error:
        raise fail(columns[0], f"cannot be read: {error}") from error


def _undecoded(cell: str) -> bool:
    return re.search("[\udc80-\udcff]", cell) is not None
