"""The experiments of lesson 08: kill the agent or the service, and read the bank's statement."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lesson_lib.errors import RemoteError
from lesson_lib.labs.remote_effects.payment_agent import fee
from lesson_lib.labs.remote_effects.service_process import Service
from lesson_lib.labs.remote_effects.sessions import session_command, worker_command
from lesson_lib.processes import run_child
from lesson_lib.riders.intents import find_intent
from lesson_lib.sqlite import connect


@dataclass(frozen=True)
class Laboratory:
    """An agent's database, made by the first session, and a payment service that runs."""

    database: Path
    service: Service

    def command(self, run_id: str, name: str, way: str, die_at: str = "") -> list[str]:
        """Return the command of one session; see `run_session`."""
        return session_command(self.database, self.service.address, run_id, name, way, die_at)

    def session(self, run_id: str, name: str, way: str, die_at: str = "") -> str:
        """Run one session in a child process and return how it ended."""
        return run_child(self.command(run_id, name, way, die_at)).ended

    def worker(self, name: str, now: datetime, die_at: str = "") -> str:
        """Run a delivery worker in a child process and return how it ended."""
        about = (self.database, self.service.address, name, now, die_at)
        return run_child(worker_command(*about)).ended

    def kill_and_resume(self, point: str, way: str = "intent") -> dict[str, object]:
        """Kill session 1 at a point of the payment, let session 2 go on, and look after each."""
        run_id = f"run-{way}-{point}"
        self.session(run_id, "session-1", way, f"pay_call_out:{point}")
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
            self.service.client.pay(fault, fee(fault))
        except RemoteError as error:
            heard = str(error).partition(":")[0]
        then = len(self.service.paid(fault))
        if fault.startswith("die"):
            self.service.start()
        self.service.client.pay(fault, fee(fault))
        return {
            "fault": fault,
            "client hears": heard,
            "paid then": then,
            "paid after the repeat": len(self.service.paid(fault)),
        }
