"""What the payment service remembers: an answer for each key, and the bank's statement."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.ledger import Ledger

BANK = "bank.txt"
LIMIT_CENTS = 100_000
NO_SUCH_KEY = "No payment is known under this key"
TABLE = """CREATE TABLE IF NOT EXISTS payments (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    key         TEXT UNIQUE,            -- NULL: there was none, or it is forgotten
    fingerprint TEXT NOT NULL,
    request     TEXT NOT NULL,
    status      INTEGER,                -- NULL: in progress
    body        TEXT,
    answered    REAL                    -- in seconds
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


class Books:
    """A row for each payment, and the bank's statement.

    A payment has happened when, and only when, the bank's statement has its line. Its row is
    written before, as a reservation of the key, and gets the answer after.

    Args:
        folder: Holds both files.
        retention: How long a key is remembered after its answer, in seconds.
        clock: The time, in seconds.
    """

    def __init__(self, folder: Path, retention: float, clock: Callable[[], float]) -> None:
        """Open the books, and settle what a process that died has left open."""
        self.bank, self.retention, self.clock = Ledger(folder / BANK), retention, clock
        self.lock = threading.Lock()
        self.rows = sqlite3.connect(folder / "service.db", autocommit=True, check_same_thread=False)
        self.rows.row_factory = sqlite3.Row
        self.rows.execute("PRAGMA journal_mode = WAL")
        self.rows.execute(TABLE)
        for row in self.rows.execute("SELECT * FROM payments WHERE status IS NULL").fetchall():
            self.settle(row["number"])

    def reserve(self, key: str | None, request: JSONObject) -> tuple[int, Reply | None]:
        """Take a number for a new payment, or give the answer that its key got before.

        Raises:
            Problem: 422 if the key came with another request, 409 while that one is in progress.
        """
        text = to_json(request)
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        # Under one lock: of two requests with one key, one makes the row, the other finds it.
        with self.lock:
            self._forget_old_keys()
            row = self._row(key)
            if row is None:
                new = self.rows.execute(
                    "INSERT INTO payments (key, fingerprint, request) VALUES (?, ?, ?)",
                    (key, fingerprint, text),
                )
                return int(new.lastrowid or 0), None
        if row["fingerprint"] != fingerprint:
            raise Problem(422, "This key was used before, with another request")
        return row["number"], answer_of(row)

    def find(self, key: str) -> Reply:
        """Return the answer that the first request with this key got.

        Raises:
            Problem: 404 if there was none, 409 while it is in progress.
        """
        with self.lock:
            self._forget_old_keys()
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

    def settle(self, number: int) -> None:
        """Give a payment without an answer the one that the bank's statement tells."""
        query = "SELECT * FROM payments WHERE number = ? AND status IS NULL"
        with self.lock:
            row = self.rows.execute(query, (number,)).fetchone()
        if row is None:
            return
        if self.has(f"payment-{row['number']}"):
            self.record(number, 201, receipt(number, from_json(row["request"])))
        else:
            with self.lock:
                self.rows.execute("DELETE FROM payments WHERE number = ?", (number,))

    def payments(self, reference: str) -> list[JSONObject]:
        """Return what was paid under a reference and not paid back, oldest first."""
        with self.lock:
            rows = self.rows.execute("SELECT * FROM payments ORDER BY number").fetchall()
        receipts = [receipt(row["number"], from_json(row["request"])) for row in rows]
        names = {line.split()[0] for line in self.bank.lines()}
        paid = {name for name in names if name.replace("payment", "refund") not in names}
        return [r for r in receipts if r["reference"] == reference and r["payment_id"] in paid]

    def refund(self, payment_id: object) -> Reply:
        """Pay back, once: a refund names the payment that it undoes, and so needs no key."""
        with self.lock:
            lines = {line.split()[0]: line for line in self.bank.lines()}
            if not isinstance(payment_id, str) or not lines.get(payment_id, "").startswith("pay"):
                raise Problem(404, "There is no such payment")
            refund_id = payment_id.replace("payment", "refund")
            if refund_id not in lines:
                self.bank.write(lines[payment_id].replace("payment", "refund", 1))
        return Reply(201, {"refund_id": refund_id})

    def has(self, name: str) -> bool:
        """Tell whether the bank's statement has a line of this name."""
        return any(line.split()[0] == name for line in self.bank.lines())

    def _row(self, key: str | None) -> Any:
        return self.rows.execute("SELECT * FROM payments WHERE key = ?", (key,)).fetchone()

    def _forget_old_keys(self) -> None:
        self.rows.execute(
            "UPDATE payments SET key = NULL WHERE key IS NOT NULL AND answered <= ?",
            (self.clock() - self.retention,),
        )


def receipt(number: int, request: JSONObject) -> JSONObject:
    """Return the body of the answer to a payment that happened."""
    return {"payment_id": f"payment-{number}"} | request


def answer_of(row: sqlite3.Row) -> Reply:
    """Return the answer that a row keeps.

    Raises:
        Problem: 409, there is none yet.
    """
    if row["status"] is None:
        raise Problem(409, "The first request with this key is still in progress")
    return Reply(row["status"], from_json(row["body"]), {"Idempotent-Replayed": "true"})


def checked(request: JSONObject) -> JSONObject:
    """Return the request if it asks for a payment.

    Raises:
        Problem: 400, it does not.
    """
    kinds = {name: type(value) for name, value in request.items()}
    if kinds != {"amount_cents": int, "payee": str, "reference": str}:
        raise Problem(400, "A payment has amount_cents (a whole number), payee and reference")
    if request["amount_cents"] < 1:
        raise Problem(400, "amount_cents must be 1 or more")
    return request
