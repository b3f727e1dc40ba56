"""Whoever dies, wherever: one payment in the end, or a person is asked; the bank says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import product
from pathlib import Path

import pytest
from remote_parts import CAN_FORK, Clock, begin, fee, live
from store_parts import new_database

from lesson_lib.errors import KeyBusyError, RemoteError, SimulatedCrash
from lesson_lib.ledger import Ledger
from lesson_lib.payments import call_out
from lesson_lib.payments.call_out import POINTS, Watched, open_run, work
from lesson_lib.payments.client import Service, WithoutKeys
from lesson_lib.payments.delivery import RetryPolicy, child_command, deliver_due
from lesson_lib.payments.service import FAULTS
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    execute_once,
    load_state,
    read_events,
)
from lesson_lib.stores.sqlite.intents import call, create_intents, find_intent, open_intents
from lesson_lib.stores.sqlite.outbox import commands, create_outbox, put_command
from lesson_lib.stores.sqlite.questions import answer, create_questions, waiting_questions

DEATHS = ("", "begin", "intended", "called", "confirmed")
QUICK_FAULTS = ("", *FAULTS[1:])
STRIDE = 29  # of the pairs of deaths; prime to the numbers of points and faults


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("bank")) as service:
        yield service


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = new_database(tmp_path)
    with closing(connect(path)) as connection:
        create_intents(connection)
        create_questions(connection)
        create_outbox(connection)
    return path


def session(
    database: Path, service: Service, run_id: str, name: str, way: str, *, die_at: str, fault: str
) -> str:
    """Be one session of a run, with a service that fails once; return the run's status."""

    def passing(point: str) -> None:
        if point == die_at:
            raise SimulatedCrash

    service.fail(*filter(None, [fault]))
    client = Watched(service.address, passing=passing)
    with closing(connect(database)) as connection:
        try:
            state = open_run(connection, run_id, name)
            work(connection, state, name, client, way, passing)
        except (SimulatedCrash, RemoteError, KeyBusyError):
            pass
        finally:
            if fault.startswith("die"):
                service.start()
            service.fail()
        return load_state(connection, run_id).status


def person_answers(database: Path, service: Service) -> int:
    """Answer each question by the bank's statement; return how many there were."""
    with closing(connect(database)) as connection:
        asked = waiting_questions(connection)
        for question in asked:
            choice = "paid" if service.paid(question.run_id) else "pay again"
            answer(connection, question.question_id, choice, person="Ada")
    return len(asked)


def net(service: Service, run_id: str) -> int:
    names = service.paid(run_id)
    refunds = sum(name.startswith("refund") for name in names)
    return len(names) - 2 * refunds


def finish(database: Path, service: Service, run_id: str, way: str) -> int:
    """Let undisturbed sessions go on to the end; return how many questions a person answered."""
    asked = 0
    for number in range(4):
        name = f"last-{number}"
        status = session(database, service, run_id, name, way, die_at="", fault="")
        if status == "completed":
            with closing(connect(database)) as connection:
                assert open_intents(connection) == []
                assert "confirmed" in load_state(connection, run_id).context
            return asked
        asked += person_answers(database, service)
    raise AssertionError(f"{run_id} does not end")


@pytest.mark.parametrize("way", ["intent", "person"])
def test_one_session_dies_or_its_service_fails(database: Path, service: Service, way: str) -> None:
    for death, fault in product(DEATHS, QUICK_FAULTS):
        run_id = f"{way}-{death}-{fault}"
        session(database, service, run_id, "first", way, die_at=death, fault=fault)
        asked = finish(database, service, run_id, way)
        assert service.paid(run_id) == service.paid(run_id)[:1] != [], run_id
        assert asked <= (way == "person"), run_id


@pytest.mark.parametrize("way", ["intent", "person"])
def test_the_recovery_dies_too_or_its_service_fails(
    database: Path, service: Service, way: str
) -> None:
    deaths = list(product(DEATHS, QUICK_FAULTS, (*DEATHS[1:], "asked"), QUICK_FAULTS))
    for first, first_fault, second, second_fault in deaths[::STRIDE]:
        run_id = f"{way}-{first}-{first_fault}-{second}-{second_fault}"
        session(database, service, run_id, "first", way, die_at=first, fault=first_fault)
        session(database, service, run_id, "second", way, die_at=second, fault=second_fault)
        finish(database, service, run_id, way)
        assert net(service, run_id) == 1, run_id


