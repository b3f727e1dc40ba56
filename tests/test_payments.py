"""The client of the payment service tells apart what is known, what is refused, and what is not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from remote_parts import fee

from lesson_lib.errors import KeyBusyError, RefusedError, RemoteError
from lesson_lib.payments.client import Answer, Payments

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

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                request = connection.recv(65536)
                if heard is not None:
                    heard.append(request)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Payments(f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.0 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@EVERY
@pytest.mark.parametrize(
    ("status", "error"),
    [(400, RefusedError), (403, RefusedError), (409, KeyBusyError), (422, RefusedError)]
    + [(status, RemoteError) for status in (302, 404, 408, 425, 429, 500, 502, 503, 504)],
)
def test_a_status_says_whether_to_repeat_to_wait_or_to_give_up(
    call: Callable[[Payments], object], status: int, error: type[Exception]
) -> None:
    with (
        answering(http(status, b'{"title": "Not so"}')) as service,
        pytest.raises(error, match=f"the service said {status}: Not so"),
    ):
        call(service)


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
    ],
    ids=repr,
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
def test_nobody_there_is_no_answer(call: Callable[[Payments], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RemoteError, match="no answer to"):
        call(Payments(address))


@EVERY
def test_patience_ends(call: Callable[[Payments], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RemoteError, match="no answer to"):
            call(Payments(address, patience=0.05))


def test_only_the_services_own_words_say_that_a_key_is_unknown() -> None:
    unknown = b'{"status": 404, "title": "No payment is known under this key"}'
    with answering(http(404, unknown)) as service:
        assert service.outcome("k") is None
    with answering(http(404, unknown)) as service, pytest.raises(RemoteError):
        service.pay("k", fee("run-1"))


def test_the_key_goes_as_a_quoted_string_and_a_query_needs_none() -> None:
    heard: list[bytes] = []
    with answering(http(201, b"{}"), heard) as service:
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
