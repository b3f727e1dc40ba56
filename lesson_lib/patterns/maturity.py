"""Which pattern a case needs: the simplest one that has every ability the case asks for."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

SURVIVES = "survives a death"
ONCE = "repeats no saved tool call"
SHORT = "resumes a long run quickly"
REASONS = "keeps every step with its reason"
SHARED = "lets several machines write"

# From the least complex on. A test compares the abilities with what the trials measure; the last
# pattern is not run on one machine.
LADDER: dict[str, frozenset[str]] = {
    "ephemeral": frozenset(),
    "checkpoint": frozenset({SURVIVES, SHORT}),
    "checkpoint + keys": frozenset({SURVIVES, SHORT, ONCE}),
    "event sourcing": frozenset({SURVIVES, ONCE, REASONS}),
    "hybrid": frozenset({SURVIVES, ONCE, REASONS, SHORT}),
    "event sourcing + consensus": frozenset({SURVIVES, ONCE, REASONS, SHARED}),
}


@dataclass(frozen=True)
class Case:
    """Something to be built, in words, and the abilities it asks for."""

    words: str
    needs: frozenset[str]


CASES = {
    "handbook": Case(
        "answers one question from a handbook; if it dies, the person asks again", frozenset()
    ),
    "help desk": Case(
        "a dialogue over days; its tools only read, so a repeated call does no harm",
        frozenset({SURVIVES}),
    ),
    "night shift": Case(
        "works for hours and pages technicians, who should be woken once",
        frozenset({SURVIVES, ONCE}),
    ),
    "claims": Case(
        "decides in a few steps; an auditor asks years later why; its tools pay",
        frozenset({SURVIVES, ONCE, REASONS}),
    ),
    "payments": Case(
        "a million steps with audit and payments, and back within a second",
        frozenset({SURVIVES, ONCE, REASONS, SHORT}),
    ),
    "stock": Case(
        "agents on three sites change one plan, with audit; no change may be lost",
        frozenset({SURVIVES, ONCE, REASONS, SHARED}),
    ),
}


def choose(needs: Set[str]) -> str:
    """Return the least complex pattern that has all these abilities."""
    return next(name for name, abilities in LADDER.items() if needs <= abilities)


def lacking(pattern: str, needs: Set[str]) -> list[str]:
    """Return which of these abilities a pattern lacks."""
    return sorted(needs - LADDER[pattern])


def measured(
    killed: Mapping[str, object], asked: Mapping[str, object], times: Mapping[str, float]
) -> frozenset[str]:
    """Return the abilities that a pattern has shown.

    Args:
        killed: Its row of `trials.kill_and_resume`.
        asked: Its row of `trials.audit`.
        times: How long a resume of a long run takes, for each pattern that was timed. Quickly is
            in less than a hundredth of what a replay of the whole log takes.
    """
    name = str(killed["pattern"])
    own = [time for timed, time in times.items() if name.startswith(timed)]
    shown = {
        SURVIVES: killed["survived"] != "nothing",
        ONCE: killed["repeated"] == 0,
        REASONS: asked["why that priority"] != "-",
        SHORT: any(time * 100 < times["event sourcing"] for time in own),
    }
    return frozenset(ability for ability, seen in shown.items() if seen)
