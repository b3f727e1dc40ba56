"""Claims: one holder at a time by the clock, one writer by the token, whatever the clock says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta, timezone
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from store_parts import rows

from lesson_lib.errors import (
    InvalidStateError,
    LeaseLostError,
    RunCompletedError,
    StaleVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.model import RunState, Step
from lesson_lib.riders.claims import (
    Claim,
    Claimed,
    claim_next,
    claim_run,
    create_claims,
    read_claims,
    release,
    renew,
    require_claim,
)
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    delete_run,
    load_state,
    save_checkpoint,
    start_run,
)

START = HandClock.start
LEASE = timedelta(seconds=30)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def connection(database: Path, clock: HandClock) -> Iterator[AgentConnection]:
    with closing(connect(database, clock=clock)) as opened:
        create_claims(opened)
        start(opened, "r")
        yield opened


def start(connection: AgentConnection, run_id: str) -> RunState:
    return start_run(connection, RunState.begin(run_id, "T1", "a", {}), session="s")


def claimed(connection: AgentConnection, worker: str, run_id: str = "r") -> Claim:
    claim = claim_run(connection, run_id, worker=worker, lease=LEASE)
    assert claim is not None
    return claim


def refused(connection: AgentConnection, worker: str, run_id: str = "r") -> bool:
    return claim_run(connection, run_id, worker=worker, lease=LEASE) is None


def save(
    connection: AgentConnection,
    claim: Claim,
    state: RunState | None = None,
    next_action: str | None = "a",
) -> RunState:
    return save_checkpoint(
        connection,
        state or load_state(connection, claim.run_id),
        Step("a", {}, next_action),
        session=claim.worker,
        riders=[Claimed(claim)],
    )


def finish(connection: AgentConnection, run_id: str) -> None:
    state = load_state(connection, run_id)
    save_checkpoint(connection, state, Step("a", {}, None), session="s")


def test_a_claim_is_stored_as_it_is_returned(connection: AgentConnection) -> None:
    claim = claimed(connection, "worker-1")
    assert claim == Claim(claim.token, "r", "worker-1", LEASE, START + LEASE)
    assert read_claims(connection) == [claim]


@pytest.mark.parametrize("worker", ["worker-1", "worker-2"])
def test_while_a_claim_is_live_nobody_gets_another_one(
    connection: AgentConnection, clock: HandClock, worker: str
) -> None:
    claim = claimed(connection, "worker-1")
    for _ in range(30):
        assert refused(connection, worker)
        clock.move(LEASE.total_seconds() / 30)
    assert claimed(connection, worker).token > claim.token


def test_each_lease_has_its_own_length(connection: AgentConnection, clock: HandClock) -> None:
    short = timedelta(microseconds=1)
    assert claim_run(connection, "r", worker="worker-1", lease=short)
    clock.move(1e-6)
    long = claim_run(connection, "r", worker="worker-2", lease=timedelta(days=40, microseconds=7))
    assert long in read_claims(connection)
    clock.move(timedelta(days=40).total_seconds())
    assert refused(connection, "worker-3")
    clock.move(7e-6)
    assert claimed(connection, "worker-3")


def test_a_renewed_lease_begins_anew(connection: AgentConnection, clock: HandClock) -> None:
    claim = claimed(connection, "worker-1")
    for _ in range(5):
        clock.move(29)
        claim = renew(connection, claim)
        assert read_claims(connection) == [claim]
        assert refused(connection, "worker-2")
    clock.move(30)
    assert claimed(connection, "worker-2")


def test_a_released_run_can_be_claimed_at_once(connection: AgentConnection) -> None:
    first = claimed(connection, "worker-1")
    release(connection, first)
    assert read_claims(connection) == []
    assert claimed(connection, "worker-1").token > first.token
    with pytest.raises(LeaseLostError, match="now worker-1 has it with token"):
        save(connection, first)


def test_a_holder_that_was_replaced_can_neither_renew_release_nor_save(
    connection: AgentConnection, clock: HandClock, database: Path
) -> None:
    first = claimed(connection, "worker-1")
    clock.move(30)
    second = claimed(connection, "worker-2")
    before = rows(database)
    release(connection, first)
    for late in (renew, save):
        with pytest.raises(
            LeaseLostError, match="worker-1 had r with token 1, now worker-2 has it"
        ):
            late(connection, first)
    assert rows(database) == before
    assert save(connection, second).version == 1


def test_a_holder_whose_lease_is_over_may_go_on_while_nobody_replaced_it(
    connection: AgentConnection, clock: HandClock
) -> None:
    claim = claimed(connection, "worker-1")
    clock.move(3_600)
    assert save(connection, claim).version == 1
    assert renew(connection, claim).expires_at == START + timedelta(hours=1) + LEASE
    assert refused(connection, "worker-2")


def test_after_a_release_nothing_can_be_saved(connection: AgentConnection, database: Path) -> None:
    claim = claimed(connection, "worker-1")
    release(connection, claim)
    before = rows(database)
    with pytest.raises(LeaseLostError, match="now nobody has it"):
        save(connection, claim)
    with pytest.raises(LeaseLostError, match="now nobody has it"):
        renew(connection, claim)
    assert rows(database) == before


def test_a_token_is_never_given_twice(connection: AgentConnection, clock: HandClock) -> None:
    late = claimed(connection, "worker-1")
    stale = load_state(connection, "r")
    clock.move(30)
    save(connection, claimed(connection, "worker-2"), next_action=None)
    delete_run(connection, "r")
    assert read_claims(connection) == []
    # Under the old name a new run begins, at a version that the late worker takes for its own.
    start(connection, "r")
    new = claimed(connection, "worker-1")
    assert new.token > late.token + 1
    with pytest.raises(LeaseLostError):
        save(connection, late, stale)
    assert load_state(connection, "r").version == 0


def test_a_claim_covers_its_own_run_only(connection: AgentConnection, database: Path) -> None:
    other = start(connection, "other")
    claim = claimed(connection, "worker-1")
    before = rows(database)
    with pytest.raises(InvalidStateError, match="a claim of r does not cover other"):
        save(connection, claim, other)
    assert rows(database) == before


def test_the_version_alone_lets_a_late_holder_in_and_the_token_keeps_it_out(
    connection: AgentConnection, clock: HandClock
) -> None:
    late = claimed(connection, "worker-1")
    clock.move(30)
    claimed(connection, "worker-2")
    step = Step("a", {}, "a")
    first = save_checkpoint(connection, load_state(connection, "r"), step, session="worker-1")
    with pytest.raises(LeaseLostError):
        save(connection, late, first)
    assert load_state(connection, "r") == first


def test_the_version_still_counts_under_a_claim(connection: AgentConnection) -> None:
    claim = claimed(connection, "worker-1")
    state = load_state(connection, "r")
    save(connection, claim, state)
    with pytest.raises(StaleVersionError):
        save(connection, claim, state)


def look_only(connection: AgentConnection, claim: Claim, state: RunState) -> None:
    with connection:
        require_claim(connection, claim)


def renew_only(connection: AgentConnection, claim: Claim, state: RunState) -> None:
    renew(connection, claim)


def claim_anew(connection: AgentConnection, claim: Claim, state: RunState) -> None:
    claimed(connection, "worker-3")


@pytest.mark.parametrize("act", [look_only, renew_only, save, claim_anew])
def test_nobody_can_take_a_run_over_between_the_look_and_the_write(
    connection: AgentConnection,
    database: Path,
    clock: HandClock,
    act: Callable[[AgentConnection, Claim, RunState], object],
) -> None:
    claim, state = claimed(connection, "worker-1"), load_state(connection, "r")
    clock.move(30)
    looked, tried = list[str](), list[str]()

    def before_each(statement: str) -> None:
        if looked:
            with closing(connect(database, timeout=0, clock=clock)) as other:
                try:
                    claimed(other, "worker-2")
                except StorageError as error:
                    tried.append(str(error))
                else:
                    tried.append("taken over")
        if statement.startswith("SELECT") and "run_claims" in statement:
            looked.append(statement)

    connection.set_trace_callback(before_each)
    act(connection, claim, state)
    connection.set_trace_callback(None)
    assert tried
    assert all("is locked" in answer for answer in tried), tried


def test_a_look_at_the_token_outside_of_a_transaction_is_refused(
    connection: AgentConnection,
) -> None:
    with pytest.raises(TransactionError, match="inside the `with connection:`"):
        require_claim(connection, claimed(connection, "worker-1"))


# Clocks.


def test_a_clock_that_is_set_back_makes_no_lease_longer(
    connection: AgentConnection, clock: HandClock
) -> None:
    first = claimed(connection, "worker-1")
    clock.move(-2 * 3_600)
    second = claimed(connection, "worker-2")
    assert second.expires_at < first.expires_at
    with pytest.raises(LeaseLostError):
        save(connection, first)
    assert save(connection, second).version == 1


def test_a_holder_that_renews_after_the_clock_was_set_back_keeps_its_run(
    connection: AgentConnection, clock: HandClock
) -> None:
    claim = claimed(connection, "worker-1")
    clock.move(-2 * 3_600)
    renew(connection, claim)
    assert refused(connection, "worker-2")


def test_a_clock_that_jumps_forward_ends_leases_early_and_harms_nobody(
    connection: AgentConnection, clock: HandClock
) -> None:
    first = claimed(connection, "worker-1")
    clock.move(365 * 86_400)
    second = claimed(connection, "worker-2")
    with pytest.raises(LeaseLostError):
        save(connection, first)
    assert save(connection, second).version == 1


@pytest.mark.parametrize("hours", [-11, 0, 5.5, 14])
def test_a_lease_does_not_depend_on_the_time_zone(
    connection: AgentConnection, database: Path, clock: HandClock, hours: float
) -> None:
    zone = timezone(timedelta(hours=hours))
    with closing(connect(database, clock=lambda: clock.now.astimezone(zone))) as abroad:
        assert claimed(abroad, "worker-1").expires_at == START + LEASE
        assert read_claims(connection) == read_claims(abroad)
        assert refused(connection, "worker-2")
        clock.move(30)
        assert claimed(connection, "worker-2")
        assert refused(abroad, "worker-1")


def test_a_naive_clock_is_refused(connection: AgentConnection, database: Path) -> None:
    claim = claimed(connection, "worker-1")
    start(connection, "other")
    before = rows(database)
    with closing(connect(database, clock=lambda: START.replace(tzinfo=None))) as naive:
        with pytest.raises(InvalidStateError, match="naive time"):
            claim_run(naive, "other", worker="worker-1", lease=LEASE)
        with pytest.raises(InvalidStateError, match="naive time"):
            claim_next(naive, worker="worker-1", lease=LEASE)
        with pytest.raises(InvalidStateError, match="naive time"):
            renew(naive, claim)
    assert rows(database) == before


# What cannot be claimed.


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_lease_must_be_longer_than_zero(connection: AgentConnection, seconds: int) -> None:
    with pytest.raises(InvalidStateError, match="make it longer"):
        claim_run(connection, "r", worker="worker-1", lease=timedelta(seconds=seconds))
    assert read_claims(connection) == []


@pytest.mark.parametrize("worker", ["", None, "\ud800"])
def test_a_worker_must_have_a_name(connection: AgentConnection, worker: Any) -> None:
    with pytest.raises(InvalidStateError, match="worker"):
        claim_run(connection, "r", worker=worker, lease=LEASE)


def test_an_unknown_run_cannot_be_claimed(connection: AgentConnection) -> None:
    with pytest.raises(UnknownRunError, match="no run 'r9'"):
        claim_run(connection, "r9", worker="worker-1", lease=LEASE)


def test_a_finished_run_cannot_be_claimed(connection: AgentConnection) -> None:
    finish(connection, "r")
    with pytest.raises(RunCompletedError, match="r is completed"):
        claim_run(connection, "r", worker="worker-1", lease=LEASE)
    assert read_claims(connection) == []


def test_the_table_is_created_once(connection: AgentConnection) -> None:
    claim = claimed(connection, "worker-1")
    create_claims(connection)
    assert read_claims(connection) == [claim]


# The next run.


def test_the_next_run_is_the_first_that_is_free(
    connection: AgentConnection, clock: HandClock
) -> None:
    for run_id in ("c", "b", "done"):
        start(connection, run_id)
    finish(connection, "done")

    def take(skip: tuple[str, ...] = ()) -> str | None:
        claim = claim_next(connection, worker="worker-1", lease=LEASE, skip=skip)
        return claim.run_id if claim else None

    assert take(skip=("b", "r")) == "c"
    clock.move(20)
    assert [take(), take(), take()] == ["b", "r", None]
    clock.move(10)
    assert [take(), take()] == ["c", None]


def test_a_run_that_cannot_be_read_keeps_nobody_from_the_next(
    connection: AgentConnection,
) -> None:
    start(connection, "s")
    connection.execute("UPDATE agent_runs SET version = 7 WHERE run_id = 'r'")
    first = claim_next(connection, worker="worker-1", lease=LEASE)
    second = claim_next(connection, worker="worker-1", lease=LEASE, skip=("r",))
    assert (first and first.run_id, second and second.run_id) == ("r", "s")


def test_a_run_that_others_finish_take_or_delete_meanwhile_is_passed_over(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("finished", "taken"):
        start(connection, run_id)
    finish(connection, "finished")
    claimed(connection, "worker-2", "taken")
    claims = "lesson_lib.riders.claims"
    listed = ["deleted", "finished", "taken", "r"]
    monkeypatch.setattr(f"{claims}.unfinished_runs", lambda connection: listed)
    monkeypatch.setattr(f"{claims}.read_claims", lambda connection: [])
    claim = claim_next(connection, worker="worker-1", lease=LEASE)
    assert claim is not None
    assert claim.run_id == "r"


def test_no_run_is_claimed_twice_by_workers_who_come_at_the_same_moment(
    connection: AgentConnection, database: Path
) -> None:
    names = [f"run-{number:02}" for number in range(24)]
    for name in names:
        start(connection, name)
    release(connection, claimed(connection, "worker-0"))
    gate, taken = Barrier(4), list[Claim]()

    def worker(name: str) -> None:
        with closing(connect(database, timeout=30)) as mine:
            gate.wait()
            while claim := claim_next(mine, worker=name, lease=LEASE):
                taken.append(claim)

    threads = [Thread(target=worker, args=(f"worker-{number}",)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claim.run_id for claim in taken) == ["r", *names]
    assert len({claim.token for claim in taken}) == len(taken)
    assert read_claims(connection) == sorted(taken, key=lambda claim: claim.token)
