"""Which pattern a case needs: the simplest one that has every ability the case asks for."""

from __future__ import annotations

from collections.abc import Mapping, Set

SURVIVES = "survives a death"
ONCE = "repeats no saved tool call"
SHORT = "resumes a long run quickly"
REASONS = "keeps every step with its reason"
SHARED = "lets several machines write"

# From the least complex on. A test compares the abilities with what the contest measures; the last
# pattern is not run on one machine.
LADDER: dict[str, Set[str]] = {
    "ephemeral": set(),
    "checkpoint": {SURVIVES, SHORT},
    "checkpoint + keys": {SURVIVES, SHORT, ONCE},
    "event sourcing": {SURVIVES, ONCE, REASONS},
    "hybrid": {SURVIVES, ONCE, REASONS, SHORT},
    "event sourcing + consensus": {SURVIVES, ONCE, REASONS, SHARED},
}

# What each case of the exercise asks for.
CASES: dict[str, Set[str]] = {
    "handbook": set(),
    "help desk": {SURVIVES},
    "night shift": {SURVIVES, ONCE},
    "claims": {SURVIVES, ONCE, REASONS},
    "payments": {SURVIVES, ONCE, REASONS, SHORT},
    "stock": {SURVIVES, ONCE, REASONS, SHARED},
}


def choose(needs: Set[str]) -> str:
    """Return the least complex pattern that has all these abilities."""
    return next(name for name, abilities in LADDER.items() if needs <= abilities)


def measured(
    killed: Mapping[str, object], asked: Mapping[str, object], times: Mapping[str, float]
) -> set[str]:
    """Return the abilities that a pattern has shown in `kill_and_resume` and `audit`.

    By the times of each pattern that was timed, quickly is in less than a hundredth of what a
    replay of the whole log takes.
    """
    name = str(killed["pattern"])
    own = [time for timed, time in times.items() if name.startswith(timed)]
    shown = {
        SURVIVES: killed["survived"] != "nothing",
        ONCE: killed["repeated"] == 0,
        REASONS: asked["why that priority"] != "-",
        SHORT: any(time * 100 < times["event sourcing"] for time in own),
    }
    return {ability for ability, seen in shown.items() if seen}
