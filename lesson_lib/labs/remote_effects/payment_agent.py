"""The payment agent: its first action is a payment, made as a tool call or with an intent."""

from __future__ import annotations

from dataclasses import dataclass

from lesson_lib.agent import Action, Agent, CallTool, Context, Passing, tool_key
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import OutcomeUnknownError
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.labs.remote_effects.client import Payments, WithoutKeys
from lesson_lib.model import RunState, Step
from lesson_lib.riders.intents import call, confirm, find_intent, intend, refuse, settle
from lesson_lib.riders.questions import Ask, answer_of
from lesson_lib.sqlite import SQLiteStore

QUESTION = "Was the call-out paid? Look at the bank's statement."
CHOICES = ("paid", "pay again")
SCHEMA = ContextSchema(
    fields={"key": str, "request": dict, "confirmed": dict, "refused": str},
    required=("key", "request"),
)


@dataclass(frozen=True)
class PaymentService:
    """A payment service, with or without keys, that passes the crash point `called`."""

    interface: Payments | WithoutKeys
    passing: Passing = lambda point: None

    def pay(self, key: str, request: JSONObject) -> JSONObject:
        """Pay, and pass the point when an answer has come."""
        receipt = self.interface.pay(key, request)
        self.passing("pay_call_out:called")
        return receipt

    def outcome(self, key: str) -> JSONObject | None:
        """Ask what became of the payment with this key."""
        return self.interface.outcome(key)

    def pay_call_out(self, key: str, **request: JSONValue) -> JSONObject:
        """Pay as a tool of the agent."""
        return self.pay(key, request)


def payment_agent(store: SQLiteStore, service: PaymentService, way: str) -> Agent:
    """Return the agent that pays as a `tool`, whose result is kept, or with an `intent` before."""
    payer = IntentPayer(store, service)
    pay = {"tool": pay_once, "intent": payer.pay_or_ask}[way]
    actions = {
        "pay_call_out": Action(pay, "confirmed", "call_out_paid", None),
        "await_decision": Action(payer.follow_decision, "confirmed", "decision_followed", None),
    }
    return Agent(actions, begin, SCHEMA)


def begin(run_id: str) -> RunState:
    """Return what the run of a call-out begins with: the key is made before anything is sent."""
    context = {"key": tool_key(run_id, "pay_call_out"), "request": fee(run_id)}
    return RunState.begin(run_id, run_id.removeprefix("run-"), "pay_call_out", context)


def fee(run_id: str) -> JSONObject:
    """Return the payment of a call-out: 120 euros to the contractor, for this run."""
    return {"amount_cents": 12_000, "payee": "Frost Repairs", "reference": run_id}


def pay_once(context: Context, call_tool: CallTool) -> Step:
    """Pay as with any tool: the store keeps the result, once it has come."""
    receipt = call_tool("pay_call_out", **context["request"])
    return Step("pay_call_out", {"confirmed": receipt}, next_action=None)


@dataclass(frozen=True)
class IntentPayer:
    """Pays with an intent, and asks a person where nobody can tell whether it happened."""

    store: SQLiteStore
    service: PaymentService

    def pay_or_ask(self, context: Context, call_tool: CallTool) -> Step:
        """Pay, or settle what an earlier session began, or ask.

        Raises:
            KeyBusyError, RemoteError: There is no answer; the intent stays open.
        """
        connection, session, service = self.store.connection, self.store.session, self.service
        key, request = context["key"], context["request"]
        intent = find_intent(connection, key)
        if intent is None:
            about = {"run_id": request["reference"], "tool_name": "pay_call_out"}
            intent = intend(connection, key=key, request=request, session=session, **about)
            service.passing("pay_call_out:intended")
            intent = call(connection, intent, service, session=session)
        elif intent.status == "intended":
            lives = service.interface.key_lives
            try:
                intent = settle(connection, intent, service, session=session, key_lives=lives)
            except OutcomeUnknownError:
                question = Ask(key, QUESTION, CHOICES)
                return Step("pay_call_out", {}, "await_decision", riders=(question,))
        service.passing("pay_call_out:confirmed")
        return Step("pay_call_out", {intent.status: intent.answer}, next_action=None)

    def follow_decision(self, context: Context, call_tool: CallTool) -> Step | None:
        """Do what a person decided; wait while there is no decision.

        An answer of the service that has been stored meanwhile counts more than the decision.
        """
        connection, key = self.store.connection, context["key"]
        choice, intent = answer_of(connection, key), find_intent(connection, key)
        if choice is None or intent is None:
            self.service.passing("await_decision:waiting")
            return None
        about = {"session": self.store.session}
        if choice == "paid":
            intent = confirm(connection, intent, answer={"said by": "a person"}, **about)
        else:
            reason = "a person says that it did not happen"
            intent = refuse(connection, intent, reason=reason, **about)
        if choice == "pay again" and intent.status == "refused":
            return Step("await_decision", {"key": f"{key}:again"}, "pay_call_out")
        return Step("await_decision", {intent.status: intent.answer}, next_action=None)
