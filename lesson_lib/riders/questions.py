"""Questions to people: a run that waits for an answer needs no process, only a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lesson_lib.errors import IdempotencyConflictError, InvalidStateError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.riders.keyed_rows import put_once, read_rows
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.records import record_event
from lesson_lib.store import Rider, Saving

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
    choices_json: str
    answer: str | None = None
    answered_by: str | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers to choose from."""
        return tuple(from_json(self.choices_json))


@dataclass(frozen=True)
class Ask(Rider):
    """Asks a person together with the checkpoint that says that the run waits; see `ask`."""

    question_id: str
    question: str
    choices: Sequence[str]

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        """Store the question."""
        ask(connection, run_id=saving.after.run_id, session=saving.session, **vars(self))


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

    A question that is there already is not asked again: its id is the same at every repeat.

    Raises:
        IdempotencyConflictError: Another question has this id.
        InvalidStateError: There is nothing to choose from, or something is no usable text.
        TransactionError: No transaction is open.
    """
    if isinstance(choices, str) or not choices:
        raise InvalidStateError(f"the choices of {question_id!r} must be a list that is not empty")
    for text in (question_id, question, *choices):
        require_text("what is asked", text)
    new = Question(question_id, run_id, question, to_json(list(choices), "choices"))
    if put_once(connection, "run_questions", new):
        _record(connection, "question_asked", new, session)
    elif replace(_find(connection, question_id), answer=None, answered_by=None) != new:
        raise IdempotencyConflictError(f"another question has the id {question_id}")


def answer(connection: AgentConnection, question_id: str, choice: str, *, person: str) -> None:
    """Store a person's answer with the event `question_answered`. The first answer stays.

    Raises:
        InvalidStateError: It was answered before, or never asked, or it has no such choice.
    """
    with connection:
        found = _find(connection, question_id)
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
        _record(connection, "question_answered", found, person)


def answer_of(connection: AgentConnection, question_id: str) -> str | None:
    """Return the answer to a question, None while there is none.

    Raises:
        InvalidStateError: It was never asked.
    """
    return _find(connection, question_id).answer


def waiting_questions(connection: AgentConnection) -> list[Question]:
    """Return the questions without an answer, by run: the list that a person works through."""
    waiting = "answer IS NULL ORDER BY run_id, question_id"
    return read_rows(connection, Question, f"SELECT * FROM run_questions WHERE {waiting}")


def _find(connection: AgentConnection, question_id: str) -> Question:
    sql = "SELECT * FROM run_questions WHERE question_id = ?"
    found = read_rows(connection, Question, sql, require_text("question_id", question_id))
    if not found:
        raise InvalidStateError(f"there is no question {question_id!r}")
    return found[0]


def _record(connection: AgentConnection, event: str, question: Question, session: str) -> None:
    about = {"run_id": question.run_id, "session": session, "action": "ask_person"}
    detail = {"question": question.question_id}
    record_event(connection, **about, event_type=event, detail=detail)
