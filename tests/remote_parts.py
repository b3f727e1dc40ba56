"""What the tests of remote effects share: a service, runs, and sessions that the sweep kills."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lesson_lib.json_text import JSONObject
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.labs.remote_effects import payment_agent
from lesson_lib.labs.remote_effects.client import Payments
from lesson_lib.labs.remote_effects.service import PaymentServer
from lesson_lib.labs.remote_effects.sessions import run_session
from lesson_lib.model import RunState
from lesson_lib.riders.delivery import RetryPolicy, deliver_due
from lesson_lib.sqlite import AgentConnection, connect, start_run
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sweep.hooks import Point, around, statements

MINUTE, HOUR = 60, 3600
START = HandClock.start


def fee(reference: str, cents: int = 12_000) -> JSONObject:
    return payment_agent.fee(reference) | {"amount_cents": cents}


def begin(connection: AgentConnection, run_id: str = "run-1") -> RunState:
    return start_run(connection, payment_agent.begin(run_id), session="s1")


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


# Entries for the sweep. The folder of one holds the address of a service; its name is the run's.


@contextmanager
def _watched(folder: Path, point: Point) -> Iterator[Any]:
    """Pass a point before and after each SQL statement and each request to the service."""

    def request(service: Payments, method: str, path: str, *_: Any) -> str:
        return f"{method} {path}"

    address = (folder / "address").read_text(encoding="utf-8")
    with (
        statements(AgentCursor, point),
        around(Payments, "ask", point, request),
        closing(connect(folder / "agent.db", clock=HandClock())) as connection,
    ):
        yield connection, Payments(address)


def paying_with_intent(folder: Path, session: str, point: Point) -> None:
    with _watched(folder, point) as (connection, service):
        run_session(connection, service, folder.name, session, "intent", point)


def paying_without_key(folder: Path, session: str, point: Point) -> None:
    with _watched(folder, point) as (connection, service):
        run_session(connection, service, folder.name, session, "person", point)


def delivering(folder: Path, session: str, point: Point) -> None:
    with _watched(folder, point) as (connection, service):
        chance = random.Random(1)
        deliver_due(
            connection,
            service,
            session=session,
            policy=RetryPolicy(),
            chance=chance,
            passing=point,
        )
