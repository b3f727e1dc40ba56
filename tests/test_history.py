"""A checkpoint keeps a window of the conversation; the history keeps all of it and only grows."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import rows

from lesson_lib import agent
from lesson_lib.checkpoints import history
from lesson_lib.checkpoints.archive import create_archive, read_archive, save_kept
from lesson_lib.checkpoints.codec import LARGEST, decode, encode
from lesson_lib.checkpoints.damage import REWRITES
from lesson_lib.checkpoints.history import (
    WINDOW,
    create_history,
    headlines,
    read_history,
    save_windowed,
    slide,
)
from lesson_lib.checkpoints.inventory import conversation
from lesson_lib.checkpoints.privacy import redact
from lesson_lib.errors import (
    CheckpointSizeError,
    InvalidStateError,
    JSONValueError,
    StaleVersionError,
    TransactionError,
)
from lesson_lib.json_text import to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection, delete_run, load_state, save_checkpoint
from lesson_lib.tickets import find_ticket, read_tickets

STEP: dict[str, Any] = {"session": "session-1", "action": "talk", "next_action": "talk"}
SAID = conversation(70)


@pytest.fixture
def state(connection: AgentConnection) -> RunState:
    create_archive(connection)
    create_history(connection)
    create_history(connection)
    return agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")


def talk(connection: AgentConnection, state: RunState, *entries: Any, **options: Any) -> RunState:
    said = [*state.context.get("conversation", []), *entries]
    context = state.context | {"conversation": said}
    return save_windowed(connection, state, **(STEP | options), context=context)


def test_the_history_can_be_read_back_whole_and_the_checkpoint_stays_small(
    connection: AgentConnection, state: RunState
) -> None:
    for begin in range(0, 70, 7):
        state = talk(connection, state, *SAID[begin : begin + 7])
        summary, *recent = state.context["conversation"][-WINDOW - 1 :]
        assert recent == SAID[: begin + 7][-WINDOW:] or begin < 14
    assert read_history(connection, "run-T104") == SAID
    assert (summary["role"], summary["entries"]) == ("summary", 50)
    assert state == load_state(connection, "run-T104")
    assert decode(read_archive(connection, "run-T104")[0]) == state


def test_a_history_that_begins_late_gets_the_older_entries_too(
    connection: AgentConnection, state: RunState
) -> None:
    state = save_kept(connection, state, **STEP, context=state.context | {"conversation": SAID})
    state = talk(connection, state, {"role": "person", "text": "And now?"})
    assert read_history(connection, "run-T104") == [*SAID, {"role": "person", "text": "And now?"}]


def test_an_action_that_says_nothing_adds_nothing(
    connection: AgentConnection, state: RunState
) -> None:
    state = talk(connection, state, *SAID[:3])
    state = talk(connection, state, next_action=None)
    assert (state.status, len(read_history(connection, "run-T104"))) == ("completed", 3)


def test_a_run_without_a_conversation_has_no_history(
    connection: AgentConnection, state: RunState
) -> None:
    state = save_windowed(connection, state, **STEP, context=state.context)
    assert "conversation" not in state.context
    assert read_history(connection, "run-T104") == []


@pytest.mark.parametrize("conversation", [[], SAID[1:3], [*SAID[1:2], *SAID[:1]]])
def test_a_conversation_can_only_grow(
    connection: AgentConnection, database: Path, state: RunState, conversation: list[Any]
) -> None:
    state = talk(connection, state, *SAID[:2])
    before = rows(database)
    with pytest.raises(InvalidStateError, match="run-T104 does not begin with"):
        save_windowed(
            connection, state, **STEP, context=state.context | {"conversation": conversation}
        )
    assert rows(database) == before


def test_what_one_window_cannot_hold_a_smaller_one_does(
    connection: AgentConnection, state: RunState
) -> None:
    large = [{"role": "agent", "text": str(n) * 150_000} for n in range(10)]
    state = talk(connection, state, *large)
    summary, *recent = state.context["conversation"]
    assert (summary["entries"], recent) == (5, large[5:])
    assert read_history(connection, "run-T104") == large


def test_an_entry_that_is_too_large_alone_is_refused_and_nothing_changes(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    state = talk(connection, state, *SAID[:30])
    before = rows(database)
    with pytest.raises(CheckpointSizeError, match="run-T104 takes"):
        talk(connection, state, {"role": "person", "text": "x" * LARGEST})
    assert rows(database) == before


def test_a_stale_writer_leaves_nothing_in_the_history(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    talk(connection, state, *SAID[:2])
    before = rows(database)
    with pytest.raises(StaleVersionError):
        talk(connection, state, *SAID[2:4])
    assert rows(database) == before


def test_a_failure_in_the_history_leaves_no_checkpoint(
    connection: AgentConnection,
    database: Path,
    state: RunState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = rows(database)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(history, "append", fail)
    with pytest.raises(OSError, match="gone"):
        talk(connection, state, *SAID)
    assert rows(database) == before


@pytest.mark.parametrize("sql", [*REWRITES, "UPDATE run_history SET position = position + 1"])
def test_the_history_refuses_every_change(
    connection: AgentConnection, state: RunState, sql: str
) -> None:
    talk(connection, state, *SAID[:3])
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(sql)
    assert read_history(connection, "run-T104") == SAID[:3]


def test_no_hidden_number_leads_to_an_entry(connection: AgentConnection, state: RunState) -> None:
    talk(connection, state, *SAID[:3])
    with pytest.raises(sqlite3.OperationalError, match="no column named rowid"):
        connection.execute("REPLACE INTO run_history (rowid, position) VALUES (1, 4)")


def test_no_entry_costs_more_than_the_one_before(
    connection: AgentConnection, state: RunState
) -> None:
    steps = []
    for _ in range(2):
        count: list[int] = []
        connection.set_progress_handler(partial(count.append, 1), 10)
        with connection:
            history.append(connection, "run-T104", SAID)
        steps.append(len(count))
    assert steps[1] < 1.5 * steps[0]


@pytest.mark.parametrize("since", [1, 20])
def test_what_another_save_added_in_between_gets_into_the_history(
    connection: AgentConnection, state: RunState, since: int
) -> None:
    state = talk(connection, state, *SAID[:30])
    said = [*state.context["conversation"], *SAID[30 : 30 + since]]
    state = save_kept(connection, state, **STEP, context=state.context | {"conversation": said})
    state = talk(connection, state, *SAID[30 + since : 60])
    assert read_history(connection, "run-T104") == SAID[:60]
    talk(connection, state, *SAID[60:])
    assert read_history(connection, "run-T104") == SAID


def test_what_another_save_summarised_is_missed(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    state = talk(connection, state, *SAID[:10])
    said = slide([*state.context["conversation"], *SAID[10:40]], 5)
    state = save_kept(connection, state, **STEP, context=state.context | {"conversation": said})
    before = rows(database)
    with pytest.raises(InvalidStateError, match="run-T104 lacks 30 entries, "):
        talk(connection, state, *SAID[40:])
    assert rows(database) == before


def test_a_history_that_begins_with_a_summary_goes_on(
    connection: AgentConnection, state: RunState
) -> None:
    said = slide(SAID[:30], 5)
    state = save_kept(connection, state, **STEP, context=state.context | {"conversation": said})
    state = talk(connection, state, *SAID[30:40])
    state = talk(connection, state, *SAID[40:])
    assert read_history(connection, "run-T104") == [*said, *SAID[30:]]


def test_after_a_step_back_the_history_only_grows(
    connection: AgentConnection, state: RunState
) -> None:
    earlier = talk(connection, state, *SAID[:4])
    state = talk(connection, earlier, *SAID[4:8])
    state = save_kept(connection, state, **STEP, context=earlier.context)
    talk(connection, state, *SAID[8:9])
    assert read_history(connection, "run-T104") == SAID[:9]


@pytest.mark.parametrize(
    "entry",
    [
        {"text": "hm"},
        {"role": "person"},
        {"role": "person", "text": 1},
        {"role": "summary", "text": "all is well", "entries": 3},
        "hm",
        None,
    ],
)
@pytest.mark.parametrize("before", [0, 2])
def test_what_is_no_entry_is_refused(
    connection: AgentConnection, database: Path, state: RunState, entry: Any, before: int
) -> None:
    state = talk(connection, state, *SAID[:before])
    untouched = rows(database)
    with pytest.raises(InvalidStateError, match="needs `role` and `text`"):
        talk(connection, state, entry)
    assert rows(database) == untouched


def test_a_conversation_is_a_list(connection: AgentConnection, state: RunState) -> None:
    with pytest.raises(InvalidStateError, match="conversation is a dict"):
        save_windowed(connection, state, **STEP, context=state.context | {"conversation": {}})


def test_a_summary_without_its_number_is_refused() -> None:
    with pytest.raises(InvalidStateError, match="lacks its number"):
        slide([{"role": "summary", "text": ""}, *SAID])


CARD = "4111 1111  1111 1111"  # two spaces; the summary has one


@pytest.mark.parametrize(
    "text", ["x@y.example", f"card {CARD}", "Bearer  abcdef12345", "4111 1111\n1111 1111"]
)
def test_one_call_cleans_context_summary_and_history(
    connection: AgentConnection, state: RunState, text: str
) -> None:
    said = [{"role": "person", "text": text}]
    state = save_checkpoint(
        connection, state, **STEP, context=state.context | {"conversation": said}
    )
    for n in range(12):
        entry = {"role": "person", "text": text if n % 2 else f"{n}"}
        state = talk(connection, state, entry, window=3, clean=redact)
    everything = to_json([dict(state.context), read_history(connection, "run-T104")])
    assert " ".join(text.split()) not in " ".join(everything.replace("\\n", " ").split())
    assert len(read_history(connection, "run-T104")) == 13


def test_a_summary_that_becomes_a_secret_is_cleaned_and_does_not_lock_the_run(
    connection: AgentConnection, state: RunState
) -> None:
    def join(so_far: str, leaving: Any) -> str:
        return so_far + "".join(entry["text"] for entry in leaving)

    for part in ("4111", "1111", "1111", "1111", "hm", "hm"):
        entry = {"role": "person", "text": part}
        state = talk(connection, state, entry, window=1, summarise=join, clean=redact)
        assert "4111111111111111" not in state.context_json
    assert state.context["conversation"][0]["text"] == "[card number removed]hm"


def test_the_history_goes_with_its_run(connection: AgentConnection, state: RunState) -> None:
    talk(connection, state, *SAID, next_action=None)
    delete_run(connection, "run-T104")
    assert read_history(connection, "run-T104") == []


def test_append_needs_a_transaction_and_json(connection: AgentConnection, state: RunState) -> None:
    with pytest.raises(TransactionError, match="with connection"):
        history.append(connection, "run-T104", SAID)
    with pytest.raises(JSONValueError, match="entry"), connection:
        history.append(connection, "run-T104", [{"role": "agent", "text": {1}}])
    with pytest.raises(sqlite3.IntegrityError), connection:
        history.append(connection, "run-T999", SAID)


def test_the_summary_is_made_by_whom_one_asks(connection: AgentConnection, state: RunState) -> None:
    def count(so_far: str, leaving: Any) -> str:
        return f"{so_far}+{len(leaving)}"

    state = talk(connection, state, *SAID[:5], window=2, summarise=count)
    state = talk(connection, state, *SAID[5:6], window=2, summarise=count)
    assert state.context["conversation"] == [
        {"role": "summary", "text": "+3+1", "entries": 4},
        *SAID[4:6],
    ]


def test_the_headlines_are_the_first_words_and_stay_short() -> None:
    entries = [{"role": "agent", "text": "one two three four five six seven"}]
    assert headlines("", entries) == "agent: one two three four five six. "
    assert headlines("a. ", entries) == "a. agent: one two three four five six. "
    assert len(headlines("", conversation(500))) == history.SUMMARY_CHARACTERS


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(st.lists(st.integers(0, 6), max_size=8), st.integers(1, 9))
def test_the_window_holds_the_last_entries_and_the_summary_counts_the_rest(
    steps: list[int], window: int
) -> None:
    kept: list[Any] = []
    done = 0
    for step in steps:
        kept = slide([*kept, *SAID[done : done + step]], window)
        done += step
        recent = [entry for entry in kept if entry["role"] != "summary"]
        assert recent == SAID[:done][-window:]
        gone = kept[0]["entries"] if len(kept) > len(recent) else 0
        assert gone + len(recent) == done


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_at_least_one_entry(window: int) -> None:
    with pytest.raises(InvalidStateError, match=f"window of {window}"):
        slide(SAID, window)


def test_a_long_conversation_fits_into_a_checkpoint(
    connection: AgentConnection, state: RunState
) -> None:
    with pytest.raises(CheckpointSizeError):
        save_kept(
            connection, state, **STEP, context=state.context | {"conversation": conversation(6000)}
        )
    state = talk(connection, state, *conversation(6000))
    assert len(encode(state, "none").body) < 20_000
