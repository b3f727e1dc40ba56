"""A checkpoint keeps a window of the conversation; the history keeps all of it and only grows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import rows

from lesson_lib.checkpoints import history
from lesson_lib.checkpoints.archive import Keep, create_archive, read_archive
from lesson_lib.checkpoints.codec import LARGEST, decode, encode
from lesson_lib.checkpoints.history import (
    WINDOW,
    Window,
    append,
    create_history,
    headlines,
    read_history,
    slide,
)
from lesson_lib.checkpoints.redaction import Redact
from lesson_lib.errors import (
    CheckpointSizeError,
    InvalidStateError,
    JSONValueError,
    StaleVersionError,
)
from lesson_lib.json_text import to_json
from lesson_lib.labs.checkpoint_format.inventory import conversation
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import AgentConnection, SQLiteStore, delete_run, load_state
from lesson_lib.tickets import ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

SAID = conversation(70)
KEEP = Keep(TICKET_SCHEMA)
REWRITES = (
    "UPDATE run_history SET entry_json = '{}'",
    "UPDATE run_history SET position = position + 1",
    "DELETE FROM run_history WHERE position = 1",
    "INSERT OR REPLACE INTO run_history VALUES ('run-T104', 1, '{}')",
)


@pytest.fixture
def store(connection: AgentConnection) -> SQLiteStore:
    create_archive(connection)
    create_history(connection)
    create_history(connection)
    return SQLiteStore(connection, "session-1", (Window(), KEEP))


@pytest.fixture
def state(store: SQLiteStore) -> RunState:
    return ticket_agent.start(store, "run-T104")


def saying(*entries: Any, next_action: str | None = "talk") -> Step:
    return Step("talk", {}, next_action, appended={"conversation": entries})


def test_the_history_can_be_read_back_whole_and_the_checkpoint_stays_small(
    store: SQLiteStore, state: RunState
) -> None:
    for begin in range(0, 70, 7):
        state = store.save_checkpoint(state, saying(*SAID[begin : begin + 7]))
        summary, *recent = state.context["conversation"][-WINDOW - 1 :]
        assert recent == SAID[: begin + 7][-WINDOW:] or begin < 14
    assert read_history(store.connection, "run-T104") == SAID
    assert (summary["role"], summary["entries"]) == ("summary", 50)
    assert state == load_state(store.connection, "run-T104")
    assert decode(read_archive(store.connection, "run-T104")[0], TICKET_SCHEMA) == state


def test_what_a_run_begins_with_is_in_its_history(store: SQLiteStore) -> None:
    context = {"ticket": {}, "conversation": SAID[:30]}
    store = replace(store, riders=(Window(),))
    state = store.start_run(RunState.begin("run-T104", "T104", "talk", context))
    assert state.context["conversation"] == SAID[:30]
    state = store.save_checkpoint(state, saying(SAID[30]))
    assert len(state.context["conversation"]) == WINDOW + 1
    assert read_history(store.connection, "run-T104") == SAID[:31]


def test_an_action_that_says_nothing_adds_nothing(store: SQLiteStore, state: RunState) -> None:
    state = store.save_checkpoint(state, saying(*SAID[:3]))
    state = store.save_checkpoint(state, Step("finish", {}, None))
    assert state.status == "completed"
    assert read_history(store.connection, "run-T104") == SAID[:3]


def test_a_run_without_a_conversation_has_no_history(store: SQLiteStore, state: RunState) -> None:
    state = store.save_checkpoint(state, Step("talk", {}, "talk"))
    assert "conversation" not in state.context
    assert read_history(store.connection, "run-T104") == []


def test_a_conversation_can_only_grow(store: SQLiteStore, database: Path, state: RunState) -> None:
    state = store.save_checkpoint(state, saying(*SAID[:2]))
    before = rows(database)
    with pytest.raises(InvalidStateError, match="talk replaces the conversation of run-T104"):
        store.save_checkpoint(state, Step("talk", {"conversation": SAID[:3]}, "talk"))
    assert rows(database) == before


def test_what_no_window_makes_small_enough_is_refused_and_nothing_changes(
    store: SQLiteStore, database: Path, state: RunState
) -> None:
    state = store.save_checkpoint(state, saying(*SAID[:30]))
    large = [{"role": "agent", "text": "x" * (LARGEST // WINDOW)}] * WINDOW
    before = rows(database)
    with pytest.raises(CheckpointSizeError, match="run-T104 takes"):
        store.save_checkpoint(state, saying(*large))
    assert rows(database) == before


def test_a_stale_writer_leaves_nothing_in_the_history(
    store: SQLiteStore, database: Path, state: RunState
) -> None:
    store.save_checkpoint(state, saying(*SAID[:2]))
    before = rows(database)
    with pytest.raises(StaleVersionError):
        store.save_checkpoint(state, saying(*SAID[2:4]))
    assert rows(database) == before


def test_a_failure_in_the_history_leaves_no_checkpoint(
    store: SQLiteStore, database: Path, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(database)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(history, "append", fail)
    with pytest.raises(OSError, match="gone"):
        store.save_checkpoint(state, saying(*SAID))
    assert rows(database) == before


@pytest.mark.parametrize("sql", REWRITES)
def test_the_history_refuses_every_change(store: SQLiteStore, state: RunState, sql: str) -> None:
    store.save_checkpoint(state, saying(*SAID[:3]))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        store.connection.execute(sql)
    assert read_history(store.connection, "run-T104") == SAID[:3]


def test_no_hidden_number_leads_to_an_entry(store: SQLiteStore, state: RunState) -> None:
    store.save_checkpoint(state, saying(*SAID[:3]))
    with pytest.raises(sqlite3.OperationalError, match="no column named rowid"):
        store.connection.execute("REPLACE INTO run_history (rowid, position) VALUES (1, 4)")


def test_no_entry_costs_more_than_the_one_before(store: SQLiteStore, state: RunState) -> None:
    steps = []
    for _ in range(2):
        count: list[int] = []
        store.connection.set_progress_handler(partial(count.append, 1), 10)
        with store.connection:
            append(store.connection, state.run_id, SAID)
        steps.append(len(count))
    assert steps[1] < 1.5 * steps[0]


def test_after_a_step_back_the_history_only_grows(store: SQLiteStore, state: RunState) -> None:
    earlier = store.save_checkpoint(state, saying(*SAID[:4]))
    later = store.save_checkpoint(earlier, saying(*SAID[4:8]))
    back = Step("recover", dict(earlier.context), "talk")
    state = replace(store, riders=()).save_checkpoint(later, back)
    store.save_checkpoint(state, saying(*SAID[8:9]))
    assert read_history(store.connection, "run-T104") == SAID[:9]


@pytest.mark.parametrize(
    "entry",
    [
        {"text": "hm"},
        {"role": "person"},
        "hm",
        None,
    ],
)
def test_what_is_no_entry_is_refused(
    store: SQLiteStore, database: Path, state: RunState, entry: Any
) -> None:
    state = store.save_checkpoint(state, saying(*SAID[:2]))
    untouched = rows(database)
    with pytest.raises(InvalidStateError, match="needs `role` and `text`"):
        store.save_checkpoint(state, saying(entry))
    assert rows(database) == untouched


CARD = "4111 1111  1111 1111"  # two spaces; the summary has one


@pytest.mark.parametrize(
    "text", ["x@y.example", f"card {CARD}", "Bearer  abcdef12345", "4111 1111\n1111 1111"]
)
def test_one_call_cleans_context_summary_and_history(
    store: SQLiteStore, state: RunState, text: str
) -> None:
    store = replace(store, riders=(Redact(), Window(3), KEEP))
    for n in range(12):
        entry = {"role": "person", "text": f"{n}" if n % 2 else text}
        state = store.save_checkpoint(state, saying(entry))
    everything = to_json([dict(state.context), read_history(store.connection, "run-T104")])
    assert " ".join(text.split()) not in " ".join(everything.replace("\\n", " ").split())
    assert len(read_history(store.connection, "run-T104")) == 12


def test_a_summary_that_becomes_a_secret_is_cleaned_by_a_second_redaction(
    store: SQLiteStore, state: RunState
) -> None:
    def join(so_far: str, leaving: Sequence[Any]) -> str:
        return so_far + "".join(entry["text"] for entry in leaving)

    store = replace(store, riders=(Window(1, join), Redact(), KEEP))
    for part in ("4111", "1111", "1111", "1111", "hm", "hm"):
        state = store.save_checkpoint(state, saying({"role": "person", "text": part}))
        assert "4111111111111111" not in state.context_json
    assert state.context["conversation"][0]["text"] == "[card number removed]hm"


def test_the_history_goes_with_its_run(store: SQLiteStore, state: RunState) -> None:
    store.save_checkpoint(state, saying(*SAID, next_action=None))
    delete_run(store.connection, "run-T104")
    assert read_history(store.connection, "run-T104") == []


def test_append_needs_json_and_a_run(store: SQLiteStore, state: RunState) -> None:
    connection = store.connection
    with pytest.raises(JSONValueError, match="entry"), connection:
        append(connection, state.run_id, [{"role": "agent", "text": {1}}])
    with pytest.raises(sqlite3.IntegrityError), connection:
        append(connection, "run-T999", SAID)


def test_the_summary_is_made_by_whom_one_asks(store: SQLiteStore, state: RunState) -> None:
    def count(so_far: str, leaving: Sequence[Any]) -> str:
        return f"{so_far}+{len(leaving)}"

    store = replace(store, riders=(Window(2, count),))
    state = store.save_checkpoint(state, saying(*SAID[:5]))
    state = store.save_checkpoint(state, saying(SAID[5]))
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


def test_a_long_conversation_fits_into_a_checkpoint(store: SQLiteStore, state: RunState) -> None:
    long = saying(*conversation(6000))
    with pytest.raises(CheckpointSizeError):
        replace(store, riders=(KEEP,)).save_checkpoint(state, long)
    state = store.save_checkpoint(state, long)
    assert len(encode(state, TICKET_SCHEMA, "none").body) < 20_000
