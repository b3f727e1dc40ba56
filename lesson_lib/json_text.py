"""Values as JSON text and back: whole, or not at all.

Python's `json` changes values in silence: NaN becomes a word that is not JSON, the keys 1 and "1"
become one, a tuple comes back as a list. A checkpoint must not do that, so such values are refused
before anything is written.
"""

from __future__ import annotations

import json
import math
from typing import Any

from lesson_lib.errors import JSONValueError

type JSONValue = Any  # None, bool, int, float, str, list, dict: decoded JSON has no fixed shape
type JSONObject = dict[str, JSONValue]

DEEPEST = 100


def to_json(value: object, name: str = "value") -> str:
    """Return the JSON text of `value`, keys sorted: equal values of equal types, equal text.

    Args:
        value: None, bool, int (64 bits), float (finite), str, or a list or str-keyed dict of these.
        name: What the value is called in an error's path, as in `context.ticket.seen_at`.

    Raises:
        JSONValueError: Something in `value` would not survive the round trip.
    """
    checked = _checked(value, name, 0)
    return json.dumps(checked, ensure_ascii=False, allow_nan=False, sort_keys=True)


def from_json(text: str) -> JSONValue:
    """Return the value that `text` holds.

    Raises:
        ValueError: `text` is not JSON as RFC 8259 has it (NaN is not), or holds a number that
            no float can hold, or is nested too deep, or an object names something twice: the one
            who wrote it and the one who reads it might take different values.
    """

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    def finite(digits: str) -> float:
        return float(digits) if math.isfinite(float(digits)) else refuse(digits)

    def once(pairs: list[tuple[str, JSONValue]]) -> JSONObject:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("an object names something twice")
        return found

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("the value is nested too deep") from None


def _checked(value: Any, path: str, depth: int) -> Any:
    """Return a copy of a value that JSON can hold: another thread may change the value itself."""
    # Exact types: a subclass (numpy.float64, an Enum) would come back as its plain base.
    kind = type(value)
    if depth > DEEPEST:
        raise JSONValueError(f"{path[:80]}… is nested deeper than {DEEPEST} levels: flatten it")
    if value is None or kind is bool:
        return value
    if kind is str:
        _check_text(value, path)
    elif kind is int:
        if not -(2**63) <= value < 2**63:
            raise JSONValueError(f"{path} does not fit into 64 bits: store it as text")
    elif kind is float:
        if not math.isfinite(value):
            raise JSONValueError(f"{path} is {value}, which JSON cannot hold: use null")
    elif kind is list:
        return [_checked(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value.copy())]
    elif kind is dict:
        copy = value.copy()
        for key in copy:
            if type(key) is not str:
                raise JSONValueError(
                    f"{path} has the key {key!r} of type {type(key).__name__}, and JSON would"
                    f" turn it into text: use str({key!r})"
                )
            _check_text(key, f"{path} key")
            copy[key] = _checked(copy[key], f"{path}.{key}", depth + 1)
        return copy
    else:
        raise JSONValueError(
            f"{path} is a {kind.__name__}, which does not come back from JSON as it was:"
            " convert it to text, a number, a list or a dict first"
        )
    return value


def _check_text(text: str, path: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise JSONValueError(
            f"{path} holds a lone surrogate at character {error.start}: it is half of a"
            " character and no UTF-8 file can hold it"
        ) from None
