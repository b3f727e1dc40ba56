"""Whoever dies, wherever: one payment in the end, or a person is asked; the bank says so."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from remote_parts import MINUTE, begin, fee
from store_parts import new_database

from lesson_lib.errors import KeyBusyError, RemoteError, SimulatedCrash
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.labs.remote_effects import sessions
from lesson_lib.labs.remote_effects.client import WithoutKeys
from lesson_lib.labs.remote_effects.service import FAULTS
from lesson_lib.labs.remote_effects.service_process import Service
from lesson_lib.labs.remote_effects.sessions import run_session, session_command, worker_command
from lesson_lib.processes import run_child
from lesson_lib.riders.delivery import RetryPolicy, deliver_due
from lesson_lib.riders.intents import call, create_intents, find_intent, open_intents
from lesson_lib.riders.outbox import commands, create_outbox, put_command
from lesson_lib.riders.questions import answer, create_questions, waiting_questions
from lesson_lib.sqlite import AgentConnection, connect, load_state, read_events
from lesson_lib.sweep import run_session as run_swept

DEATHS = ("", "begin", "intended", "called", "confirmed")
QUICK_FAULTS = ("", *FAULTS[1:])
WAYS = pytest.mark.parametrize("way", ["intent", "person"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("bank")) as service:
        yield service


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return prepared(tmp_path)


def prepared(folder: Path) -> Path:
    path = new_database(folder)
    with closing(connect(path)) as connection:
        for create in (create_intents, create_questions, create_outbox):
            create(connection)
    return path


def session(
    database: Path,
    service: Service,
    run_id: str,
    name: str,
    way: str,
    *,
    die_at: str = "",
    fault: str = "",
) -> str:
    """Be one session of a run, with a service that fails once; return the run's status."""

    def passing(point: str) -> None:
        if die_at and point.endswith(f":{die_at}"):
            raise SimulatedCrash

    service.fail(*filter(None, [fault]))
    with closing(connect(database)) as connection:
        try:
            run_session(connection, service.client, run_id, name, way, passing)
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
        if session(database, service, run_id, f"last-{number}", way) == "completed":
            with closing(connect(database)) as connection:
                assert open_intents(connection) == []
                assert "confirmed" in load_state(connection, run_id).context
            return asked
        asked += person_answers(database, service)
    raise AssertionError(f"{run_id} does not end")


# Deaths at the named points, by a service that fails or dies too.


@WAYS
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.prove), 5])
def test_one_session_dies_or_its_service_fails(
    database: Path, service: Service, way: str, stride: int
) -> None:
    for death, fault in list(product(DEATHS, QUICK_FAULTS))[::stride]:
        run_id = f"{way}-{death}-{fault}-{stride}"
        session(database, service, run_id, "first", way, die_at=death, fault=fault)
        asked = finish(database, service, run_id, way)
        assert service.paid(run_id) == service.paid(run_id)[:1] != [], run_id
        assert asked <= (way == "person"), run_id


@WAYS
@pytest.mark.parametrize("stride", [pytest.param(29, marks=pytest.mark.prove), 211])
def test_the_recovery_dies_too_or_its_service_fails(
    database: Path, service: Service, way: str, stride: int
) -> None:
    later = (*DEATHS[1:], "checkpoint_saved")
    deaths = list(product(DEATHS, QUICK_FAULTS, later, QUICK_FAULTS))
    for first, first_fault, second, second_fault in deaths[::stride]:
        run_id = f"{way}-{first}-{first_fault}-{second}-{second_fault}-{stride}"
        session(database, service, run_id, "first", way, die_at=first, fault=first_fault)
        session(database, service, run_id, "second", way, die_at=second, fault=second_fault)
        finish(database, service, run_id, way)
        assert net(service, run_id) == 1, run_id


@pytest.mark.parametrize(("way", "payments"), [("no_key", 2), ("key", 1)])
def test_without_an_intent_a_death_pays_twice_or_the_key_saves_it(
    database: Path, service: Service, way: str, payments: int
) -> None:
    session(database, service, f"run-{way}", "first", way, die_at="tool_ran")
    finish(database, service, f"run-{way}", way)
    assert len(service.paid(f"run-{way}")) == payments


