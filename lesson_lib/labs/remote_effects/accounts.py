"""What the payment service remembers: an answer for each key, and the bank's statement."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.ledger import Ledger

BANK = "bank.txt"
NO_SUCH_KEY = "No payment is known under this key"
TABLE = """CREATE TABLE IF NOT EXISTS payments (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    key      TEXT UNIQUE,            -- NULL: there was none, or it is forgotten
    request  TEXT NOT NULL,
    status   INTEGER,                -- NULL: in progress
    body     TEXT,
    answered REAL                    -- in seconds
) STRICT"""


@dataclass(frozen=True)
class Reply:
    """What a request is answered with."""

    status: int
    body: JSONValue
    headers: dict[str, str] = field(default_factory=dict)


class Problem(Exception):  # noqa: N818  (it is an answer)
    """A request that is answered with a problem body (RFC 9457)."""

    def __init__(self, status: int, title: str) -> None:
        """Say what is wrong with it."""
        super().__init__(title)
        headers = {"Retry-After": "1"} if status in (409, 503) else {}
        self.reply = Reply(status, {"status": status, "title": title}, headers)


class Accounts:
    """A row for each payment, and the bank's statement.

    A payment has happened when, and only when, the bank's statement has its line. Its row is
    written before, as a reservation of the key, and gets the answer after.

    Args:
        folder: Holds both files.
        retention: How long a key is remembered after its answer, in seconds.
        clock: The time, in seconds.
    """

    def __init__(self, folder: Path, retention: float, clock: Callable[[], float]) -> None:
        """Open the files, and settle what a process that died has left open."""
        self.bank, self.retention, self.clock = Ledger(folder / BANK), retention, clock
        self.lock = threading.Lock()
        self.rows = sqlite3.connect(folder / "service.db", autocommit=True, check_same_thread=False)
        self.rows.row_factory = sqlite3.Row
        self.rows.execute("PRAGMA journal_mode = WAL")
        self.rows.execute(TABLE)
        for row in self.rows.execute("SELECT * FROM payments WHERE status IS NULL").fetchall():
            if f"payment-{row['number']}" in self._statement():
                body = receipt(row["number"], from_json(row["request"]))
                self.record(row["number"], 201, body)
            else:
                self.rows.execute("DELETE FROM payments WHERE number = ?", (row["number"],))

    def reserve(self, key: str | None, request: JSONObject) -> tuple[int, Reply | None]:
        """Take a number for a new payment, or give the answer that its key got before.

        Raises:
            Problem: 422 if the key came with another request, 409 while that one is in progress.
        """
        text = to_json(request)
        # Under one lock: of two requests with one key, one makes the row, the other finds it.
        with self.lock:
            row = self._row(key)
            if row is None:
                sql = "INSERT INTO payments (key, request) VALUES (?, ?)"
                return int(self.rows.execute(sql, (key, text)).lastrowid or 0), None
        if row["request"] != text:
            raise Problem(422, "This key was used before, with another request")
        return row["number"], answer_of(row)

    def find(self, key: str) -> Reply:
        """Return the answer that the first request with this key got, or raise 404 or 409."""
        with self.lock:
            row = self._row(key)
        if row is None:
            raise Problem(404, NO_SUCH_KEY)
        return answer_of(row)

    def pay(self, number: int, request: JSONObject) -> None:
        """Move the money: from here on the payment has happened."""
        self.bank.write(f"payment-{number} {request['reference']} {request['amount_cents']}")

    def record(self, number: int, status: int, body: JSONObject) -> Reply:
        """Keep the answer, and return it."""
        with self.lock:
            self.rows.execute(
                "UPDATE payments SET status = ?, body = ?, answered = ? WHERE number = ?",
                (status, to_json(body), self.clock(), number),
            )
        return Reply(status, body)

    def payments(self, reference: str) -> list[JSONObject]:
        """Return what was paid under a reference and not paid back, oldest first."""
        with self.lock:
            rows = self.rows.execute("SELECT * FROM payments ORDER BY number").fetchall()
        lines = self._statement()
        receipts = [
            receipt(row["number"], from_json(row["request"]))
            for row in rows
            if f"payment-{row['number']}" in lines and f"refund-{row['number']}" not in lines
        ]
        return [paid for paid in receipts if paid["reference"] == reference]

    def refund(self, payment_id: object) -> Reply:
        """Pay back, once: a refund names the payment that it undoes, and so needs no key."""
        with self.lock:
            lines = self._statement()
            if not isinstance(payment_id, str) or not lines.get(payment_id, "").startswith("pay"):
                raise Problem(404, "There is no such payment")
            refund_id = payment_id.replace("payment", "refund")
            if refund_id not in lines:
                self.bank.write(lines[payment_id].replace("payment", "refund", 1))
        return Reply(201, {"refund_id": refund_id})

    def _statement(self) -> dict[str, str]:
        return {line.split()[0]: line for line in self.bank.lines()}

    def _row(self, key: str | None) -> Any:
        self.rows.execute(
            "UPDATE payments SET key = NULL WHERE key IS NOT NULL AND answered <= ?",
            (self.clock() - self.retention,),
        )
        return self.rows.execute("SELECT * FROM payments WHERE key = ?", (key,)).fetchone()


def receipt(number: int, request: JSONObject) -> JSONObject:
    """Return the body of the answer to a payment that happened."""
    return {"payment_id": f"payment-{number}"} | request


def answer_of(row: sqlite3.Row) -> Reply:
    """Return the answer that a row keeps, or raise 409 while there is none."""
    if row["status"] is None:
        raise Problem(409, "The first request with this key is still in progress")
    return Reply(row["status"], from_json(row["body"]), {"Idempotent-Replayed": "true"})


def checked(request: JSONObject) -> JSONObject:
    """Return the request if it asks for a payment, or raise 400."""
    kinds = {name: type(value) for name, value in request.items()}
    wanted = {"amount_cents": int, "payee": str, "reference": str}
    if kinds != wanted or request["amount_cents"] < 1:
        raise Problem(400, "A payment has amount_cents (1 or more), payee and reference")
    return request
