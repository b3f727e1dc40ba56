"""A run may wait for a person over any number of deaths, and is asked and answered once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from remote_parts import begin
from store_parts import rows

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.model import Step
from lesson_lib.riders.questions import (
    Ask,
    Question,
    answer,
    answer_of,
    ask,
    create_questions,
    waiting_questions,
)
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    delete_run,
    load_state,
    read_events,
    save_checkpoint,
)


@pytest.fixture
def asking(connection: AgentConnection) -> AgentConnection:
    create_questions(connection)
    for run_id in ("run-1", "run-2"):
        begin(connection, run_id)
    return connection


def put(connection: AgentConnection, **changed: Any) -> None:
    usual = {"run_id": "run-1", "session": "s1", "question_id": "q", "question": "Paid?"}
    with connection:
        ask(connection, **{**usual, "choices": ["yes", "no"], **changed})


def kinds(connection: AgentConnection) -> list[tuple[str, str]]:
    return [(e.session, e.event_type) for e in read_events(connection, "run-1")][1:]


def test_a_question_waits_for_its_answer(asking: AgentConnection) -> None:
    put(asking)
    (question,) = waiting_questions(asking)
    assert question == Question("q", "run-1", "Paid?", '["yes", "no"]')
    assert question.choices == ("yes", "no")
    assert answer_of(asking, "q") is None
    answer(asking, "q", "no", person="Ada")
    assert waiting_questions(asking) == []
    assert answer_of(asking, "q") == "no"
    assert kinds(asking) == [("s1", "question_asked"), ("Ada", "question_answered")]


def test_a_question_is_asked_once(asking: AgentConnection, database: Path) -> None:
    put(asking)
    before = rows(database)
    put(asking, session="s2")
    assert rows(database) == before
    answer(asking, "q", "yes", person="Ada")
    put(asking, session="s3")
    assert answer_of(asking, "q") == "yes"
    assert len(kinds(asking)) == 2


@pytest.mark.parametrize(
    "changed", [{"run_id": "run-2"}, {"question": "Sent?"}, {"choices": ["no", "yes"]}], ids=str
)
def test_another_question_needs_another_id(
    asking: AgentConnection, database: Path, changed: dict[str, object]
) -> None:
    put(asking)
    before = rows(database)
    with pytest.raises(IdempotencyConflictError, match="another question has the id q"):
        put(asking, **changed)
    assert rows(database) == before


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"choices": []}, InvalidStateError),
        ({"choices": ["yes", ""]}, InvalidStateError),
        ({"choices": "yes"}, InvalidStateError),
        ({"choices": [["yes"]]}, InvalidStateError),
        ({"question_id": "\ud800"}, InvalidStateError),
        ({"question": ""}, InvalidStateError),
        ({"question_id": ""}, InvalidStateError),
        ({"session": ""}, InvalidStateError),
        ({"run_id": "run-9"}, sqlite3.IntegrityError),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_not_stored(
    asking: AgentConnection, database: Path, changed: dict[str, object], error: type[Exception]
) -> None:
    before = rows(database)
    with pytest.raises(error):
        put(asking, **changed)
    assert rows(database) == before


def test_a_question_is_asked_inside_a_transaction_only(asking: AgentConnection) -> None:
    with pytest.raises(TransactionError, match="run_questions is written inside"):
        ask(asking, run_id="run-1", session="s", question_id="q", question="?", choices=["a"])


@pytest.mark.parametrize("second", ["yes", "no"])
def test_the_first_answer_stays(asking: AgentConnection, database: Path, second: str) -> None:
    put(asking)
    answer(asking, "q", "no", person="Ada")
    before = rows(database)
    with pytest.raises(InvalidStateError, match="q was answered before, by Ada: no"):
        answer(asking, "q", second, person="Bob")
    assert rows(database) == before


@pytest.mark.parametrize(
    ("question_id", "choice", "person", "said"),
    [
        ("q", "maybe", "Ada", "'maybe' is none of yes, no"),
        ("q", "", "Ada", "'' is none of yes, no"),
        ("r", "yes", "Ada", "there is no question 'r'"),
        ("q", "yes", "", "person must be non-empty text"),
        ("\ud800", "yes", "Ada", "lone surrogate"),
    ],
)
def test_what_is_no_answer_changes_nothing(
    asking: AgentConnection, database: Path, question_id: str, choice: str, person: str, said: str
) -> None:
    put(asking)
    before = rows(database)
    with pytest.raises(InvalidStateError, match=said):
        answer(asking, question_id, choice, person=person)
    assert rows(database) == before


def test_who_asks_for_the_answer_to_nothing_is_told_so(asking: AgentConnection) -> None:
    with pytest.raises(InvalidStateError, match="there is no question 'q'"):
        answer_of(asking, "q")


def test_an_answer_and_its_event_are_both_there_or_neither(
    asking: AgentConnection, database: Path
) -> None:
    put(asking)
    asking.execute(
        "CREATE TRIGGER full BEFORE INSERT ON agent_events BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        answer(asking, "q", "yes", person="Ada")
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        put(asking, question_id="r")
    assert rows(database) == before


@pytest.fixture
def others(database: Path, asking: AgentConnection) -> Iterator[AgentConnection]:
    with closing(connect(database)) as opened:
        yield opened


def test_another_process_sees_what_waits(asking: AgentConnection, others: AgentConnection) -> None:
    put(asking, run_id="run-2", question_id="r")
    put(asking)
    assert [q.question_id for q in waiting_questions(others)] == ["q", "r"]
    answer(others, "r", "yes", person="Ada")
    assert answer_of(asking, "r") == "yes"


def test_a_run_with_an_open_question_is_not_deleted(asking: AgentConnection) -> None:
    put(asking)
    save_checkpoint(asking, begin(asking, "run-3"), Step("pay", {}, None), session="s")
    put(asking, run_id="run-3", question_id="r")
    with pytest.raises(InvalidStateError, match="run-3 is still needed: a question of it is not"):
        delete_run(asking, "run-3")
    answer(asking, "r", "yes", person="Ada")
    delete_run(asking, "run-3")
    with pytest.raises(UnknownRunError):
        read_events(asking, "run-3")
    assert [q.question_id for q in waiting_questions(asking)] == ["q"]
    with pytest.raises(InvalidStateError):
        answer_of(asking, "r")


def test_a_question_rides_with_its_checkpoint(asking: AgentConnection, database: Path) -> None:
    def waits(question: str, *choices: str) -> Step:
        return Step("pay", {}, "wait", riders=(Ask("q", question, choices),))

    state = save_checkpoint(asking, load_state(asking, "run-1"), waits("Paid?", "y"), session="s2")
    assert (state.next_action, state.version) == ("wait", 1)
    assert waiting_questions(asking) == [Question("q", "run-1", "Paid?", '["y"]')]
    assert kinds(asking) == [("s2", "checkpoint_saved"), ("s2", "question_asked")]
    before = rows(database)
    with pytest.raises(IdempotencyConflictError):
        save_checkpoint(asking, state, waits("Sent?", "y"), session="s2")
    with pytest.raises(InvalidStateError):
        save_checkpoint(asking, state, waits("Paid?"), session="s2")
    assert rows(database) == before


def test_the_table_is_made_once(asking: AgentConnection, database: Path) -> None:
    put(asking)
    before = rows(database)
    create_questions(asking)
    assert rows(database) == before
