"""A payment service in a process of its own, which can be told to be slow, to fail, to die.

It keeps to the IETF draft "The Idempotency-Key HTTP Header Field" (version 07, section 2): the key
is a quoted string; without one a payment gets 400, a key that came before with another request
422, one whose first request is still in progress 409, each with a problem body. As payment
providers do (Stripe: "Idempotent requests"), it keeps the first answer, a refusal included, for a
day, gives it to every repeat with `Idempotent-Replayed: true`, and then forgets the key.
"""

from __future__ import annotations

import argparse
import os
import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from lesson_lib.json_text import JSONObject, from_json, to_json
from lesson_lib.payments.books import LIMIT_CENTS, Books, Problem, Reply, checked, receipt

# When the next payment goes wrong: die_between is after the money moved, before it is written down.
FAULTS = ("slow", "fail_before", "fail_after", "die_before", "die_between", "die_after")
LONGEST_BODY = 10_000  # bytes; the rest is not read, so who sends far more may miss the answer
LONGEST_KEY = 255
LONGEST_WAIT = 30.0  # seconds, for whoever waits for another request
SF_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # RFC 8941, section 3.3.3


class PaymentServer(ThreadingHTTPServer):
    """The server: a thread for each request, and the faults it was told to have.

    Args:
        folder: Where it keeps its files.
        retention: How long it remembers a key, in seconds.
        later: How far its clock is ahead, in seconds.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, retention: float, later: float = 0.0) -> None:
        """Open the books, and a free port that only this machine can reach."""
        self.later, self.faults = later, list[str]()
        self.books = Books(folder, retention, lambda: time.time() + self.later)
        self.held, self.round, self.turn = 0, 0, threading.Condition()
        super().__init__(("127.0.0.1", 0), Handler)

    def server_bind(self) -> None:
        """Bind without asking for the host's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def server_close(self) -> None:
        """Give the port back, and close the books."""
        super().server_close()
        self.books.rows.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing: a client that has gone away is no news."""

    def pay(self, key: str | None, request: JSONObject) -> Reply | None:
        """Pay, with the next fault. None: the connection ends without an answer."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "fail_before":
            raise Problem(503, "The service is out of order")
        number, answer = self.books.reserve(key, request)
        if answer is not None:
            return answer
        try:
            answer = self._pay(number, request, fault)
        except Exception:
            self._settle_or_die(number)
            raise
        return None if fault == "fail_after" else answer

    def _pay(self, number: int, request: JSONObject, fault: str) -> Reply:
        if request["amount_cents"] > LIMIT_CENTS:
            title = f"{request['amount_cents']} cents are over the limit of {LIMIT_CENTS}"
            return self.books.record(number, 403, Problem(403, title).reply.body)
        if fault == "slow":
            self._wait_for_go()
        try:
            die_if(fault == "die_before")
            self.books.pay(number, request)
            die_if(fault == "die_between")
            answer = self.books.record(number, 201, receipt(number, request))
            die_if(fault == "die_after")
            return answer
        finally:
            with self.turn:
                self.held -= fault == "slow"
                self.turn.notify_all()

    def _settle_or_die(self, number: int) -> None:
        # A key must not stay "in progress" when nothing is at work; the next start settles it too.
        try:
            self.books.settle(number)
        except Exception:
            die_if(True)
            raise

    def _wait_for_go(self) -> None:
        with self.turn:
            self.held += 1
            self.turn.notify_all()
            now = self.round
            self.turn.wait_for(lambda: self.round != now)

    def control(self, order: JSONObject) -> Reply:
        """Obey the lesson: have faults, let slow requests go on, move the clock."""
        faults = order.get("faults", self.faults)
        if not isinstance(faults, list) or not all(fault in FAULTS for fault in faults):
            raise Problem(400, f"The faults are {', '.join(FAULTS)}")
        later, wanted = order.get("later", 0.0), order.get("await_slow", 0)
        if type(later) not in (int, float) or type(wanted) is not int:
            raise Problem(400, "later is a number, await_slow a whole number")
        self.faults = faults
        self.later += later
        with self.turn:
            if not self.turn.wait_for(lambda: self.held >= wanted, LONGEST_WAIT):
                raise Problem(504, "No slow request has come")
            if order.get("go_on"):
                self.round += 1
                self.turn.notify_all()
                if not self.turn.wait_for(lambda: not self.held, LONGEST_WAIT):
                    raise Problem(504, "A slow request does not end")
        return Reply(200, {})


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PaymentServer
    timeout = 10  # seconds; a client that stops in the middle must not hold a thread

    def do_GET(self) -> None:
        """Tell what is known of a key, or of a reference."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Pay, pay back, or obey the lesson."""
        self._answer(self._post)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's name)
        """Write nothing."""

    def _get(self) -> Reply:
        try:
            url = urlsplit(self.path)
        except ValueError:
            raise Problem(400, "The address cannot be read") from None
        if url.path == "/payments":
            reference = parse_qs(url.query).get("reference", [""])[0]
            return Reply(200, {"payments": self.server.books.payments(reference)})
        folder, _, key = url.path.rpartition("/")
        if folder != "/payments":
            raise Problem(404, "There is nothing here")
        return self.server.books.find(unquote(key))

    def _post(self) -> Reply | None:
        body = self._body()
        match self.path:
            case "/payments":
                return self.server.pay(self._key(), checked(body))
            case "/transfers":  # the old way to pay: it knows no keys
                return self.server.pay(None, checked(body))
            case "/refunds":
                return self.server.books.refund(body.get("payment_id"))
            case "/control":
                return self.server.control(body)
        raise Problem(404, "There is nothing here")

    def _key(self) -> str:
        found = self.headers.get_all("Idempotency-Key") or []
        if not found:
            raise Problem(400, "Idempotency-Key is missing")
        text = SF_STRING.fullmatch(found[0].strip())
        key = re.sub(r"\\(.)", r"\1", text[1]) if text else ""
        if len(found) > 1 or not 0 < len(key) <= LONGEST_KEY:
            raise Problem(400, 'Idempotency-Key must be one "quoted string"')
        return key

    def _body(self) -> JSONObject:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length):
            raise Problem(411, "Content-Length is missing")
        if int(length) > LONGEST_BODY:
            raise Problem(413, f"The body is longer than {LONGEST_BODY} bytes")
        try:
            body = from_json(self.rfile.read(int(length)).decode())
            to_json(body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Problem(400, "The body is not a JSON object")
        return body

    def _answer(self, find: Callable[[], Reply | None]) -> None:
        try:
            reply = find()
        except Problem as problem:
            reply = problem.reply
        if reply is None:
            return
        content = to_json(reply.body).encode()
        kind = "application/problem+json" if reply.status >= 400 else "application/json"
        self.send_response(reply.status)
        for name, value in {"Content-Type": kind, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def die_if(wanted: bool) -> None:
    """End the process at once, without any cleanup."""
    if wanted:
        os._exit(1)


def end_with_parent() -> None:
    """End the process when the parent closes our standard input, or dies."""
    sys.stdin.read()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the service; the first line of the output is the port."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.payments.service", description=main.__doc__
    )
    parser.add_argument("folder", type=Path, help="where the service keeps its files")
    parser.add_argument("retention", type=float, help="how long a key is remembered, in seconds")
    parser.add_argument("later", type=float, help="how far the clock is ahead, in seconds")
    options = parser.parse_args(arguments)
    server = PaymentServer(options.folder, options.retention, options.later)
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
