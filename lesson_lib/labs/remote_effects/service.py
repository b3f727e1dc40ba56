"""A payment service in a process of its own, which can be told to be slow, to fail, to die.

It keeps to the IETF draft "The Idempotency-Key HTTP Header Field" (version 07, section 2): the key
is a quoted string; without one a payment gets 400, a key that came before with another request
422, one whose first request is still in progress 409, each with a problem body. As payment
providers do (Stripe: "Idempotent requests"), it keeps the first answer, a refusal included, for a
day, gives it to every repeat with `Idempotent-Replayed: true`, and then forgets the key.
"""

from __future__ import annotations

import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from lesson_lib.json_text import JSONObject, from_json, to_json
from lesson_lib.labs.remote_effects.accounts import Accounts, Problem, Reply, checked, receipt
from lesson_lib.processes import die

# When the next payment goes wrong: die_between is after the money moved, before it is written down.
FAULTS = ("slow", "fail_before", "fail_after", "die_before", "die_between", "die_after")
LIMIT_CENTS = 100_000
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
        """Open the accounts, and a free port that only this machine can reach."""
        self.later, self.faults = later, list[str]()
        self.accounts = Accounts(folder, retention, lambda: time.time() + self.later)
        self.held, self.round, self.turn = 0, 0, threading.Condition()
        super().__init__(("127.0.0.1", 0), Handler)

    def server_bind(self) -> None:
        """Bind without asking for the host's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def server_close(self) -> None:
        """Give the port back, and close the accounts."""
        super().server_close()
        self.accounts.rows.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing: a client that has gone away is no news."""

    def pay(self, key: str | None, request: JSONObject) -> Reply | None:
        """Pay, with the next fault. None: the connection ends without an answer."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "fail_before":
            raise Problem(503, "The service is out of order")
        number, answer = self.accounts.reserve(key, request)
        if answer is not None:
            return answer
        if request["amount_cents"] > LIMIT_CENTS:
            title = f"{request['amount_cents']} cents are over the limit of {LIMIT_CENTS}"
            return self.accounts.record(number, 403, Problem(403, title).reply.body)
        with self._held_back(fault == "slow"):
            if fault == "die_before":
                die()
            self.accounts.pay(number, request)
            if fault == "die_between":
                die()
            answer = self.accounts.record(number, 201, receipt(number, request))
            if fault == "die_after":
                die()
        return None if fault == "fail_after" else answer

    @contextmanager
    def _held_back(self, slow: bool) -> Iterator[None]:
        if slow:
            with self.turn:
                self.held += 1
                self.turn.notify_all()
                now = self.round
                self.turn.wait_for(lambda: self.round != now)
        yield
        with self.turn:
            self.held -= slow
            self.turn.notify_all()

    def control(self, order: JSONObject) -> Reply:
        """Obey the lesson: have faults, let slow requests go on, move the clock."""
        faults, wanted = order.get("faults", self.faults), order.get("await_slow", 0)
        if not set(faults) <= set(FAULTS):
            raise Problem(400, f"The faults are {', '.join(FAULTS)}")
        self.faults = faults
        self.later += order.get("later", 0.0)
        with self.turn:
            if not self.turn.wait_for(lambda: self.held >= wanted, LONGEST_WAIT):
                raise Problem(504, "No slow request has come")
            if order.get("go_on"):
                self.round += 1
                self.turn.notify_all()
                self.turn.wait_for(lambda: not self.held, LONGEST_WAIT)
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
        url = urlsplit(self.path)
        if url.path == "/payments":
            reference = parse_qs(url.query).get("reference", [""])[0]
            return Reply(200, {"payments": self.server.accounts.payments(reference)})
        folder, _, key = url.path.rpartition("/")
        if folder != "/payments":
            raise Problem(404, "There is nothing here")
        return self.server.accounts.find(unquote(key))

    def _post(self) -> Reply | None:
        body = self._body()
        match self.path:
            case "/payments":
                return self.server.pay(self._key(), checked(body))
            case "/transfers":  # the old way to pay: it knows no keys
                return self.server.pay(None, checked(body))
            case "/refunds":
                return self.server.accounts.refund(body.get("payment_id"))
            case "/control":
                return self.server.control(body)
        raise Problem(404, "There is nothing here")

    def _key(self) -> str:
        found = self.headers.get_all("Idempotency-Key") or []
        if not found:
            raise Problem(400, "Idempotency-Key is missing")
        text = SF_STRING.fullmatch(found[0].strip())
        key = re.sub(r"\\(.)", r"\1", text[1]) if text else ""
        if len(found) > 1 or not 0 < len(key) <= 255:
            raise Problem(400, 'Idempotency-Key must be one "quoted string"')
        return key

    def _body(self) -> JSONObject:
        length = self.headers.get("Content-Length", "")
        try:
            body = from_json(self.rfile.read(int(length)).decode())
            to_json(body)
        except ValueError:  # its length may be missing, too
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


def main() -> None:
    """Be the service; the first line of the output is the port. It ends with its input."""
    folder, retention, later = sys.argv[1:]
    server = PaymentServer(Path(folder), float(retention), float(later))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()  # until the parent closes our standard input, or dies


if __name__ == "__main__":
    main()
