"""Checks of lesson 09: where state belongs, an upcaster, a checksum that leaves something out."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from lesson_lib.checkpoints.codec import StoredCheckpoint
from lesson_lib.errors import InvalidStateError
from lesson_lib.labs.checkpoint_format.inventory import KINDS, place
from lesson_lib.labs.checkpoint_format.placements import trial
from lesson_lib.labs.checks import exercise, given

WRONG = {  # what the table of the trial does not tell by itself
    ("cursors", "nowhere"): "a new process would read every page again from the first one",
    ("conversation", "checkpoint"): "it grows with every word, and is written whole each time",
    ("documents", "checkpoint"): "all that could be computed again is written each time",
    ("documents", "history"): "what could be computed again is kept for ever",
    ("documents", "effects"): "what could be computed again is kept for ever",
}


hash_here = hash


@exercise(1, "answer the three questions for each kind of state")
def exercise_1(*answers: Any) -> str | None:
    """Place each kind by its answers, in the order of `KINDS`, and crash a run with them."""
    places = {}
    for kind, answer in zip(KINDS, answers, strict=True):
        if not isinstance(answer, tuple) or len(answer) != 3:
            return f"{kind.field} is {answer!r}, wanted three answers in brackets"
        try:
            places[kind.field] = place(*map(given, answer))
        except InvalidStateError as error:
            return f"{kind.field}: {error}"
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = trial(Path(folder), places)
    for kind, row in zip(KINDS, rows, strict=True):
        where, found = places[kind.field], row["after the crash"]
        start = f"the {kind.name} would go to {where!r}, and"
        if (kind.field, where) in WRONG:
            size = row["bytes per checkpoint"]
            cost = f" ({size:,} bytes)" if size else ""
            return f"{start} then {WRONG[kind.field, where]}{cost}"
        if found in ("lost", "out of date"):
            return f"{start} after the crash would be {found}"
        if found == "called twice":
            return f"{start} the tool would be called twice"
        if where == "history" and kind.field != "conversation":
            return f"{start} a new process would have to search all of it to go on"
    return None


@exercise(2, "return the context as one of the next schema version")
def exercise_2(to_next_version: Callable[[dict[str, Any]], Any]) -> str | None:
    """Step up contexts with and without the fields that change."""
    ticket = {"area": "sorting", "issue": "stopped", "outage_minutes": 45, "safety_impact": False}
    rest = {"ticket": ticket, "experimental": {"tone": "calm", "draft": "x"}}
    for context, wanted, what in (
        ({"draft": "Wait."}, {"drafts": ["Wait."]}, "a context with a draft and no confidence"),
        ({"confidence": {"priority": 1}}, {"drafts": []}, "a context without a draft"),
        ({"draft": ""}, {"drafts": [""]}, "a context with an empty draft"),
    ):
        old = rest | deepcopy(context)
        before = deepcopy(old)
        try:
            new = to_next_version(old)
        except Exception as error:  # noqa: BLE001  (it is the learner's code)
            said = str(error).splitlines()[:1]
            return f"{what}: {type(error).__name__}: {''.join(said)}"
        if not isinstance(given(new), dict):
            return f"{what} gives a {type(new).__name__}, wanted a dict"
        if old != before:
            return f"{what} is itself changed: the caller may still need it, so make a new dict"
        if "confidence" in new:
            return f"{what} still has confidence, which the next version removes"
        if "draft" in new:
            return f"{what} still has the field draft, which the next version does not know"
        for name in ("ticket", "experimental"):
            if new.get(name) != rest[name]:
                return f"{what} loses or changes {name}: what does not change is carried along"
        if new.get("drafts") != wanted["drafts"]:
            return f"{what} gives drafts {new.get('drafts')!r}, wanted {wanted['drafts']!r}"
    return None


@exercise(3, "mend the function")
def exercise_3(checksum: Callable[[StoredCheckpoint], str]) -> str | None:
    """Change each value of a row, alone and together, and look for equal checksums."""
    row = StoredCheckpoint("run-T103", 1, 4, "none", b"{}", "")
    first = given(checksum(row))
    if not isinstance(first, str):
        return f"a checksum is text, yours is a {type(first).__name__}"
    if checksum(replace(row)) != first:
        return "two calls give the same row two checksums"
    with patch.object(builtins, "hash", lambda value: ~hash_here(value)):
        if checksum(row) != first:
            return "another process gets another checksum: there hash() begins with another salt"
    changes: dict[str, dict[str, Any]] = {
        "another body": {"body": b"[]"},
        "the same body as another run": {"run_id": "run-T104"},
        "the same body as another version": {"version": 2},
        "the same body under another schema version": {"schema_version": 3},
        "the same body under another compression": {"compression": "gzip"},
    }
    for what, change in changes.items():
        if checksum(replace(row, **change)) == first:
            return f"{what} has the same checksum"
    if checksum(replace(row, sha256=first)) != first:
        return "the checksum depends on sha256, which is not known before"
    twelve = [replace(row, version=v, schema_version=s) for v, s in ((1, 23), (12, 3))]
    if checksum(twelve[0]) == checksum(twelve[1]):
        return "version 1 of schema 23 and version 12 of schema 3 have the same checksum: separate"
    return None