def test_without_an_intent_some_death_pays_twice_or_the_key_saves_it(
    database: Path, service: Service
) -> None:
    for way, payments in (("no_key", 2), ("key", 1)):
        session(database, service, f"run-{way}", "first", way, die_at="called", fault="")
        finish(database, service, f"run-{way}", way)
        assert len(service.paid(f"run-{way}")) == payments


@pytest.mark.parametrize("way", ["intent", "person"])
def test_a_session_comes_back_while_the_first_request_is_still_at_work(
    database: Path, service: Service, way: str
) -> None:
    run_id = f"slow-{way}"

    def first_session() -> str:
        return session(database, service, run_id, "first", way, die_at="called", fault="slow")

    with ThreadPoolExecutor() as threads:
        first = threads.submit(first_session)
        service.await_slow()
        status = session(database, service, run_id, "second", way, die_at="", fault="")
        assert (status, service.paid(run_id)) == ("running", [])
        with closing(connect(database)) as connection:
            questions = len(waiting_questions(connection))
            assert questions == (way == "person")
            assert len(open_intents(connection)) == 1
        service.go_on()
        first.result()
    finish(database, service, run_id, way)
    assert len(service.paid(run_id)) == 1


def test_who_says_pay_again_pays_again(database: Path, service: Service) -> None:
    run_id = "again"
    session(database, service, run_id, "first", "person", die_at="intended", fault="")
    assert finish(database, service, run_id, "person") == 1
    with closing(connect(database)) as connection:
        kinds = [event.event_type for event in read_events(connection, run_id)]
    assert kinds.count("tool_refused") == kinds.count("question_asked") == 1
    assert kinds.count("tool_intended") == 2
    assert len(service.paid(run_id)) == 1


def test_an_answer_that_came_meanwhile_counts_more_than_a_person(
    database: Path, service: Service
) -> None:
    run_id, key = "late", "late:pay_call_out"
    session(database, service, run_id, "first", "person", die_at="intended", fault="")
    session(database, service, run_id, "second", "person", die_at="", fault="")
    with closing(connect(database)) as connection:
        answer(connection, key, "pay again", person="Ada")
        intent = find_intent(connection, key)
        assert intent is not None
        call(connection, intent, WithoutKeys(service.client), session="first")  # it was only slow
    assert finish(database, service, run_id, "person") == 0
    assert len(service.paid(run_id)) == 1


def test_a_run_that_waits_survives_any_number_of_deaths(database: Path, service: Service) -> None:
    run_id = "patient"
    session(database, service, run_id, "first", "person", die_at="intended", fault="")
    for number, death in enumerate(("asked", "waiting", "waiting", "", "")):
        name = f"session-{number}"
        status = session(database, service, run_id, name, "person", die_at=death, fault="")
        assert status == "running"
        with closing(connect(database)) as connection:
            assert len(waiting_questions(connection)) == 1
            assert load_state(connection, run_id).next_action == "await_decision"
    assert finish(database, service, run_id, "person") == 1
    assert len(service.paid(run_id)) == 1


# Real children, killed at each SQL statement and each request.

killed_anywhere = pytest.mark.skipif(not CAN_FORK, reason="spawning each child takes too long")


@killed_anywhere
@pytest.mark.parametrize(("way", "stride"), [("intent", 1), ("person", 3)])
def test_a_session_is_killed_at_any_statement(
    database: Path, service: Service, tmp_path: Path, way: str, stride: int
) -> None:
    def arguments(run_id: str, name: str) -> list[str]:
        return [str(database), service.address, run_id, name, way]

    points = live("call_out", arguments(f"{way}-whole", "s"), tmp_path / "points")
    assert sum(" POST " in point for point in points) == 2
    for number in range(1, len(points) + 1, stride):
        run_id = f"{way}-{number}"
        passed = live("call_out", arguments(run_id, "s1"), tmp_path / "points", number)
        assert len(passed) == number
        try:
            finish(database, service, run_id, way)
            assert len(service.paid(run_id)) == 1
        except BaseException as error:
            error.add_note(f"the session was killed at {passed[-1]!r}")
            raise
    print(f"{len(points)} crash points")


def puts(connection: AgentConnection, run_id: str, letters: str = "ab") -> None:
    begin(connection, run_id)
    for letter in letters:
        with connection:
            put_command(
                connection,
                run_id=run_id,
                key=f"{run_id}:{letter}",
                tool_name="pay",
                request=fee(run_id, ord(letter)),
            )


