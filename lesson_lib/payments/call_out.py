"""A run whose action is a payment, the ways to make it, and a child process that dies in them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from lesson_lib.agent import resume
from lesson_lib.crash import die
from lesson_lib.errors import (
    KeyBusyError,
    OutcomeUnknownError,
    RemoteError,
    RunCompletedError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.model import RunState
from lesson_lib.payments.client import KEY_LIVES, Payments, WithoutKeys
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    execute_once,
    load_state,
    save_checkpoint,
    start_run,
    write_checkpoint,
)
from lesson_lib.stores.sqlite.intents import (
    KeyedService,
    call,
    confirm,
    create_intents,
    find_intent,
    intend,
    refuse,
    settle,
)
from lesson_lib.stores.sqlite.questions import answer_of, ask, create_questions

CHOICES = ("paid", "pay again")
POINTS = ("begin", "intended", "called", "confirmed", "asked", "waiting")

type Passing = Callable[[str], None]


def fee(run_id: str) -> JSONObject:
    """Return the payment of a call-out: 120 euros to the contractor."""
    return {"amount_cents": 12_000, "payee": "Frost Repairs", "reference": run_id}


def pay_once(
    connection: AgentConnection,
    state: RunState,
    session: str,
    pay: Callable[[JSONObject], JSONObject],
) -> RunState:
    """Pay through `execute_once`, which keeps the result in the local database."""
    request = state.context["request"]
    result = execute_once(
        connection,
        lambda: pay(request),
        run_id=state.run_id,
        session=session,
        key=state.context["key"],
        tool_name="pay_call_out",
        tool_input=request,
    )
    return _complete(connection, state, session, "confirmed", result.value)


def pay_or_ask(
    connection: AgentConnection,
    state: RunState,
    session: str,
    service: KeyedService,
    key_lives: timedelta,
    passing: Passing = lambda point: None,
) -> RunState:
    """Pay with an intent; where nobody can tell whether it happened, ask a person.

    Args:
        connection: An open connection, outside of a transaction.
        state: The run, before its action `pay_call_out`.
        session: Which process life does this.
        service: Who pays.
        key_lives: See `settle`. None at all for a service that takes no keys.
        passing: Called with the name of each crash point.

    Raises:
        KeyBusyError, RemoteError: There is no answer; the intent stays open.
    """
    passing("begin")
    key, request = state.context["key"], state.context["request"]
    intent = find_intent(connection, key)
    if intent is None:
        about = {"run_id": state.run_id, "session": session, "tool_name": "pay_call_out"}
        intent = intend(connection, key=key, request=request, **about)
        passing("intended")
        intent = call(connection, intent, service, session=session)
    elif intent.status == "intended":
        try:
            intent = settle(connection, intent, service, session=session, key_lives=key_lives)
        except OutcomeUnknownError:
            return _ask(connection, state, session, passing)
    passing("confirmed")
    return _complete(connection, state, session, intent.status, intent.answer)


def follow_decision(connection: AgentConnection, state: RunState, session: str) -> RunState:
    """Do what a person decided; return the state as it is while there is no decision.

    An answer of the service that has been stored meanwhile counts more than the decision.
    """
    key = state.context["key"]
    choice, intent = answer_of(connection, key), find_intent(connection, key)
    if choice is None or intent is None:
        return state
    if choice == "paid":
        intent = confirm(connection, intent, session=session, answer="as a person says")
        return _complete(connection, state, session, intent.status, intent.answer)
    reason = "a person says that it did not happen"
    intent = refuse(connection, intent, session=session, reason=reason)
    if intent.status == "confirmed":
        return _complete(connection, state, session, intent.status, intent.answer)
    return save_checkpoint(
        connection,
        state,
        session=session,
        action="await_decision",
        next_action="pay_call_out",
        context=state.context | {"key": f"{key}:again"},
    )


def _ask(connection: AgentConnection, state: RunState, session: str, passing: Passing) -> RunState:
    with connection:  # the run waits and the question is there: both or neither
        waiting = write_checkpoint(
            connection,
            state,
            session=session,
            action="pay_call_out",
            next_action="await_decision",
            context=state.context,
        )
        ask(
            connection,
            run_id=state.run_id,
            session=session,
            question_id=state.context["key"],
            question="Was the call-out paid? Look at the bank's statement.",
            choices=CHOICES,
        )
    passing("asked")
    return waiting


def _complete(
    connection: AgentConnection, state: RunState, session: str, status: str, answer: object
) -> RunState:
    return save_checkpoint(
        connection,
        state,
        session=session,
        action=str(state.next_action),
        next_action=None,
        context=state.context | {status: answer},
    )


def open_run(connection: AgentConnection, run_id: str, session: str) -> RunState:
    """Resume a run, start it where there is none, or load it when it is finished."""
    try:
        return resume(connection, run_id, session)
    except UnknownRunError:
        return start_run(
            connection,
            run_id=run_id,
            ticket_id=run_id.removeprefix("run-"),
            session=session,
            first_action="pay_call_out",
            context={"key": f"{run_id}:pay_call_out", "request": fee(run_id)},
        )
    except RunCompletedError:
        return load_state(connection, run_id)


@dataclass(frozen=True)
class Watched(Payments):
    """A client that passes the crash point `called` when an answer has come."""

    passing: Passing = lambda point: None

    def pay(self, key: str, request: JSONObject) -> JSONObject:
        """Pay; see `Payments.pay`."""
        receipt = super().pay(key, request)
        self.passing("called")
        return receipt

    def transfer(self, request: JSONObject) -> JSONObject:
        """Pay; see `Payments.transfer`."""
        receipt = super().transfer(request)
        self.passing("called")
        return receipt


def work(
    connection: AgentConnection,
    state: RunState,
    session: str,
    service: Payments,
    way: str,
    passing: Passing = lambda point: None,
) -> RunState:
    """Go on with a run until it is completed or waits for a person.

    Args:
        connection: An open connection, outside of a transaction.
        state: The run's state as this process loaded it.
        session: Which process life does this.
        service: The payment service.
        way: `no_key` and `key` keep the result, `intent` and `person` keep an intent too; `no_key`
            and `person` use the service that takes no keys.
        passing: Called with the name of each crash point.
    """
    while state.status != "completed":
        if state.next_action == "await_decision":
            decided = follow_decision(connection, state, session)
            if decided == state:
                passing("waiting")
                return state
            state = decided
        elif way == "no_key":
            state = pay_once(connection, state, session, service.transfer)
        elif way == "key":
            state = pay_once(connection, state, session, partial(service.pay, state.context["key"]))
        elif way == "intent":
            state = pay_or_ask(connection, state, session, service, KEY_LIVES, passing)
        else:  # whoever takes no keys has forgotten each at once
            unkeyed = WithoutKeys(service)
            state = pay_or_ask(connection, state, session, unkeyed, timedelta(), passing)
    return state


def child_command(
    database: Path, address: str, run_id: str, session: str, way: str, die_at: str | None = None
) -> list[str]:
    """Return the arguments of `python` for one session in a process of its own; see `work`.

    Args:
        database: The database file, made if it is missing.
        address: The payment service's.
        run_id: The run, started if it is missing.
        session: The name of this process life.
        way: See `work`.
        die_at: One of `POINTS`, at which the process is killed; None to live.
    """
    command = ["-m", "lesson_lib.payments.call_out", str(database), address, run_id, session, way]
    return [*command, "--die-at", die_at] if die_at else command


def main(arguments: Sequence[str] | None = None) -> None:
    """Be one session of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.payments.call_out", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("address", help="of the payment service, such as 127.0.0.1:8080")
    parser.add_argument("run_id")
    parser.add_argument("session")
    parser.add_argument("way", choices=("no_key", "key", "intent", "person"))
    parser.add_argument("--die-at", choices=POINTS)
    options = parser.parse_args(arguments)

    def passing(point: str) -> None:
        if point == options.die_at:
            die("kill")

    with closing(connect(options.database)) as connection:
        for create in (create_schema, create_intents, create_questions):
            create(connection)
        state = open_run(connection, options.run_id, options.session)
        service = Watched(options.address, passing=passing)
        try:
            state = work(connection, state, options.session, service, options.way, passing)
        except (KeyBusyError, RemoteError) as error:
            print("no answer yet:", error)
        else:
            print("completed" if state.status == "completed" else "waits for a person")


if __name__ == "__main__":
    main()
