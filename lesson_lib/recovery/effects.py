"""Effects before resuming: what became of each call that has no answer yet?"""

from __future__ import annotations

from datetime import timedelta

from lesson_lib.errors import OutcomeUnknownError
from lesson_lib.recovery.rows import open_keys
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.stores.sqlite.intents import (
    Intent,
    KeyedService,
    confirm,
    find_intent,
    refuse,
    settle,
)
from lesson_lib.stores.sqlite.questions import answer_of, ask, create_questions

CHOICES = ("it happened", "it did not happen")


def settle_open(
    connection: AgentConnection,
    run_id: str,
    session: str,
    service: KeyedService,
    key_lives: timedelta,
) -> list[Intent]:
    """Ask what became of each open intent of a run; return those that are still open.

    The service is asked first. Where it cannot tell, a person is: the first time this stores a
    question, and once that is answered, the answer closes the intent.

    Args:
        connection: An open connection, outside of a transaction.
        run_id: The run.
        session: Which process life asks.
        service: The service that was called.
        key_lives: See `intents.settle`.

    Raises:
        KeyBusyError, RemoteError: The service gives no answer now. Nothing was lost: ask again.
    """
    create_questions(connection)
    for intent in _open(connection, run_id):
        try:
            settle(connection, intent, service, session=session, key_lives=key_lives)
        except OutcomeUnknownError:
            _ask_person(connection, intent, session)
    return _open(connection, run_id)


def _open(connection: AgentConnection, run_id: str) -> list[Intent]:
    found = [find_intent(connection, key) for key in open_keys(connection, run_id)]
    return [intent for intent in found if intent is not None]


def _ask_person(connection: AgentConnection, intent: Intent, session: str) -> None:
    key = intent.idempotency_key
    with connection:
        ask(
            connection,
            run_id=intent.run_id,
            session=session,
            question_id=key,
            question=f"Did {intent.tool_name} with the key {key} happen?",
            choices=CHOICES,
        )
    answer = answer_of(connection, key)
    if answer == CHOICES[0]:
        confirm(connection, intent, session=session, answer="as a person says")
    elif answer == CHOICES[1]:
        refuse(connection, intent, session=session, reason="a person says it did not happen")
