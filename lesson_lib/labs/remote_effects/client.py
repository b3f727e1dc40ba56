"""The payment service as its customers see it: what they ask, and what its answers tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from typing import ClassVar
from urllib.parse import quote

from lesson_lib.errors import KeyBusyError, RefusedError, RemoteError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.labs.remote_effects.accounts import NO_SUCH_KEY

KEY_LIVES = timedelta(hours=23)  # the service keeps keys for 24 hours, and clocks differ
REFUSALS = (400, 403, 413, 422)  # 401, 404, 410, 429 and others speak of now, or of the way


@dataclass(frozen=True)
class Answer:
    """What the service answered: status, decoded body, and what its headers say.

    Args:
        replayed: Whether it was the answer to an earlier request.
        is_problem: Whether it is a problem body (RFC 9457), as the service's refusals are.
    """

    status: int
    value: JSONValue
    replayed: bool = False
    is_problem: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Return the status and what it is about, on one line."""
        value = self.value if isinstance(self.value, dict) else {}
        text = value.get("payment_id") or value.get("title") or "(no words)"
        return f"{self.status} {text}{' (again)' * self.replayed}"


@dataclass(frozen=True)
class Payments:
    """A client of the service.

    Args:
        address: Such as `127.0.0.1:8080`.
        patience: How long to wait for the next piece of an answer, in seconds. It is no deadline:
            an answer that trickles in may take longer.
    """

    address: str
    patience: float = 10.0
    key_lives: ClassVar[timedelta] = KEY_LIVES

    def pay(self, key: str, request: JSONObject) -> JSONObject:
        """Pay once per key, and return the receipt.

        Raises:
            RemoteError: No answer came, or one that leaves open what happened. Ask again.
            KeyBusyError: The first request with this key is still in progress. Ask later.
            RefusedError: This request will never succeed.
        """
        return _said(self.ask("POST", "/payments", request, key), "payment_id")

    def outcome(self, key: str) -> JSONObject | None:
        """Return the receipt of the payment with this key, None if the service knows no such key.

        Errors as in `pay`. Only the stored answer says that the payment was refused: any other
        refusal is about this question.
        """
        answer = self.ask("GET", f"/payments/{quote(key, safe='')}")
        # Only in the service's own words: a proxy on the way says 404 too.
        if answer.status == 404 and NO_SUCH_KEY in str(answer.value):
            return None
        return _said(answer, "payment_id", final=answer.replayed)

    def transfer(self, request: JSONObject) -> JSONObject:
        """Pay the old way, without a key: every request is a new one. Errors as in `pay`."""
        return _said(self.ask("POST", "/transfers", request), "payment_id")

    def payments_of(self, reference: str) -> list[JSONObject]:
        """Return what was paid under a reference and not paid back. Errors as in `pay`."""
        answer = self.ask("GET", f"/payments?reference={quote(reference, safe='')}")
        receipts: list[JSONObject] = _said(answer, "payments", list)["payments"]
        return receipts

    def refund(self, payment_id: str) -> JSONObject:
        """Undo a payment; a repeat changes nothing. Errors as in `pay`."""
        return _said(self.ask("POST", "/refunds", {"payment_id": payment_id}), "refund_id")

    def ask(
        self, method: str, path: str, body: JSONObject | None = None, key: str | None = None
    ) -> Answer:
        """Send one request and return the answer, whatever its status.

        Raises:
            RemoteError: No answer came, or one that cannot be used.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            escaped = key.replace("\\", r"\\").replace('"', r"\"")
            headers["Idempotency-Key"] = f'"{escaped}"'
        text = None if body is None else to_json(body).encode()
        # http.client asks no environment variable for a proxy.
        connection = HTTPConnection(self.address, timeout=self.patience)
        try:
            connection.request(method, path, text, headers)
            reply = connection.getresponse()
            # Without a length, half of an answer could not be told from a whole one.
            if reply.length is None:
                raise ValueError("the answer has no length")
            value = from_json(reply.read().decode())
            to_json(value)  # what could not be stored is no answer
        except (OSError, HTTPException, ValueError) as error:
            raise RemoteError(
                f"no answer to {method} {path.partition('?')[0]}: what the service did is not known"
            ) from error
        finally:
            connection.close()
        replayed = reply.headers.get("Idempotent-Replayed") == "true"
        is_problem = reply.headers.get_content_type() == "application/problem+json"
        return Answer(reply.status, value, replayed, is_problem)


def _said(answer: Answer, name: str, kind: type = str, *, final: bool = True) -> JSONObject:
    """Return what the service said if it holds this name; a refusal counts where it is `final`."""
    value: JSONObject = answer.value if isinstance(answer.value, dict) else {}
    if 200 <= answer.status < 300 and isinstance(value.get(name), kind):
        return value
    said = f"the service said {answer.status}: {value.get('title')}"
    if answer.status == 409:
        raise KeyBusyError(said)
    # Not just any 4xx: a proxy on the way refuses in words of its own.
    if answer.status in REFUSALS and answer.is_problem and final:
        raise RefusedError(said)
    raise RemoteError(said)


@dataclass(frozen=True)
class WithoutKeys:
    """A service that takes no keys, asked as well as it can be asked: by the reference."""

    service: Payments
    key_lives: ClassVar[timedelta] = timedelta()  # who takes no keys has forgotten each at once

    def pay(self, key: str, request: JSONObject) -> JSONObject:
        """Pay; a repeat pays again."""
        return self.service.transfer(request)

    def outcome(self, key: str) -> JSONObject | None:
        """Return the first payment of the run, and pay back any other; None if there is none.

        What was paid back before is in no list, so it counts as not paid.
        """
        paid = self.service.payments_of(key.partition(":")[0])
        for surplus in paid[1:]:
            self.service.refund(surplus["payment_id"])
        return paid[0] if paid else None
