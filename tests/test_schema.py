"""Checkpoints of every older schema version load today, and no version is ever guessed."""

from __future__ import annotations

import copy
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_parts import fields, runbooks, tickets, values
from hypothesis import given, settings
from hypothesis import strategies as st

from lesson_lib.checkpoints.archive import read_archive
from lesson_lib.checkpoints.codec import COMPRESSIONS, decode, encode
from lesson_lib.context_schema import ContextSchema, experiment
from lesson_lib.errors import CheckpointError, InvalidStateError
from lesson_lib.labs.checkpoint_format.goldens import go_on, lay_down, read_goldens
from lesson_lib.labs.checkpoint_format.inventory import worked_context
from lesson_lib.sqlite import connect, load_state
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

GOLDENS = read_goldens()
STEP = "Check the gateway heartbeat, then ask a technician to inspect the sensor."
DRAFT = f"Priority: urgent. Next step: {STEP}"
TICKET = {
    "area": "cold storage",
    "issue": "temperature sensor stopped reporting",
    "outage_minutes": 18,
    "safety_impact": True,
}
UNKNOWN_AUDIENCE = {"code": "cold-storage-urgent", "audience": "not recorded", "step": STEP}
RUNBOOK = {"code": "cold-storage-urgent", "audience": "on-call engineer", "step": STEP}
TALK = [
    {"role": "person", "text": "The sensor in cold store 2 is silent."},
    {"role": "agent", "text": "Since when? Is the food at risk?"},
    {"role": "person", "text": "Eighteen minutes \u2013 and yes, 300 kg of fish."},
]
TODAY: dict[str, Any] = {
    "ticket": TICKET,
    "priority": "urgent",
    "runbook": RUNBOOK,
    "conversation": [
        {"role": "summary", "text": "person: The sensor in cold store 2. ", "entries": 1},
        *TALK[1:],
    ],
    "plan": {
        "task": "answer ticket T104",
        "sub_goals": [
            {"goal": "rate the ticket", "done": True},
            {"goal": "draft the reply", "done": False},
        ],
        "branches": [{"asked": "is food at risk?", "taken": "urgent"}],
    },
    "cursors": {"ticket_pages": {"next": 3, "of": 7}, "partial_reply": "Priority: urg"},
    "documents": [{"id": "manual-cold-storage"}],
    "confidence": {"priority": 0.97, "checks": 2},
    "experimental": {"tone": "calm"},
}
# name: version, next action, and the context as it must be read today
EXPECTED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "v1-none": (
        2,
        "draft_reply",
        {
            "ticket": TICKET,
            "priority": "urgent",
            "runbook": UNKNOWN_AUDIENCE,
            "confidence": {},
            "experimental": {"tone": "calm"},
        },
    ),
    "v1-zstd": (0, "classify_priority", {"ticket": TICKET, "confidence": {}}),
    "v2-gzip": (
        1,
        "lookup_runbook",
        {"ticket": TICKET, "priority": "urgent", "confidence": {}},
    ),
    "v2-zstd": (
        2,
        "draft_reply",
        {
            "ticket": TICKET,
            "priority": "urgent",
            "runbook": UNKNOWN_AUDIENCE,
            "confidence": {},
        },
    ),
    "v3-zstd": (
        3,
        "finish",
        {
            "ticket": TICKET,
            "priority": "urgent",
            "runbook": RUNBOOK,
            "draft": DRAFT,
            "conversation": TALK,
            "confidence": {},
            "experimental": {"sensor": {"id": 7, "last_seen_c": -18.5}},
        },
    ),
    "v4-none": (2, "draft_reply", TODAY),
    "v4-gzip": (2, "draft_reply", TODAY),
    "v4-zstd": (2, "draft_reply", TODAY),
}
QUICK = settings(derandomize=True, deadline=None, max_examples=60, database=None)


def test_every_version_has_a_golden_and_every_golden_an_expectation() -> None:
    assert {golden.schema_version for golden in GOLDENS.values()} == set(
        range(1, TICKET_SCHEMA.current + 1)
    )
    assert {golden.compression for golden in GOLDENS.values()} == set(COMPRESSIONS)
    assert set(GOLDENS) == set(EXPECTED)


@pytest.mark.parametrize("name", GOLDENS)
def test_a_golden_loads_as_a_state_of_today(name: str) -> None:
    version, next_action, context = EXPECTED[name]
    state = decode(GOLDENS[name], TICKET_SCHEMA)
    assert (state.run_id, state.ticket_id, state.status) == ("run-T104", "T104", "running")
    assert (state.version, state.next_action) == (version, next_action)
    assert dict(state.context) == context


@pytest.mark.parametrize(
    ("version", "context", "name"),
    [
        (
            1,
            {"area": "a", "issue": "b", "outage_minutes": 5, "safety": "no", "ticket": {"mine": 1}},
            "ticket",
        ),
        (
            2,
            {"ticket": TICKET, "priority": "urgent", "runbook": RUNBOOK, "runbook_step": STEP},
            "runbook",
        ),
    ],
)
def test_no_step_writes_over_a_field_that_is_there(
    version: int, context: dict[str, Any], name: str
) -> None:
    with pytest.raises(CheckpointError, match=f"its context has {name} beside"):
        TICKET_SCHEMA.upcast(context, version)


