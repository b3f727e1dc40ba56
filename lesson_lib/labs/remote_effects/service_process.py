"""The payment service's process: started, told to fail, ended; and the bank's statement."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Self

from lesson_lib.errors import ChildError
from lesson_lib.json_text import JSONObject
from lesson_lib.labs.remote_effects.accounts import BANK
from lesson_lib.labs.remote_effects.client import Payments
from lesson_lib.ledger import Ledger
from lesson_lib.processes import Child

DAY = timedelta(hours=24)


class Service:
    """The service's process. Its files outlive it, so it can be started again after a death.

    Args:
        folder: Where the service keeps its files; made if it is missing.
        retention: How long it remembers a key.
    """

    def __init__(self, folder: Path, retention: timedelta = DAY) -> None:
        """Prepare; `start` starts the process."""
        self.folder, self.retention, self.later = folder, retention, timedelta()
        self._process: Child | None = None
        self.address = ""

    @property
    def bank(self) -> Ledger:
        """The bank's statement, a line for each payment and each refund: the witness."""
        return Ledger(self.folder / BANK)

    def start(self) -> Self:
        """Start the process, in place of one that is there; it gets a new address.

        Raises:
            ChildError: It did not start.
        """
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        times = [str(span.total_seconds()) for span in (self.retention, self.later)]
        # The process ends when its standard input does, so none outlives its lesson.
        self._process = Child("-m", "lesson_lib.labs.remote_effects.service", self.folder, *times)
        port = self._process.read()
        if not port:
            with self._process as process:
                raise ChildError(f"the payment service {process.end().ended} as it started")
        self.address = f"127.0.0.1:{port}"
        return self

    def stop(self) -> None:
        """End the process at once, as a crash would: its files have to bear that."""
        if self._process is not None:
            self._process.__exit__()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def client(self) -> Payments:
        """A client for the process that runs now."""
        return Payments(self.address)

    def paid(self, reference: str) -> list[str]:
        """Return the names of a reference's lines in the bank's statement, such as `payment-1`."""
        lines = [line.split(" ") for line in self.bank.lines()]
        return [name for name, *about, _ in lines if " ".join(about) == reference]

    def fail(self, *faults: str) -> None:
        """Let the next payments go wrong, in this order, and none after; see `FAULTS`."""
        self._control({"faults": list(faults)})

    def await_slow(self, count: int = 1) -> None:
        """Wait until so many payments that were told to be slow are in progress."""
        self._control({"await_slow": count})

    def go_on(self) -> None:
        """Let slow payments go on, and wait until they are made."""
        self._control({"go_on": True})

    def move_clock(self, later: timedelta) -> None:
        """Set the service's clock ahead."""
        self.later += later
        self._control({"later": later.total_seconds()})

    def _control(self, order: JSONObject) -> None:
        answer = Payments(self.address, patience=60.0).ask("POST", "/control", order)
        if answer.status != 200:
            raise ChildError(f"the payment service did not obey: {answer.value}")
