"""The payment service keeps its word: one payment per key, whatever happens, says its bank."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
from remote_parts import client, fee, served

from lesson_lib.errors import ChildError, KeyBusyError, RefusedError, RemoteError
from lesson_lib.json_text import from_json
from lesson_lib.labs.remote_effects import service as payment_service
from lesson_lib.labs.remote_effects.client import Answer, Payments, WithoutKeys
from lesson_lib.labs.remote_effects.service import FAULTS, LIMIT_CENTS, PaymentServer
from lesson_lib.labs.remote_effects.service_process import Service
from lesson_lib.ledger import Ledger
from lesson_lib.processes import Child

DYING = [fault for fault in FAULTS if fault.startswith("die")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaymentServer]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def payments(server: PaymentServer) -> Payments:
    return client(server)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "a service") as service:
        yield service


def post(server: PaymentServer, body: bytes, *headers: tuple[str, str]) -> tuple[int, str, object]:
    """Send a payment byte by byte as given, and return status, content type and body."""
    with closing(HTTPConnection(f"127.0.0.1:{server.server_port}", timeout=10)) as connection:
        connection.putrequest("POST", "/payments")
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.headers["Content-Type"], from_json(reply.read().decode())


def send(payments: Payments, key: str, cents: int = 12_000) -> Answer:
    return payments.ask("POST", "/payments", fee("run-1", cents), key)


# The convention: which requests are turned away, and what a repeat gets.

GOOD = b'{"amount_cents": 5, "payee": "Frost", "reference": "run-1"}'
LENGTH = ("Content-Length", str(len(GOOD)))
PROBLEM = "application/problem+json"


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["k"],
        ["'k'"],
        ['"k'],
        ['""'],
        ['"a"b"'],
        [r'"a\b"'],
        ['"k";a=1'],
        ['"ä"'],
        ['"a\tb"'],
        ['"k"', '"k"'],
        ['"k", "l"'],
        [f'"{"k" * 256}"'],
    ],
    ids=str,
)
def test_a_payment_without_one_well_formed_key_is_turned_away(
    server: PaymentServer, keys: list[str]
) -> None:
    status, kind, body = post(server, GOOD, LENGTH, *(("Idempotency-Key", key) for key in keys))
    assert (status, kind) == (400, PROBLEM)
    assert isinstance(body, dict)
    assert "Idempotency-Key" in body["title"]
    assert server.accounts.bank.lines() == []


@pytest.mark.parametrize("key", ["k", 'a "quoted" one', r"back\slash", "a/b?c#d%20", '"' * 255])
def test_a_key_may_hold_any_printable_character(payments: Payments, key: str) -> None:
    receipt = payments.pay(key, fee("run-1"))
    assert payments.pay(key, fee("run-1")) == payments.outcome(key) == receipt


@pytest.mark.parametrize(
    ("body", "status", "title"),
    [
        (b"", 400, "The body is not a JSON object"),
        (b"[]", 400, "The body is not a JSON object"),
        (b"{", 400, "The body is not a JSON object"),
        (b"\xff", 400, "The body is not a JSON object"),
        (b'{"payee": "\\ud800"}', 400, "The body is not a JSON object"),
        (GOOD.replace(b"5", b"NaN"), 400, "The body is not a JSON object"),
        (b"[" * 5000, 400, "The body is not a JSON object"),
        (GOOD.replace(b"5", b"true"), 400, "A payment has amount_cents"),
        (GOOD.replace(b"5", b"5.0"), 400, "A payment has amount_cents"),
        (GOOD.replace(b"payee", b"payer"), 400, "A payment has amount_cents"),
        (GOOD.replace(b"5,", b'5, "note": "",'), 400, "A payment has amount_cents"),
        (GOOD.replace(b"5", b"0"), 400, "A payment has amount_cents"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_that_is_no_payment_is_turned_away_and_takes_no_key(
    server: PaymentServer, payments: Payments, body: bytes, status: int, title: str
) -> None:
    headers = ("Content-Length", str(len(body))), ("Idempotency-Key", '"k"')
    found, kind, problem = post(server, body, *headers)
    assert (found, kind) == (status, PROBLEM)
    assert isinstance(problem, dict)
    assert problem["title"].startswith(title)
    assert problem["status"] == status
    assert send(payments, "k").status == 201
    assert len(server.accounts.bank.lines()) == 1


@pytest.mark.parametrize("length", [[], [("Content-Length", "1e9")]])
def test_a_body_of_unknown_length_is_not_read(
    server: PaymentServer, length: list[tuple[str, str]]
) -> None:
    assert post(server, GOOD, ("Idempotency-Key", '"k"'), *length)[0] == 400


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/keys/k"), ("POST", "/"), ("POST", "/payments/k")]
)
def test_there_is_nothing_elsewhere(payments: Payments, method: str, path: str) -> None:
    assert str(payments.ask(method, path, {})) == "404 There is nothing here"


def test_a_repeat_gets_the_first_answer(server: PaymentServer, payments: Payments) -> None:
    first = send(payments, "k")
    assert first == Answer(201, {"payment_id": "payment-1", **fee("run-1")})
    for _ in range(3):
        assert send(payments, "k") == Answer(201, first.value, replayed=True)
    assert payments.ask("GET", "/payments/k") == Answer(201, first.value, replayed=True)
    assert server.accounts.bank.lines() == ["payment-1 run-1 12000"]


def test_the_order_and_the_spaces_of_a_request_do_not_matter(server: PaymentServer) -> None:
    other = b' { "reference":"run-1",\n"payee":"Frost", "amount_cents":5}'
    for body in (GOOD, other):
        length = ("Content-Length", str(len(body)))
        assert post(server, body, length, ("Idempotency-Key", '"k"'))[0] == 201
    assert len(server.accounts.bank.lines()) == 1


def test_a_key_with_another_request_is_turned_away(
    server: PaymentServer, payments: Payments
) -> None:
    first = send(payments, "k")
    assert send(payments, "k", 12_001).status == 422
    assert send(payments, "k").value == first.value
    assert len(server.accounts.bank.lines()) == 1


def test_a_refusal_is_kept_as_well(server: PaymentServer, payments: Payments) -> None:
    refused = send(payments, "k", LIMIT_CENTS + 1)
    assert refused.status == 403
    assert not refused.replayed
    assert send(payments, "k", LIMIT_CENTS + 1) == Answer(403, refused.value, replayed=True)
    with pytest.raises(RefusedError, match="403: 100001 cents are over the limit of 100000"):
        payments.outcome("k")
    assert send(payments, "l", LIMIT_CENTS).status == 201
    assert payments.payments_of("run-1") == [{"payment_id": "payment-2", **fee("run-1", 100_000)}]
    assert server.accounts.bank.lines() == ["payment-2 run-1 100000"]


def test_an_unknown_key_has_no_outcome(payments: Payments) -> None:
    assert payments.outcome("k") is None


# Two requests at once.


def test_while_the_first_request_is_in_progress_a_repeat_is_told_to_come_later(
    service: Service,
) -> None:
    service.fail("slow")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(service.client.pay, "k", fee("run-1"))
        service.await_slow()
        with pytest.raises(KeyBusyError, match="409: The first request with this key is still"):
            service.client.pay("k", fee("run-1"))
        with pytest.raises(KeyBusyError):
            service.client.outcome("k")
        with pytest.raises(RefusedError, match="422"):
            service.client.pay("k", fee("run-1", 1))
        assert service.client.payments_of("run-1") == []
        service.client.pay("other", fee("run-2"))
        service.go_on()
    assert service.client.outcome("k") == first.result()
    assert (service.paid("run-1"), service.paid("run-2")) == (["payment-1"], ["payment-2"])


def test_who_has_to_wait_is_told_for_how_long(server: PaymentServer, payments: Payments) -> None:
    server.faults += ["slow"]
    with ThreadPoolExecutor() as threads:
        threads.submit(payments.pay, "k", fee("run-1"))
        server.control({"await_slow": 1})
        with closing(HTTPConnection(payments.address, timeout=10)) as connection:
            connection.request("GET", "/payments/k")
            reply = connection.getresponse()
            assert (reply.status, reply.headers["Retry-After"]) == (409, "1")
        server.control({"go_on": True})


def test_a_hundred_requests_with_one_key_pay_once(service: Service) -> None:
    together = threading.Barrier(20, timeout=10)

    def request(_: int) -> Answer:
        together.wait()
        return service.client.ask("POST", "/payments", fee("run-1"), "k")

    with ThreadPoolExecutor(20) as threads:
        sent = [threads.submit(request, number) for number in range(100)]
    answers = [each.result() for each in sent]
    assert service.paid("run-1") == ["payment-1"]
    assert [a.replayed for a in answers if a.status == 201].count(False) == 1
    assert {a.status for a in answers} <= {201, 409}


def test_forty_keys_pay_forty_times(service: Service) -> None:
    with ThreadPoolExecutor(20) as threads:
        receipts = list(threads.map(lambda n: service.client.pay(f"k{n}", fee("run-1")), range(40)))
    assert len({receipt["payment_id"] for receipt in receipts}) == 40
    assert sorted(service.paid("run-1")) == sorted(r["payment_id"] for r in receipts)


# Keys expire.


def test_a_key_is_forgotten_after_its_time_and_then_pays_again(
    server: PaymentServer, payments: Payments
) -> None:
    now = 1_000.0
    server.accounts.clock = lambda: now
    first = send(payments, "k")
    now += 86_399.0
    assert send(payments, "k").replayed
    now += 1.0
    assert payments.outcome("k") is None
    second = send(payments, "k")
    assert (second.status, second.replayed) == (201, False)
    assert [first.value, second.value] == payments.payments_of("run-1")
    assert len(server.accounts.bank.lines()) == 2


def test_a_key_is_remembered_from_its_answer_on(server: PaymentServer, payments: Payments) -> None:
    now = 1_000.0
    server.accounts.clock = lambda: now
    server.faults += ["slow"]
    with ThreadPoolExecutor() as threads:
        threads.submit(payments.pay, "k", fee("run-1"))
        server.control({"await_slow": 1})
        now += 86_400.0
        server.control({"go_on": True})
    assert payments.outcome("k") is not None
    now += 86_400.0
    assert payments.outcome("k") is None


def test_a_key_is_not_forgotten_while_its_request_is_in_progress(service: Service) -> None:
    service.fail("slow")
    with ThreadPoolExecutor() as threads:
        threads.submit(service.client.pay, "k", fee("run-1"))
        service.await_slow()
        service.move_clock(timedelta(hours=25))
        with pytest.raises(KeyBusyError):
            service.client.pay("k", fee("run-1"))
        service.go_on()
    assert len(service.paid("run-1")) == 1


def test_a_restarted_service_has_the_clock_it_had(service: Service) -> None:
    service.client.pay("k", fee("run-1"))
    service.move_clock(timedelta(hours=23))
    service.start()
    assert service.client.outcome("k") is not None
    service.move_clock(timedelta(hours=1))
    service.start()
    assert service.client.outcome("k") is None


# Failures and deaths.


@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.parametrize("ask_first", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_whatever_fails_a_repeat_with_the_key_pays_once(
    service: Service, fault: str, ask_first: bool
) -> None:
    service.fail(fault)
    with pytest.raises(RemoteError):
        service.client.pay("k", fee("run-1"))
    moved = fault not in ("fail_before", "die_before")
    assert len(service.paid("run-1")) == moved
    if fault in DYING:
        with pytest.raises(RemoteError, match="no answer to POST"):
            service.client.pay("k", fee("run-1"))
        service.start()
    if ask_first:
        assert (service.client.outcome("k") is not None) == moved
    receipt = service.client.pay("k", fee("run-1"))
    assert service.paid("run-1") == [receipt["payment_id"]]
    assert service.client.payments_of("run-1") == [receipt]


def test_a_restarted_service_knows_its_keys_and_numbers_again(service: Service) -> None:
    first = service.client.pay("k", fee("run-1"))
    service.start()
    assert service.client.pay("k", fee("run-1")) == first
    assert service.client.pay("l", fee("run-1"))["payment_id"] == "payment-2"


def test_a_service_that_dies_with_several_requests_in_progress_settles_each(
    service: Service,
) -> None:
    service.fail("slow", "slow", "die_between")
    with ThreadPoolExecutor() as threads:
        held = [threads.submit(service.client.pay, key, fee("run-1")) for key in "ab"]
        service.await_slow(2)
        with pytest.raises(RemoteError):
            service.client.pay("c", fee("run-1"))
    assert all(isinstance(each.exception(), RemoteError) for each in held)
    service.start()
    assert [service.client.outcome(key) is not None for key in "abc"] == [False, False, True]
    for key in "abc":
        service.client.pay(key, fee("run-1"))
    assert len(service.paid("run-1")) == 3


def test_the_number_of_a_payment_that_never_was_is_not_given_again(service: Service) -> None:
    service.fail("die_before")
    with pytest.raises(RemoteError):
        service.client.pay("k", fee("run-1"))
    service.start()
    assert service.client.pay("l", fee("run-1"))["payment_id"] == "payment-2"


def test_a_forgotten_key_does_not_vouch_for_its_second_payment(service: Service) -> None:
    service.client.pay("k", fee("run-1"))
    service.move_clock(timedelta(hours=25))
    service.fail("die_before")
    with pytest.raises(RemoteError):
        service.client.pay("k", fee("run-1"))
    service.start()
    assert service.client.outcome("k") is None


def test_faults_come_in_the_order_they_were_told(service: Service) -> None:
    service.fail("fail_before", "fail_after")
    with pytest.raises(RemoteError, match="503"):
        service.client.pay("k", fee("run-1"))
    with pytest.raises(RemoteError, match="no answer"):
        service.client.pay("k", fee("run-1"))
    service.client.pay("k", fee("run-1"))
    with pytest.raises(ChildError, match="The faults are slow, fail_before"):
        service.fail("explode")


def test_a_lesson_that_waits_for_nothing_is_told_so(
    server: PaymentServer, payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payment_service, "LONGEST_WAIT", 0.01)
    assert payments.ask("POST", "/control", {"await_slow": 1}).status == 504


# The old interface, and what can be done with it.


def test_a_transfer_knows_no_key_and_pays_every_time(service: Service) -> None:
    service.fail("fail_after")
    with pytest.raises(RemoteError):
        service.client.transfer(fee("run-1"))
    service.client.transfer(fee("run-1"))
    assert service.paid("run-1") == ["payment-1", "payment-2"]
    assert len(service.client.payments_of("run-1")) == 2
    assert service.client.payments_of("run-2") == []


def test_a_transfer_that_died_is_in_the_list_when_it_was_paid(service: Service) -> None:
    for fault, paid in (("die_before", 0), ("die_between", 1)):
        service.fail(fault)
        with pytest.raises(RemoteError):
            service.client.transfer(fee(fault))
        service.start()
        assert len(service.client.payments_of(fault)) == len(service.paid(fault)) == paid


def test_a_payment_is_refunded_once(
    server: PaymentServer, payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_slowly(bank: Ledger) -> list[str]:
        lines = plain_lines(bank)
        time.sleep(0.01)
        return lines

    plain_lines = Ledger.lines
    monkeypatch.setattr(Ledger, "lines", read_slowly)
    send(payments, "k")
    with ThreadPoolExecutor(5) as threads:
        refunds = list(threads.map(payments.refund, ["payment-1"] * 10))
    assert refunds == [{"refund_id": "refund-1"}] * 10
    assert server.accounts.bank.lines() == ["payment-1 run-1 12000", "refund-1 run-1 12000"]


@pytest.mark.parametrize("payment_id", ["payment-2", "refund-1", "", None, 1, ["payment-1"]])
def test_what_is_no_payment_is_not_refunded(payments: Payments, payment_id: object) -> None:
    send(payments, "k")
    payments.refund("payment-1")
    answer = payments.ask("POST", "/refunds", {"payment_id": payment_id})
    assert str(answer) == "404 There is no such payment"


def test_without_keys_the_first_payment_counts_and_others_are_paid_back(service: Service) -> None:
    unkeyed = WithoutKeys(service.client)
    assert unkeyed.outcome("run-1:pay") is None
    for _ in range(3):
        unkeyed.pay("run-1:pay", fee("run-1"))
    unkeyed.pay("run-2:pay", fee("run-2"))
    for _ in range(2):
        assert unkeyed.outcome("run-1:pay") == {"payment_id": "payment-1", **fee("run-1")}
    names = ["payment-1", "payment-2", "payment-3", "refund-2", "refund-3"]
    assert service.paid("run-1") == names


def test_without_keys_what_was_paid_back_does_not_count(service: Service) -> None:
    unkeyed = WithoutKeys(service.client)
    unkeyed.pay("run-1:pay", fee("run-1"))
    service.client.refund("payment-1")
    assert unkeyed.outcome("run-1:pay") is None
    unkeyed.pay("run-1:pay", fee("run-1"))
    assert unkeyed.outcome("run-1:pay") == {"payment_id": "payment-2", **fee("run-1")}
    assert service.paid("run-1") == ["payment-1", "refund-1", "payment-2"]


# The process.


def test_only_this_machine_can_reach_the_service(server: PaymentServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_client_that_stops_in_the_middle_holds_up_nobody(
    server: PaymentServer, payments: Payments
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as half:
        half.sendall(b"POST /payments HTTP/1.1\r\nContent-Le")
        assert send(payments, "k").status == 201


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder" / "service.db").mkdir(parents=True)
    with pytest.raises(ChildError, match="unable to open database file"):
        Service(tmp_path / "folder").start()


def test_a_stopped_service_answers_nobody_and_can_be_stopped_again(tmp_path: Path) -> None:
    service = Service(tmp_path).start()
    service.stop()
    service.stop()
    with pytest.raises(RemoteError):
        service.client.outcome("k")


PARENT = """
import os, sys
from pathlib import Path
from lesson_lib.labs.remote_effects.service_process import Service
print(Service(Path(sys.argv[1])).start().address, flush=True)
sys.stdin.readline()
os._exit(1)
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_service_ends_with_the_process_that_started_it(tmp_path: Path, killed: bool) -> None:
    with Child("-c", PARENT, tmp_path) as parent:
        port = int(parent.read().rpartition(":")[2])
        # Its end of this connection is closed when the service ends, and not before: 10 s.
        with socket.create_connection(("127.0.0.1", port), timeout=9) as connection:
            parent.kill() if killed else parent.tell()
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