@pytest.mark.parametrize("name", GOLDENS)
def test_the_agent_of_today_goes_on_from_a_golden(name: str, tmp_path: Path) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        state = lay_down(connection, GOLDENS[name])
        end = go_on(connection, state)
        assert end == load_state(connection, "run-T104")
        newest, *_, first = read_archive(connection, "run-T104")
    assert (end.version, end.status, end.context["reply"]) == (4, "completed", DRAFT)
    assert end.context.get("experimental") == EXPECTED[name][2].get("experimental")
    assert (newest.schema_version, decode(newest, TICKET_SCHEMA)) == (4, end)
    assert first == GOLDENS[name]


@pytest.mark.parametrize("version", [5, 99, 0, -1])
def test_a_version_that_is_not_ours_is_refused(version: int) -> None:
    with pytest.raises(CheckpointError, match=f"{version}, this package knows 1 to 4"):
        TICKET_SCHEMA.upcast(TODAY, version)


@QUICK
@given(
    st.dictionaries(fields, values | tickets | runbooks, max_size=7) | values,
    st.integers(1, 4),
)
def test_an_upcast_ends_in_a_context_of_today_or_is_refused(context: Any, version: int) -> None:
    before = copy.deepcopy(context)
    with suppress(CheckpointError, InvalidStateError):
        TICKET_SCHEMA.check(TICKET_SCHEMA.upcast(context, version))
    assert context == before


@QUICK
@given(values, st.integers(1, 3))
def test_experimental_fields_pass_every_upcaster(value: Any, version: int) -> None:
    flat = {name: TICKET[name] for name in ("area", "issue", "outage_minutes")}
    old: dict[str, Any] = {"ticket": TICKET} if version > 1 else {**flat, "safety": "yes"}
    new = TICKET_SCHEMA.upcast(old | {"experimental": {"x": value}}, version)
    assert new["experimental"] == {"x": value}


def test_a_default_never_replaces_what_is_there() -> None:
    old = {"ticket": TICKET, "confidence": {"priority": 0.5}}
    assert TICKET_SCHEMA.upcast(old, 3)["confidence"] == {"priority": 0.5}


def test_an_experiment_needs_its_flag_and_leaves_others_alone() -> None:
    context = {"ticket": TICKET, "experimental": {"a": 1}}
    assert experiment(context, "b", 2, flags=set()) == {}
    tried = experiment(context, "b", 2, flags={"b", "c"})
    assert tried == {"experimental": {"a": 1, "b": 2}}
    assert context["experimental"] == {"a": 1}
    TICKET_SCHEMA.check(context | tried)
    assert experiment({"ticket": TICKET}, "b", 2, flags={"b"}) == {"experimental": {"b": 2}}


def test_a_schema_is_data_and_another_agent_has_its_own() -> None:
    def rename(context: Any) -> Any:
        return {"pages": [context["page"]]}

    schema = ContextSchema({"pages": list}, upcasters=(rename,))
    assert schema.current == 2
    assert schema.upcast({"page": 1}, 1) == {"pages": [1]}
    schema.check({})
    with pytest.raises(InvalidStateError, match=r"context\.ticket is no field of schema version 2"):
        schema.check({"ticket": TICKET})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mood": "calm"}, "context.mood is no field of schema version 4"),
        ({"priority": 1}, "context.priority is a int, not a str"),
        ({"ticket": TICKET | {"room": "2"}}, "context.ticket.room is no field"),
        ({"ticket": TICKET | {"outage_minutes": True}}, "outage_minutes is a bool, not a int"),
        ({"runbook": {"code": "x"}}, "context.runbook lacks audience"),
    ],
)
def test_a_context_outside_the_schema_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidStateError, match=reason):
        TICKET_SCHEMA.check(TODAY | change)


def test_a_context_without_a_ticket_is_refused() -> None:
    with pytest.raises(InvalidStateError, match="lacks ticket"):
        TICKET_SCHEMA.check({"priority": "urgent"})


def test_the_worked_state_holds_every_kind_and_fits_the_schema() -> None:
    context = worked_context()
    TICKET_SCHEMA.check(context)
    assert set(context) >= {"conversation", "plan", "cursors", "documents", "confidence"}
    assert encode(decode(GOLDENS["v4-none"], TICKET_SCHEMA), TICKET_SCHEMA)


@pytest.mark.parametrize(
    ("context", "version"),
    [
        ({"ticket": {"area": 7}, "priority": "urgent", "runbook_step": STEP}, 2),
        ({"ticket": TICKET, "runbook_step": STEP}, 2),
        ({"area": "sorting", "issue": "x", "outage_minutes": 1, "safety": []}, 1),
        ({"area": "sorting", "issue": "x", "outage_minutes": 1, "safety": "perhaps"}, 1),
        ([["ticket", TICKET]], 4),
    ],
)
def test_a_context_that_is_not_of_its_version_is_refused(context: Any, version: int) -> None:
    with pytest.raises(CheckpointError, match="its context is"):
        TICKET_SCHEMA.upcast(context, version)
