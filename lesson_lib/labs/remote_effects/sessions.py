"""Sessions of the payment agent and delivery workers: here, and in child processes that die."""

from __future__ import annotations

import random
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

from lesson_lib.agent import Passing
from lesson_lib.clock import utc_text
from lesson_lib.errors import KeyBusyError, RemoteError
from lesson_lib.labs.remote_effects.client import Payments, WithoutKeys
from lesson_lib.labs.remote_effects.payment_agent import PaymentService, payment_agent
from lesson_lib.model import RunState
from lesson_lib.processes import die
from lesson_lib.riders.delivery import RetryPolicy, deliver_due
from lesson_lib.riders.intents import create_intents
from lesson_lib.riders.questions import create_questions
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema

MODULE = "lesson_lib.labs.remote_effects.sessions"


def run_session(
    connection: AgentConnection,
    client: Payments,
    run_id: str,
    session: str,
    way: str,
    passing: Passing = lambda point: None,
) -> RunState:
    """Start or resume a run, and go on until it is completed or waits for a person.

    Args:
        connection: An open connection, outside of a transaction.
        client: Of the payment service.
        run_id: The run.
        session: The name of this process life.
        way: `no_key` and `key` pay through a tool, `intent` and `person` with an intent; `no_key`
            and `person` use the interface that takes no keys.
        passing: Called with the name of each crash point.

    Raises:
        KeyBusyError, RemoteError: The service gives no answer; see `intents.settle`.
    """
    for create in (create_schema, create_intents, create_questions):
        create(connection)
    interface = WithoutKeys(client) if way in ("no_key", "person") else client
    service = PaymentService(interface, passing)
    store = SQLiteStore(connection, session)
    agent = payment_agent(store, service, "intent" if way in ("intent", "person") else "tool")
    state = agent.resume_or_start(store, run_id)
    return agent.run_to_end(store, state, service, passing=passing)


def session_command(
    database: Path, address: str, run_id: str, session: str, way: str, die_at: str = ""
) -> list[str]:
    """Return the arguments of `python` for `run_session` in a process that dies at a point."""
    return ["-m", MODULE, "session", str(database), address, run_id, session, way, die_at]


def worker_command(
    database: Path, address: str, session: str, now: datetime, die_at: str = ""
) -> list[str]:
    """Return the arguments of `python` for a delivery worker whose clock says `now`."""
    return ["-m", MODULE, "worker", str(database), address, session, utc_text(now), die_at]


def main(kind: str, database: str, address: str, *how: str) -> None:
    """Be the child: one session of a run, or a worker that tries every command that is due."""
    *about, die_at = how

    def passing(point: str) -> None:
        if point == die_at:
            die("kill")

    client = Payments(address)
    if kind == "session":
        run_id, session, way = about
        with closing(connect(database)) as connection:
            try:
                state = run_session(connection, client, run_id, session, way, passing)
                print("completed" if state.status == "completed" else "waits for a person")
            except (KeyBusyError, RemoteError) as error:
                print("no answer yet:", error)
    else:
        worker, now = about
        with closing(connect(database, clock=lambda: datetime.fromisoformat(now))) as connection:
            chances = {"policy": RetryPolicy(), "chance": random.Random(worker)}
            tried = deliver_due(connection, client, session=worker, passing=passing, **chances)
        print(*tried, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
