"""What a recovery says: what it refused and why, where it went on, what must be done again."""

from __future__ import annotations

from dataclasses import dataclass

from lesson_lib.model import RunState
from lesson_lib.recovery.trust import Refused


@dataclass(frozen=True)
class Report:
    """What a recovery found and did.

    Args:
        run_id: The run.
        step: One of `ladder.STEPS`, "effects first" or "update first".
        state: What to go on with; None when the run must not go on now.
        chosen: The version whose content was taken; None for none.
        refused: The checkpoints that were not trusted, each with its reason.
        redo: The actions that were done after `chosen` and must be done again.
        reused: The keys whose saved results the redone actions get.
        reason: Why the run must not go on, or what could not be rebuilt.
    """

    run_id: str
    step: str
    state: RunState | None
    chosen: int | None = None
    refused: tuple[Refused, ...] = ()
    redo: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        """Return the report as sentences, one a line."""
        lines = [f"refused version {r.version}: {r.reason}" for r in self.refused]
        lines.append(f"{self.run_id}: {self.step}")
        if self.chosen is not None and self.state is not None:
            lines[-1] += f", version {self.chosen}; it is at version {self.state.version} now"
        for name, found in (("to redo", self.redo), ("reused", self.reused)):
            if found:
                lines.append(f"{name}: {', '.join(found)}")
        return "\n".join([*lines, self.reason] if self.reason else lines)
