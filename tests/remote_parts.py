"""What the tests of remote effects share: a service, runs, and children that die at any point."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from lesson_lib import crash
from lesson_lib.json_text import JSONObject
from lesson_lib.model import RunState
from lesson_lib.payments import call_out, delivery
from lesson_lib.payments.client import Payments
from lesson_lib.payments.service import PaymentServer
from lesson_lib.stores.sqlite import AgentConnection, start_run
from lesson_lib.stores.sqlite.connection import AgentCursor

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
CAN_FORK = hasattr(os, "fork")
processes: Any = multiprocessing.get_context("forkserver" if CAN_FORK else "spawn")
if CAN_FORK:
    # For the crash sweep too, which asks for its own when it is imported: the last one counts.
    processes.set_forkserver_preload(
        ["lesson_lib.crashes.sweep", "lesson_lib.payments.call_out", "pytest"]
    )


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        """Return what it says."""
        return self.now

    def move(self, **later: float) -> None:
        """Set it ahead, or back."""
        self.now += timedelta(**later)


def fee(reference: str, cents: int = 12_000) -> JSONObject:
    return {"amount_cents": cents, "payee": "Frost Repairs", "reference": reference}


def begin(connection: AgentConnection, run_id: str = "run-1", action: str = "pay") -> RunState:
    return start_run(
        connection,
        run_id=run_id,
        ticket_id="T1",
        session="s1",
        first_action=action,
        context={"key": f"{run_id}:pay_call_out", "request": fee(run_id)},
    )


@contextmanager
def served(folder: Path, retention: float = 86_400.0) -> Iterator[PaymentServer]:
    """Serve payments from a thread of this process, for what needs no death."""
    with PaymentServer(folder, retention) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def client(server: PaymentServer, patience: float = 10.0) -> Payments:
    return Payments(f"127.0.0.1:{server.server_port}", patience)


def session(module: str, arguments: list[str], die_at: int | None, points: Path) -> None:
    """Be a child: run a module's `main`, and be killed at the point of this number.

    A point lies before and after each SQL statement and each request to the service.
    """
    number = count(1)

    def point(label: str) -> None:
        reached = next(number)
        with points.open("a", encoding="utf-8") as file:
            file.write(f"{reached} {label}\n")
        if reached == die_at:
            crash.die("kill")

    def execute(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        label = " ".join(sql.split()[:3])
        point(f"before {label}")
        found = plain_execute(cursor, sql, parameters)
        point(f"after {label}")
        return found

    def ask(service: Payments, method: str, path: str, *more: Any) -> Any:
        point(f"before {method} {path}")
        answer = plain_ask(service, method, path, *more)
        point(f"after {method} {path}")
        return answer

    plain_execute, plain_ask = AgentCursor.execute, Payments.ask
    AgentCursor.execute = execute  # type: ignore[method-assign, assignment]
    Payments.ask = ask  # type: ignore[method-assign, assignment]
    with contextlib.redirect_stdout(io.StringIO()):
        {"call_out": call_out.main, "delivery": delivery.main}[module](arguments)


def live(module: str, arguments: list[str], points: Path, die_at: int | None = None) -> list[str]:
    """Run a child and return the points it passed."""
    points.unlink(missing_ok=True)
    process = processes.Process(target=session, args=(module, arguments, die_at, points))
    process.start()
    process.join()
    status = process.exitcode
    process.close()
    passed = points.read_text(encoding="utf-8").splitlines()
    assert (status == 0) == (die_at is None), f"ended with {status}, passed {passed[-3:]}"
    return passed
