"""The client of the payment service tells apart what is known, what is refused, and what is not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from remote_parts import fee

from lesson_lib.errors import KeyBusyError, RefusedError, RemoteError
from lesson_lib.labs.remote_effects.client import Answer, Payments

CALLS: dict[str, Callable[[Payments], object]] = {
    "pay": lambda service: service.pay("k", fee("run-1")),
    "outcome": lambda service: service.outcome("k"),
    "transfer": lambda service: service.transfer(fee("run-1")),
    "payments_of": lambda service: service.payments_of("run-1"),
    "refund": lambda service: service.refund("payment-1"),
}
EVERY = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


@contextmanager
def answering(reply: bytes, heard: list[bytes] | None = None) -> Iterator[Payments]:
    """Answer one request with these bytes, whatever it is, and close the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)  # nobody may come

        def answer() -> None:
            with suppress(TimeoutError), listening.accept()[0] as connection:
                request = connection.recv(65536)
                if heard is not None:
                    heard.append(request)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield Payments(f"127.0.0.1:{listening.getsockname()[1]}")
        finally:
            thread.join()


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.0 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


PROBLEM = "Content-Type: application/problem+json; charset=utf-8"
REPLAYED = "Idempotent-Replayed: true"


@EVERY
@pytest.mark.parametrize(
    ("status", "error"),
    [(status, RefusedError) for status in (400, 403, 413, 422)]
    + [(409, KeyBusyError)]
    + [
        (status, RemoteError)
        for status in (302, 401, 404, 405, 407, 408, 410, 425, 429, 500, 502, 503, 504)
    ],
)
def test_a_status_says_whether_to_repeat_to_wait_or_to_give_up(
    call: Callable[[Payments], object], status: int, error: type[Exception]
) -> None:
    with (
        answering(http(status, b'{"title": "Not so"}', PROBLEM, REPLAYED)) as service,
        pytest.raises(error, match=f"the service said {status}: Not so"),
    ):
        call(service)


@EVERY
@pytest.mark.parametrize("status", [400, 403, 413, 422])
@pytest.mark.parametrize("headers", [[], ["Content-Type: application/json"]], ids=str)
def test_somebody_on_the_way_cannot_refuse_for_the_service(
    call: Callable[[Payments], object], status: int, headers: list[str]
) -> None:
    with (
        answering(http(status, b'{"title": "Not so"}', *headers)) as service,
        pytest.raises(RemoteError),
    ):
        call(service)


def test_a_refused_question_says_nothing_about_the_payment() -> None:
    reply = http(403, b'{"title": "Not so"}', PROBLEM)
    with answering(reply) as service, pytest.raises(RemoteError):
        service.outcome("k")


@EVERY
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.0 2",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        http(201, b"<html>"),
        http(201, b"\xff"),
        http(201, b'{"payment_id": "payment-1"}').replace(b"27", b"28"),
        http(404, b"<html>No payment is known under this key</html>"),
        http(403, b'{"title": "\\ud800"}', PROBLEM),
        http(201, b'{"payment_id": "payment-1", "cents": %d}' % 2**70),
        http(201, b'{"payment_id": "payment-1", "a": %s}' % (b"[" * 150 + b"]" * 150)),
        b'HTTP/1.0 201 No length\r\n\r\n{"payment_id": "payment-1"}',
    ],
    ids=lambda reply: repr(reply[:60]),
)
def test_what_is_no_answer_leaves_open_what_happened(
    call: Callable[[Payments], object], reply: bytes
) -> None:
    with answering(reply) as service, pytest.raises(RemoteError, match="did is not known"):
        call(service)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"payment-1"'])
def test_a_receipt_is_an_object(body: bytes) -> None:
    with answering(http(201, body)) as service, pytest.raises(RemoteError, match="201: None"):
        service.pay("k", fee("run-1"))


@EVERY
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"ok": true}',
        b'{"payment_id": 1, "refund_id": null, "payments": {}}',
    ],
    ids=repr,
)
def test_a_receipt_names_its_payment(call: Callable[[Payments], object], body: bytes) -> None:
    with answering(http(200, body)) as service, pytest.raises(RemoteError, match="said 200"):
        call(service)


@EVERY
def test_nobody_there_is_no_answer(call: Callable[[Payments], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RemoteError, match="no answer to"):
        call(Payments(address))


@EVERY
def test_patience_ends(call: Callable[[Payments], object]) -> None:
    gave_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)

        def answer_late() -> None:
            with suppress(OSError), listening.accept()[0] as connection:
                gave_up.wait(5)
                connection.sendall(http(200, b'{"payments": []}'))

        thread = threading.Thread(target=answer_late)
        thread.start()
        try:
            with pytest.raises(RemoteError, match="no answer to"):
                call(Payments(f"127.0.0.1:{listening.getsockname()[1]}", patience=0.05))
        finally:
            gave_up.set()
            thread.join()


def test_only_the_services_own_words_say_that_a_key_is_unknown() -> None:
    unknown = b'{"status": 404, "title": "No payment is known under this key"}'
    with answering(http(404, unknown)) as service:
        assert service.outcome("k") is None
    with answering(http(404, unknown)) as service, pytest.raises(RemoteError):
        service.pay("k", fee("run-1"))


def test_the_key_goes_as_a_quoted_string_and_a_query_needs_none() -> None:
    heard: list[bytes] = []
    with answering(http(201, b'{"payment_id": "payment-1"}'), heard) as service:
        service.pay('a "b" \\', fee("run-1"))
    with answering(http(200, b'{"payments": []}'), heard) as service:
        service.payments_of("run 1&2")
    assert b'\r\nIdempotency-Key: "a \\"b\\" \\\\"\r\n' in heard[0]
    assert heard[1].startswith(b"GET /payments?reference=run%201%262 ")
    assert b"Idempotency" not in heard[1]


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering(http(201, b'{"payment_id": "payment-1"}')) as service:
        assert service.pay("k", fee("run-1")) == {"payment_id": "payment-1"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(201, {"payment_id": "payment-1"}), "201 payment-1"),
        (Answer(403, {"title": "Over the limit"}, replayed=True), "403 Over the limit (again)"),
        (Answer(200, []), "200 (no words)"),
    ],
)
def test_an_answer_fits_on_a_line(answer: Answer, words: str) -> None:
    assert str(answer) == words
