"""Questions to people: a run that waits for an answer needs no process, only a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lesson_lib.errors import IdempotencyConflictError, InvalidStateError, TransactionError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.stores.sqlite.connection import AgentConnection
from lesson_lib.stores.sqlite.records import record_event

STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS run_questions (
    question_id  TEXT NOT NULL PRIMARY KEY,
    run_id       TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    question     TEXT NOT NULL,
    choices_json TEXT NOT NULL CHECK (json_valid(choices_json)),
    answer       TEXT,
    answered_by  TEXT,
    CHECK ((answer IS NULL) = (answered_by IS NULL))
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS questions_keep_their_run BEFORE DELETE ON agent_runs
    WHEN EXISTS (SELECT 1 FROM run_questions WHERE run_id = OLD.run_id AND answer IS NULL)
    BEGIN SELECT RAISE(ABORT, 'a question of it is not answered yet'); END""",
)


@dataclass(frozen=True)
class Question:
    """One row of `run_questions`; `answer` is None while the run waits."""

    question_id: str
    run_id: str
    question: str
    choices: tuple[str, ...]
    answer: str | None
    answered_by: str | None


def create_questions(connection: AgentConnection) -> None:
    """Create the table of questions where it is missing."""
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def ask(
    connection: AgentConnection,
    *,
    run_id: str,
    session: str,
    question_id: str,
    question: str,
    choices: Sequence[str],
) -> None:
    """Ask a person, with the event `question_asked`, inside the caller's transaction.

    A question that is there already is not asked again.

    Args:
        connection: An open connection, inside `with connection:`; the checkpoint that says that
            the run waits belongs into the same block.
        run_id: The run; it must exist.
        session: Which process life asks.
        question_id: The question's name, the same at every repeat.
        question: What a person reads.
        choices: The answers to choose from, each once.

    Raises:
        TransactionError: No transaction is open.
        IdempotencyConflictError: Another question has this id.
        InvalidStateError: There is nothing to choose from, or an argument is no usable text.
        sqlite3.IntegrityError: There is no such run.
    """
    if not connection.in_transaction:
        raise TransactionError("ask writes inside the caller's `with connection:` block")
    wanted = (run_id, question, tuple(require_text("choice", choice) for choice in choices))
    if isinstance(choices, str) or not choices or len(set(choices)) < len(choices):
        raise InvalidStateError(f"the choices of {question_id!r} must be a list, each of them once")
    found = _find(connection, require_text("question_id", question_id))
    if found is not None:
        if (found.run_id, found.question, found.choices) != wanted:
            raise IdempotencyConflictError(f"another question has the id {question_id}")
        return
    connection.execute(
        "INSERT INTO run_questions VALUES (?, ?, ?, ?, NULL, NULL)",
        (
            question_id,
            run_id,
            require_text("question", question),
            to_json(list(choices), "choices"),
        ),
    )
    _record(connection, "question_asked", run_id, session, question_id)


def answer(connection: AgentConnection, question_id: str, choice: str, *, person: str) -> None:
    """Store a person's answer with the event `question_answered`. The first answer stays.

    Raises:
        InvalidStateError: The question is answered already, or is not there, or the choice is
            none of its choices. Nothing changed.
    """
    with connection:
        found = _need(connection, question_id)
        if choice not in found.choices:
            raise InvalidStateError(f"{choice!r} is none of {', '.join(found.choices)}")
        if found.answer is not None:
            raise InvalidStateError(
                f"{question_id} was answered before, by {found.answered_by}: {found.answer}"
            )
        connection.execute(
            "UPDATE run_questions SET answer = ?, answered_by = ? WHERE question_id = ?",
            (choice, require_text("person", person), question_id),
        )
        _record(connection, "question_answered", found.run_id, person, question_id)


def answer_of(connection: AgentConnection, question_id: str) -> str | None:
    """Return the answer to a question, None while there is none.

    Raises:
        InvalidStateError: It was never asked.
    """
    return _need(connection, question_id).answer


def waiting_questions(connection: AgentConnection) -> list[Question]:
    """Return the questions without an answer, by run: the list that a person works through."""
    rows = connection.execute(
        "SELECT * FROM run_questions WHERE answer IS NULL ORDER BY run_id, question_id"
    ).fetchall()
    return [_question(row) for row in rows]


def _need(connection: AgentConnection, question_id: str) -> Question:
    found = _find(connection, require_text("question_id", question_id))
    if found is None:
        raise InvalidStateError(f"there is no question {question_id!r}")
    return found


def _find(connection: AgentConnection, question_id: str) -> Question | None:
    row = connection.execute(
        "SELECT * FROM run_questions WHERE question_id = ?", (question_id,)
    ).fetchone()
    return None if row is None else _question(row)


def _record(
    connection: AgentConnection, event: str, run_id: str, session: str, question_id: str
) -> None:
    record_event(
        connection,
        run_id=run_id,
        session=session,
        event_type=event,
        action="ask_person",
        detail={"question": question_id},
    )


def _question(row: Any) -> Question:
    return Question(
        row["question_id"],
        row["run_id"],
        row["question"],
        tuple(from_json(row["choices_json"])),
        row["answer"],
        row["answered_by"],
    )