@WAYS
def test_a_session_comes_back_while_the_first_request_is_still_at_work(
    database: Path, service: Service, way: str
) -> None:
    run_id = f"slow-{way}"

    def first_session() -> str:
        return session(database, service, run_id, "first", way, die_at="called", fault="slow")

    with ThreadPoolExecutor() as threads:
        first = threads.submit(first_session)
        service.await_slow()
        status = session(database, service, run_id, "second", way)
        assert (status, service.paid(run_id)) == ("running", [])
        with closing(connect(database)) as connection:
            assert len(waiting_questions(connection)) == (way == "person")
            assert len(open_intents(connection)) == 1
        service.go_on()
        first.result()
    finish(database, service, run_id, way)
    assert len(service.paid(run_id)) == 1


def test_who_says_pay_again_pays_again(database: Path, service: Service) -> None:
    session(database, service, "again", "first", "person", die_at="intended")
    assert finish(database, service, "again", "person") == 1
    with closing(connect(database)) as connection:
        kinds = [event.event_type for event in read_events(connection, "again")]
    assert kinds.count("tool_refused") == kinds.count("question_asked") == 1
    assert kinds.count("tool_intended") == 2
    assert len(service.paid("again")) == 1


def test_an_answer_that_came_meanwhile_counts_more_than_a_person(
    database: Path, service: Service
) -> None:
    key = "late:pay_call_out"
    session(database, service, "late", "first", "person", die_at="intended")
    session(database, service, "late", "second", "person")
    with closing(connect(database)) as connection:
        answer(connection, key, "pay again", person="Ada")
        intent = find_intent(connection, key)
        assert intent is not None
        call(connection, intent, WithoutKeys(service.client), session="first")  # it was only slow
    assert finish(database, service, "late", "person") == 0
    assert len(service.paid("late")) == 1


def test_a_run_that_waits_survives_any_number_of_deaths(database: Path, service: Service) -> None:
    session(database, service, "patient", "first", "person", die_at="intended")
    for number, death in enumerate(("checkpoint_saved", "waiting", "waiting", "", "")):
        name = f"session-{number}"
        status = session(database, service, "patient", name, "person", die_at=death)
        assert status == "running"
        with closing(connect(database)) as connection:
            assert len(waiting_questions(connection)) == 1
            assert load_state(connection, "patient").next_action == "await_decision"
    assert finish(database, service, "patient", "person") == 1
    assert len(service.paid("patient")) == 1


def test_two_workers_race_for_many_commands(database: Path, service: Service) -> None:
    clock = HandClock()
    with closing(connect(database, clock=clock)) as connection:
        for number in range(8):
            puts(connection, f"race-{number}")

    def worker(name: str) -> list[str]:
        with closing(connect(database, clock=clock)) as own:
            return deliver(own, service, name)

    with ThreadPoolExecutor(3) as threads:
        tried = [key for keys in threads.map(worker, "abc") for key in keys]
    # A worker may find nothing due while another has the first command of a run in its hands.
    tried += worker("last")
    assert sorted(tried) == [f"race-{n}:{letter}" for n in range(8) for letter in "ab"]
    for number in range(8):
        assert paid_letters(service, f"race-{number}") == "ab"


# Real children, killed at each SQL statement, each request and each named point.

killed_anywhere = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="starting a Python for each child takes too long"
)
HOW_MANY = pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda point: True, marks=pytest.mark.prove, id="everywhere"),
        pytest.param(lambda point: "POST" in point or "COMMIT" in point, id="at_commits"),
    ],
)


def at_address(folder: Path, service: Service) -> Path:
    folder.mkdir()
    (folder / "address").write_text(service.address, encoding="utf-8")
    return prepared(folder)


