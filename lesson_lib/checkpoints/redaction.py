"""Redaction: what looks like a secret is removed before it is saved."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from lesson_lib.errors import InvalidStateError
from lesson_lib.json_text import JSONValue, to_json
from lesson_lib.store import Rider, Saving

PATTERNS = {
    "token": re.compile(r"\bbearer:?\s+[\w.~+/=-]{8,}", re.IGNORECASE | re.ASCII),
    "API key": re.compile(
        r"\b(?:(?:sk|pk|rk|xox[abp])[-_]|gh[oprsu]_|github_pat_|AKIA|AIza)[\w-]{12,}", re.ASCII
    ),
    # Bounded repeats: a long text without an @ must not take long.
    "e-mail address": re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"),
    # 13 to 19 digits, or groups of them as they stand on a card; the check digit decides.
    "card number": re.compile(
        r"(?<![0-9])[2-6](?:[0-9]{12,18}|[0-9]{3}(?:[\s.-]{1,3}[0-9]{4}){3}"
        r"|[0-9]{3}[\s.-]{1,3}[0-9]{6}[\s.-]{1,3}[0-9]{5})(?![0-9])"
    ),
}


class Redact(Rider):
    """Redacts each context before it is saved, and what the step tells to the riders after it.

    What the tools return is saved before the checkpoint, and does not pass through here.
    """

    def prepare(self, saving: Saving) -> Saving:
        """Replace the secrets that `PATTERNS` knows; see `redact`."""
        context_json = to_json(redact(dict(saving.after.context)), "context")
        if (step := saving.step) is not None:
            step = replace(
                step,
                found=redact(step.found),
                because=redact(step.because),
                appended=redact({name: [*more] for name, more in step.appended.items()}),
            )
        return replace(saving, after=replace(saving.after, context_json=context_json), step=step)


def redact(value: JSONValue) -> JSONValue:
    """Return a JSON value with each secret that `PATTERNS` knows replaced by its kind.

    Best is what never comes into a context; this is the net below.

    Raises:
        InvalidStateError: Two names of one object would become the same.
    """
    if isinstance(value, dict):
        clean = {redact(name): redact(item) for name, item in value.items()}
        if len(clean) < len(value):
            raise InvalidStateError("two names of an object become one when redacted: rename them")
        return clean
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _redact_text(value)
    if type(value) is int and redact(str(value)) != str(value):
        return redact(str(value))  # a card number that came as a number
    return value


def _redact_text(text: str) -> str:
    """Replace until nothing changes: what is left of one secret may be the start of another."""
    clean = text
    for kind, pattern in PATTERNS.items():
        clean = pattern.sub(partial(_replacement, kind), clean)
    return text if clean == text else _redact_text(clean)


def _replacement(kind: str, found: re.Match[str]) -> str:
    if kind == "card number" and not _has_check_digit(found.group()):
        return found.group()
    return f"[{kind} removed]"


def _has_check_digit(text: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1, Luhn)."""
    backwards = [int(digit) for digit in reversed(re.sub("[^0-9]", "", text))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in backwards[1::2]]
    return (sum(backwards[::2]) + sum(doubled)) % 10 == 0
