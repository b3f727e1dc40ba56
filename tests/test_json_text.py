"""Values as JSON text: what Python's `json` changes in silence is refused, the rest comes back."""

from __future__ import annotations

import enum
import json
import math
import random
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from lesson_lib.errors import JSONValueError, LessonError
from lesson_lib.json_text import DEEPEST, from_json, to_json

Colour = enum.StrEnum("Colour", ["RED"])
Point = namedtuple("Point", "x")
Level = type("Level", (int,), {})


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"k": value}
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def usual_round_trip(value: object) -> str:
    """Say what the usual `json.dumps` and `json.loads` make of a value."""
    words: list[str] = []
    try:
        back = json.loads(json.dumps(value), parse_constant=words.append)
    except (TypeError, ValueError, RecursionError) as error:
        return type(error).__name__
    if words:
        return "not JSON"
    return "same" if back == value and type(back) is type(value) else "changed"


# What is refused: how the usual way ends, and where and why ours stops.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "NaN": ({"a": math.nan}, "not JSON", r"value\.a is nan.* use null"),
    "infinity": ([math.inf], "not JSON", r"value\[0\] is inf.* use null"),
    "minus infinity": (-math.inf, "not JSON", r"value is -inf"),
    "1 beside '1'": ({1: "a", "1": "b"}, "changed", r"value has the key 1 of type int.* str\(1\)"),
    "None as a key": ({"a": {None: 1}}, "changed", r"value\.a has the key None of type NoneType"),
    "True as a key": ({True: 1}, "changed", r"value has the key True of type bool"),
    "float as a key": (
        {"a": [{0.5: 1}]},
        "changed",
        r"value\.a\[0\] has the key 0\.5 of type float",
    ),
    "a tuple as a key": ({(1, 2): 1}, "TypeError", r"value has the key \(1, 2\) of type tuple"),
    "text that is more, as a key": (
        {Colour.RED: 1},
        "same",
        r"value has the key .* of type Colour",
    ),
    "tuple": ({"a": (1, 2)}, "changed", r"value\.a is a tuple.* convert it"),
    "named tuple": (Point(1), "changed", r"value is a Point"),
    "set": ({"a": {1}}, "TypeError", r"value\.a is a set"),
    "bytes": ([b"a"], "TypeError", r"value\[0\] is a bytes"),
    "datetime": (datetime(2024, 5, 1, tzinfo=UTC), "TypeError", r"value is a datetime"),
    "decimal": (Decimal(1), "TypeError", r"value is a Decimal"),
    "object": ([object()], "TypeError", r"value\[0\] is a object"),
    "text that is more": ([Colour.RED], "same", r"value\[0\] is a Colour"),
    "number that is more": (Level(1), "changed", r"value is a Level"),
    "ordered dict": (OrderedDict(a=1), "changed", r"value is a OrderedDict"),
    "user dict": (UserDict(a=1), "TypeError", r"value is a UserDict"),
    "70 bits": ({"a": 2**70}, "same", r"value\.a does not fit into 64 bits: store it as text"),
    "64 bits and a sign": (2**63, "same", r"value does not fit"),
    "minus 64 bits": (-(2**63) - 1, "same", r"value does not fit"),
    "5,000 digits": (10**5_000, "ValueError", r"value does not fit into 64 bits"),
    "lone surrogate": (
        {"a": "ab\ud83d"},
        "same",
        r"value\.a holds a lone surrogate at character 2",
    ),
    "surrogate in a key": ({"a": {"\udc00": 1}}, "same", r"value\.a key holds a lone surrogate"),
    "cycle": (cycle(), "ValueError", r"… is nested deeper than 100 levels: flatten it"),
    "deep list": (nested(DEEPEST + 1), "same", r"nested deeper than 100"),
    "deep dict": (nested(DEEPEST + 1, "dict"), "same", r"nested deeper than 100"),
    "deepest of all": (nested(200_000), "RecursionError", r"nested deeper than 100"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_not_come_back_as_it_was_is_refused_by_its_path(kind: str) -> None:
    value, usual, said = REFUSED[kind]
    assert usual_round_trip(value) == usual
    with pytest.raises(JSONValueError, match=f"^{said}" if said[0] == "v" else said) as caught:
        to_json(value)
    assert len(str(caught.value)) < 300


def test_the_error_names_the_value_as_the_caller_does() -> None:
    with pytest.raises(JSONValueError, match=r"^context\.ticket\.seen\[1\] is nan"):
        to_json({"ticket": {"seen": [0, math.nan]}}, "context")
    assert issubclass(JSONValueError, LessonError)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -0.0,
        2**63 - 1,
        -(2**63),
        0.1 + 0.2,
        5e-324,
        1.7976931348623157e308,
        "",
        '\'); DROP TABLE agent_runs; -- "quoted" \\ / \b',
        "a\x00b\n\r\t\x1f\x7f\u2028\ufeff",
        "🔥 e\u0301 \U0010ffff",
        {"": {"a.b": [[], {}]}, "1": 1, "__proto__": None},
        nested(DEEPEST),
        nested(DEEPEST, "dict"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_everything_else_comes_back_as_it_was(value: object) -> None:
    back = from_json(to_json(value))
    assert (repr(back), type(back)) == (repr(value), type(value))


def any_value(dice: random.Random, depth: int = 0) -> Any:
    def text() -> str:
        return "".join(map(chr, dice.choices([0, 34, 39, 92, 0x7F, 0xE4, 0x2028, 0x1F525], k=3)))

    leaves: list[Callable[[], Any]] = [
        lambda: None,
        lambda: dice.random() < 0.5,
        lambda: dice.randint(-(2**63), 2**63 - 1),
        lambda: dice.uniform(-1, 1) * 10 ** dice.randint(-300, 300),
        text,
    ]
    branches: list[Callable[[], Any]] = [
        lambda: [any_value(dice, depth + 1) for _ in range(dice.randint(0, 4))],
        lambda: {text(): any_value(dice, depth + 1) for _ in range(dice.randint(0, 4))},
    ]
    return dice.choice(leaves + (branches if depth < 4 else []))()


def test_a_thousand_random_values_come_back_as_they_were() -> None:
    dice = random.Random(104)
    for _ in range(1_000):
        value = any_value(dice)
        text = to_json(value)
        back = from_json(text)
        assert back == value
        assert to_json(back) == text


def test_a_long_text_is_fine() -> None:
    value = {"text": "Störung 🔥" * 500_000}
    assert len(to_json(value).encode()) > 5_000_000
    assert from_json(to_json(value)) == value


def test_equal_values_give_equal_text_that_people_can_read() -> None:
    assert to_json({"b": 1, "a": {"d": "ä", "c": None}}) == to_json(
        {"a": {"c": None, "d": "ä"}, "b": 1}
    )
    assert to_json({"b": 1, "a": "ä"}) == '{"a": "ä", "b": 1}'


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_words_that_are_not_json_are_refused_though_the_usual_way_takes_them(text: str) -> None:
    json.loads(text)
    with pytest.raises(ValueError, match=r"is not JSON"):
        from_json(text)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "01", "nul", "1 2", '"\t"'])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        from_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "c": 1, "a": 1}}]'])
def test_an_object_that_names_something_twice_is_refused(text: str) -> None:
    assert json.loads(text)
    with pytest.raises(ValueError, match="names something twice"):
        from_json(text)


def test_what_is_written_is_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    value: dict[str, object] = {"a": {"b": [1]}}

    def change_and_dump(checked: object, **options: object) -> str:
        value["a"] = {"b": float("nan")}  # as another thread may do meanwhile
        return repr(checked)

    monkeypatch.setattr(json, "dumps", change_and_dump)
    assert to_json(value) == "{'a': {'b': [1]}}"
