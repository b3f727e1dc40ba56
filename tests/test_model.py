"""The model: a state that breaks a rule cannot be made, and one that was made cannot be changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lesson_lib.errors import InvalidStateError, JSONValueError, LessonError, RunCompletedError
from lesson_lib.model import Event, RunState, Step, ToolCall, ToolResult, require_text

GOOD: dict[str, Any] = {
    "run_id": "run-1",
    "ticket_id": "T1",
    "status": "running",
    "next_action": "look",
    "context_json": '{"a": [1]}',
    "version": 0,
}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no run id": ({"run_id": ""}, "run_id must be non-empty text, not ''"),
    "run id no text": ({"run_id": 104}, "run_id must be non-empty text, not 104"),
    "run id a surrogate": ({"run_id": "r\ud800"}, r"run_id 'r\\ud800' holds a lone surrogate"),
    "no ticket id": ({"ticket_id": None}, "ticket_id must be non-empty text, not None"),
    "unknown status": ({"status": "paused"}, "status 'paused' is none of running, completed"),
    "no status": ({"status": None}, "status None is none of"),
    "running to nowhere": ({"next_action": None}, "'running' cannot have the next action None"),
    "completed, and more": ({"status": "completed"}, "'completed' cannot have .* 'look'"),
    "empty action": ({"next_action": ""}, "next_action must be non-empty text"),
    "negative version": ({"version": -1}, "version -1 is not a whole number from 0 up"),
    "version of text": ({"version": "1"}, "version '1' is not a whole number"),
    "version of a float": ({"version": 1.0}, "version 1.0 is not a whole number"),
    "version of a bool": ({"version": True}, "version True is not a whole number"),
    "no version": ({"version": None}, "version None is not a whole number"),
    "context cut off": ({"context_json": '{"a": '}, "context of run-1 is not a JSON object"),
    "context a list": ({"context_json": "[]"}, "context of run-1 is not a JSON object"),
    "context null": ({"context_json": "null"}, "context of run-1 is not a JSON object"),
    "context with NaN": ({"context_json": '{"a": NaN}'}, "context of run-1 is not a JSON object"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_state_that_breaks_a_rule_cannot_be_made(kind: str) -> None:
    changed, said = BAD[kind]
    with pytest.raises(InvalidStateError, match=said):
        RunState(**GOOD | changed)
    with pytest.raises(InvalidStateError, match=said):
        dataclasses.replace(RunState(**GOOD), **changed)


@pytest.mark.parametrize(
    "changed", [{}, {"status": "completed", "next_action": None}, {"version": 2**40}], ids=str
)
def test_a_state_that_keeps_the_rules_can_be_made(changed: dict[str, Any]) -> None:
    state = RunState(**GOOD | changed)
    assert dataclasses.asdict(state) == GOOD | changed


@pytest.mark.parametrize(
    "thing",
    [
        RunState(**GOOD),
        Event("run-1", 1, "s", "noted", "look", "{}", "2024-05-01T12:00:00Z"),
        ToolResult("k", "lookup", None, reused=False),
        ToolCall("run-1", "k", "lookup", None, int),
        Step("look", {}, "look"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_nothing_that_was_made_can_be_changed(thing: Any) -> None:
    for field in dataclasses.fields(thing):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field.name, "other")


def test_a_context_is_a_copy_that_takes_no_item() -> None:
    state = RunState(**GOOD)
    with pytest.raises(TypeError, match="does not support item assignment"):
        state.context["a"] = 2  # type: ignore[index]
    state.context["a"].append(2)
    assert state.context == {"a": [1]}
    assert state.context | {"b": 2} == {"a": [1], "b": 2}


def test_a_run_begins_at_version_0() -> None:
    state = RunState.begin("run-1", "T1", "look", {"b": 1, "a": [None]})
    assert state == RunState("run-1", "T1", "running", "look", '{"a": [null], "b": 1}', 0)
    with pytest.raises(JSONValueError, match=r"^context\.a is a set"):
        RunState.begin("run-1", "T1", "look", {"a": {1}})


def test_a_step_leads_to_the_next_state_and_changes_nothing() -> None:
    state = RunState(**GOOD | {"context_json": '{"a": [1], "b": {"c": 1}}'})
    step = Step("look", {"b": 2, "d": 3}, "draft", appended={"a": [2], "e": ["x"]})
    after = state.after(step)
    assert dict(after.context) == {"a": [1, 2], "b": 2, "d": 3, "e": ["x"]}
    assert (after.status, after.next_action, after.version) == ("running", "draft", 1)
    assert dict(state.context) == {"a": [1], "b": {"c": 1}}
    assert (step.found, dict(step.appended)) == ({"b": 2, "d": 3}, {"a": [2], "e": ["x"]})


def test_the_last_step_completes_a_run_and_none_comes_after_it() -> None:
    end = RunState(**GOOD).after(Step("look", {}, None))
    assert (end.status, end.next_action) == ("completed", None)
    with pytest.raises(RunCompletedError, match="run-1 is completed, at version 1"):
        end.after(Step("look", {}, "look"))


def test_a_step_that_json_would_change_leads_nowhere() -> None:
    with pytest.raises(JSONValueError, match=r"^context\.b is nan"):
        RunState(**GOOD).after(Step("look", {"b": float("nan")}, "look"))
    with pytest.raises(JSONValueError, match=r"^context\.a\[1\] is a set"):
        RunState(**GOOD).after(Step("look", {}, "look", appended={"a": [{1}]}))


@pytest.mark.parametrize(
    ("found", "appended"),
    [
        ({}, {"text": ["x"]}),
        ({}, {"a": {"b": 2}}),
        ({}, {"a": "bc"}),
        ({"a": [5]}, {"a": [2]}),
    ],
    ids=str,
)
def test_what_cannot_grow_does_not(found: dict[str, Any], appended: dict[str, Any]) -> None:
    state = RunState(**GOOD | {"context_json": '{"a": [1], "text": "abc"}'})
    with pytest.raises(InvalidStateError, match=f"{next(iter(appended))} cannot grow by"):
        state.after(Step("look", found, "look", appended=appended))


@pytest.mark.parametrize("text", ["a", " ", "a\x00b", "🔥", "'); DROP TABLE agent_runs; --"])
def test_text_is_taken_as_it_is(text: str) -> None:
    assert require_text("name", text) == text


def test_the_error_is_one_of_our_own() -> None:
    assert issubclass(InvalidStateError, LessonError)
