"""The two tools that the ticket agent calls; each call leaves a line at the witness."""

from __future__ import annotations

from dataclasses import dataclass

from lesson_lib.errors import UnknownRunbookError
from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.tickets.reading import Runbook


@dataclass(frozen=True)
class Tools:
    """The tools an agent may call. Each call leaves one line, its key, in the ledger.

    Args:
        runbooks: The runbooks by code.
        ledger: The witness outside the database.
    """

    runbooks: dict[str, Runbook]
    ledger: Ledger

    def lookup_runbook(self, key: str, code: str) -> JSONObject:
        """Return the runbook of this code as a dict.

        Raises:
            UnknownRunbookError: There is none.
        """
        self.ledger.write(key)
        if code not in self.runbooks:
            raise UnknownRunbookError(
                f"no runbook has the code {code!r}: add a row to runbooks.csv"
            )
        runbook = self.runbooks[code]
        return {"code": code, "audience": runbook.audience, "step": runbook.step}

    def draft_reply(self, key: str, priority: str, step: str) -> str:
        """Return the reply to the person who opened the ticket."""
        self.ledger.write(key)
        return f"Priority: {priority}. Next step: {step}"