@killed_anywhere
@WAYS
@HOW_MANY
def test_a_session_is_killed_at_any_statement(
    service: Service, tmp_path: Path, way: str, choose: Callable[[str], bool]
) -> None:
    name = {"intent": "paying_with_intent", "person": "paying_without_key"}[way]
    whole = tmp_path / tmp_path.name  # another one in each test, since a run is named for it
    at_address(whole, service)
    points = run_swept(f"remote_parts:{name}", whole, "s")
    assert sum(" POST " in point for point in points) == 2
    chosen = [point for point in points if choose(point)]
    for number, point in enumerate(chosen):
        folder = whole.with_name(f"{whole.name}-{number}")
        database = at_address(folder, service)
        try:
            run_swept(f"remote_parts:{name}", folder, "s1", point)
            finish(database, service, folder.name, way)
            assert len(service.paid(folder.name)) == 1
        except BaseException as error:
            error.add_note(f"the session was killed at {point!r}")
            raise
    print(f"{len(chosen)} crash points")


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


def deliver(connection: AgentConnection, service: Service, name: str) -> list[str]:
    return deliver_due(
        connection,
        service.client,
        session=name,
        policy=RetryPolicy(),
        chance=random.Random(name),
    )


def paid_letters(service: Service, run_id: str) -> str:
    """Return which commands of a run were paid, in the order of the bank: the amounts tell."""
    lines = [line.split() for line in service.bank.lines()]
    return "".join(chr(int(cents)) for _, reference, cents in lines if reference == run_id)


@killed_anywhere
@HOW_MANY
def test_a_delivery_worker_is_killed_at_any_statement(
    service: Service, tmp_path: Path, choose: Callable[[str], bool]
) -> None:
    whole = tmp_path / tmp_path.name

    def prepare(folder: Path) -> Path:
        database = at_address(folder, service)
        with closing(connect(database, clock=HandClock())) as connection:
            puts(connection, f"{folder.name}-x", "ab")
            puts(connection, f"{folder.name}-y", "a")
        return database

    prepare(whole)
    points = run_swept("remote_parts:delivering", whole, "w1")
    assert sum(" POST " in point for point in points) == 2 * 3
    chosen = [point for point in points if choose(point)]
    for number, point in enumerate(chosen):
        folder, clock = whole.with_name(f"{whole.name}-{number}"), HandClock()
        database = prepare(folder)
        clock.move(2 * MINUTE)  # the claims of the dead have ended
        run_swept("remote_parts:delivering", folder, "w1", point)
        with closing(connect(database, clock=clock)) as connection:
            deliver(connection, service, "w2")
            try:
                assert commands(connection, "waiting") == commands(connection, "dead") == []
                for run, letters in ((f"{folder.name}-x", "ab"), (f"{folder.name}-y", "a")):
                    assert paid_letters(service, run) == letters
                    kinds = [event.event_type for event in read_events(connection, run)]
                    assert kinds.count("command_delivered") == len(letters)
            except BaseException as error:
                error.add_note(f"the worker was killed at {point!r}")
                raise
    print(f"{len(chosen)} crash points")


# The children of the lesson.


def test_a_session_is_a_program_of_its_own(database: Path, service: Service) -> None:
    command = session_command(database, service.address, "alone", "s1", "intent")
    service.fail("fail_after")
    said = [run_child(command).printed for _ in range(3)]
    lost = "no answer yet: no answer to POST /payments: what the service did is not known\n"
    assert said == [lost, "completed\n", "completed\n"]
    assert len(service.paid("alone")) == 1


def test_a_worker_is_a_program_of_its_own(database: Path, service: Service) -> None:
    clock = HandClock()
    with closing(connect(database, clock=clock)) as connection:
        puts(connection, "alone-1", "a")
        puts(connection, "alone-2", "a")
    early, late = HandClock(), HandClock()
    early.move(-MINUTE)
    late.move(MINUTE)
    sessions.main(*worker_command(database, service.address, "w1", early.now)[2:])
    end = run_child(worker_command(database, service.address, "w1", clock.now, "sent"))
    assert end.ended == "died without cleanup"
    assert paid_letters(service, "alone-1") == "a"
    assert paid_letters(service, "alone-2") == ""
    end = run_child(worker_command(database, service.address, "w2", late.now))
    assert end.printed == "alone-2:a\nalone-1:a\n"
    assert paid_letters(service, "alone-1") == paid_letters(service, "alone-2") == "a"
