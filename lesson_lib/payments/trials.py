"""The experiments of lesson 08: kill the agent or the service, and read the bank's statement."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lesson_lib.crash import run_child
from lesson_lib.errors import RemoteError
from lesson_lib.payments import call_out, delivery
from lesson_lib.payments.client import Service
from lesson_lib.stores.sqlite import connect
from lesson_lib.stores.sqlite.intents import find_intent


@dataclass(frozen=True)
class Trial:
    """An agent's database and a payment service that runs.

    Args:
        database: Made by the first session.
        service: Started already.
    """

    database: Path
    service: Service

    def session(self, run_id: str, name: str, way: str, die_at: str | None = None) -> str:
        """Run one session in a child process and return how it ended; see `call_out.work`."""
        about = (self.database, self.service.address, run_id, name, way, die_at)
        return run_child(call_out.child_command(*about)).ended

    def worker(self, name: str, now: datetime, die_at: str | None = None) -> str:
        """Run a delivery worker in a child process and return how it ended."""
        about = (self.database, self.service.address, name, now, die_at)
        return run_child(delivery.child_command(*about)).ended

    def kill_and_resume(self, point: str, way: str = "intent") -> dict[str, object]:
        """Kill session 1 at a crash point, let session 2 go on, and look after each."""
        run_id = f"run-{way}-{point}"
        self.session(run_id, "session-1", way, point)
        with closing(connect(self.database)) as connection:
            intent = find_intent(connection, f"{run_id}:pay_call_out")
        then = len(self.service.paid(run_id))
        self.session(run_id, "session-2", way)
        return {
            "killed at": point,
            "intent on disk": "none" if intent is None else intent.status,
            "paid then": then,
            "paid in the end": len(self.service.paid(run_id)),
        }

    def fail_and_repeat(self, fault: str) -> dict[str, object]:
        """Let the service fail in one way, then repeat the request with its key."""
        self.service.fail(fault)
        heard = "a receipt"
        try:
            self.service.client.pay(fault, call_out.fee(fault))
        except RemoteError as error:
            heard = str(error).partition(":")[0]
        then = len(self.service.paid(fault))
        if fault.startswith("die"):
            self.service.start()
        self.service.client.pay(fault, call_out.fee(fault))
        return {
            "fault": fault,
            "client hears": heard,
            "paid then": then,
            "paid after the repeat": len(self.service.paid(fault)),
        }
