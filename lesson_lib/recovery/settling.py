"""Before a run goes on: what became of its open calls, and what only a person can decide."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lesson_lib.errors import OutcomeUnknownError
from lesson_lib.recovery.told import Told
from lesson_lib.riders import questions
from lesson_lib.riders.intents import (
    Intent,
    KeyedService,
    confirm,
    open_intents_of,
    refuse,
    settle,
)
from lesson_lib.sqlite import AgentConnection

HAPPENED = ("it happened", "it did not happen")
WAYS_OUT = ("a backup is restored", "the run is given up")


def settle_open(
    connection: AgentConnection,
    run_id: str,
    session: str,
    service: KeyedService,
    key_lives: timedelta,
) -> list[Intent]:
    """Ask what became of each open intent of a run; return those that are still open.

    The service is asked first; for `key_lives` see `intents.settle`. Where it cannot tell, a
    person is asked, once, and when the question is answered, the answer closes the intent.

    Raises:
        KeyBusyError, RemoteError: The service gives no answer now. Nothing was lost: ask again.
    """
    questions.create_questions(connection)
    about: dict[str, Any] = {"run_id": run_id, "session": session, "choices": HAPPENED}
    for intent in open_intents_of(connection, run_id):
        try:
            settle(connection, intent, service, session=session, key_lives=key_lives)
        except OutcomeUnknownError:
            key = intent.idempotency_key
            question = f"Did {intent.tool_name} with the key {key} happen?"
            with connection:
                questions.ask(connection, **about, question_id=key, question=question)
            answer = questions.answer_of(connection, key)
            if answer == HAPPENED[0]:
                confirm(connection, intent, session=session, answer="as a person says")
            elif answer == HAPPENED[1]:
                reason = "a person says it did not happen"
                refuse(connection, intent, session=session, reason=reason)
    return open_intents_of(connection, run_id)


def ask_person(connection: AgentConnection, told: Told, session: str, reason: str) -> None:
    """Ask what to do with a run, inside the caller's transaction, once for what has happened."""
    for statement in questions.STATEMENTS:
        connection.execute(statement)
    # Question and answer are events too.
    latest = max(event.sequence for event in told.events if event.action != "ask_person")
    fault = without_content(reason)
    questions.ask(
        connection,
        run_id=told.run_id,
        session=session,
        question_id=f"{told.run_id}:recover:{latest}:{fault}",
        question=f"{told.run_id} cannot go on by itself: {fault}. Restore a backup?",
        choices=WAYS_OUT,
    )


def without_content(reason: str) -> str:
    """Return what may be recorded of a reason: the fault, and no value of the state.

    Values stand behind the first colon; see `judging.Refused`.
    """
    return reason.partition(":")[0][:255]