def paid_letters(service: Service, run_id: str) -> str:
    """Return which commands of a run were paid, in the order of the bank: the amounts tell."""
    lines = [line.split() for line in service.bank.lines()]
    return "".join(chr(int(cents)) for _, reference, cents in lines if reference == run_id)


@killed_anywhere
def test_a_delivery_worker_is_killed_at_any_statement(
    database: Path, service: Service, tmp_path: Path
) -> None:
    clock = Clock()
    with closing(connect(database, clock=clock)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # the dead need it, this process does not

        def prepare(name: str) -> list[str]:
            puts(connection, f"{name}-x", "ab")
            puts(connection, f"{name}-y", "a")
            return child_command(database, service.address, "w1", clock.now)[2:]

        points = live("delivery", prepare("whole"), tmp_path / "points")
        assert sum(" POST " in point for point in points) == 2 * 3
        for number in range(1, len(points) + 1):
            passed = live("delivery", prepare(f"n{number}"), tmp_path / "points", number)
            clock.move(minutes=2)  # the claims of the dead have ended
            deliver_due(
                connection,
                service.client,
                session="w2",
                policy=RetryPolicy(),
                chance=random.Random(number),
            )
            try:
                assert commands(connection, "waiting") == commands(connection, "dead") == []
                for run, letters in ((f"n{number}-x", "ab"), (f"n{number}-y", "a")):
                    assert paid_letters(service, run) == letters
                    kinds = [event.event_type for event in read_events(connection, run)]
                    assert kinds.count("command_delivered") == len(letters)
            except BaseException as error:
                error.add_note(f"the worker was killed at {passed[-1]!r}")
                raise
        print(f"{len(points)} crash points")


def test_two_workers_race_for_many_commands(database: Path, service: Service) -> None:
    clock = Clock()
    with closing(connect(database, clock=clock)) as connection:
        for number in range(8):
            puts(connection, f"race-{number}")

    def worker(name: str) -> list[str]:
        with closing(connect(database, clock=clock)) as own:
            return deliver_due(
                own,
                service.client,
                session=name,
                policy=RetryPolicy(),
                chance=random.Random(name),
            )

    with ThreadPoolExecutor(3) as threads:
        tried = [key for keys in threads.map(worker, "abc") for key in keys]
    # A worker may find nothing due while another has the first command of a run in its hands.
    tried += worker("last")
    assert sorted(tried) == [f"race-{n}:{letter}" for n in range(8) for letter in "ab"]
    for number in range(8):
        assert paid_letters(service, f"race-{number}") == "ab"


def test_the_witness_sees_what_execute_once_alone_cannot_prevent(
    database: Path, service: Service, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "calls")
    with closing(connect(database)) as connection:
        open_run(connection, "alone", "s1")

        def pay(die: bool) -> None:
            def tool() -> None:
                ledger.write("called")
                service.client.transfer(fee("alone"))
                if die:
                    raise SimulatedCrash

            execute_once(
                connection,
                tool,
                run_id="alone",
                session="s1",
                key="k",
                tool_name="pay",
                tool_input={},
            )

        with pytest.raises(SimulatedCrash):
            pay(die=True)
        pay(die=False)
        pay(die=False)
    assert len(service.paid("alone")) == len(ledger.lines()) == 2


def test_every_point_of_a_session_can_be_reached(database: Path, service: Service) -> None:
    reached: list[str] = []
    for way, die_at in (("intent", ""), ("person", "intended"), ("person", ""), ("person", "")):
        with closing(connect(database)) as connection:

            def passing(point: str, die_at: str = die_at) -> None:
                reached.append(point)
                if point == die_at:
                    raise SimulatedCrash

            state = open_run(connection, f"points-{way}", "s")
            client = Watched(service.address, passing=passing)
            with suppress(SimulatedCrash):
                work(connection, state, "s", client, way, passing)
    assert set(reached) == set(POINTS)


def test_the_session_is_a_program_of_its_own(
    database: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = call_out.child_command(database, service.address, "alone-1", "s1", "intent")[2:]
    service.fail("fail_after")
    call_out.main(arguments)
    call_out.main(arguments)
    call_out.main(arguments)
    said = capsys.readouterr().out.splitlines()
    lost = "no answer yet: no answer to POST /payments: what the service did is not known"
    assert said == [lost, "completed", "completed"]
    assert len(service.paid("alone-1")) == 1
