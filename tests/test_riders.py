"""What rides with a checkpoint: prepared, checked and written in order, all or nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from store_parts import rows

from lesson_lib.errors import InvalidStateError
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    save_checkpoint,
    write_checkpoint,
)
from lesson_lib.store import Rider, Saving


@dataclass(frozen=True)
class Watching(Rider):
    """Notes what it is asked, with the version that is on disk then; may fail at one of them."""

    name: str
    seen: list[str] = field(default_factory=list)
    fails_at: str = ""

    def prepare(self, saving: Saving) -> Saving:
        self._note("prepare")
        context = saving.after.context | {"seen by": self.name}
        changed = RunState.begin("run-1", "T1", "look", context).context_json
        return replace(saving, after=replace(saving.after, context_json=changed))

    def check(self, connection: Any, saving: Saving) -> None:
        self._note(f"check at {self._on_disk(connection)}")

    def write(self, connection: Any, saving: Saving) -> None:
        self._note(f"write at {self._on_disk(connection)}")
        connection.execute("UPDATE agent_runs SET ticket_id = ticket_id || '!'")

    def _note(self, what: str) -> None:
        self.seen.append(f"{self.name} {what}")
        if self.fails_at and what.startswith(self.fails_at):
            raise InvalidStateError(f"{self.name} refuses")

    def _on_disk(self, connection: AgentConnection) -> str:
        row = connection.execute(
            "SELECT version, (SELECT count(*) FROM agent_events) FROM agent_runs"
        ).fetchone()
        return "nothing" if row is None else f"version {row[0]}, {row[1]} events"


STEP = Step("look", {"n": 1}, "look")


@pytest.fixture
def state(connection: AgentConnection) -> RunState:
    return SQLiteStore(connection, "s1").start_run(RunState.begin("run-1", "T1", "look", {}))


def test_riders_of_the_store_come_before_those_of_the_step(
    connection: AgentConnection, state: RunState
) -> None:
    seen: list[str] = []
    store = SQLiteStore(connection, "s1", (Watching("a", seen), Watching("b", seen)))
    saved = store.save_checkpoint(state, replace(STEP, riders=(Watching("c", seen),)))
    assert seen == [
        *("a prepare", "b prepare", "c prepare"),
        *(f"{name} check at version 0, 1 events" for name in "abc"),
        *(f"{name} write at version 1, 2 events" for name in "abc"),
    ]
    assert saved.context == {"n": 1, "seen by": "c"}
    assert store.load_state("run-1") == replace(saved, ticket_id="T1!!!")


def test_riders_ride_with_the_start_of_a_run(connection: AgentConnection) -> None:
    seen: list[str] = []
    store = SQLiteStore(connection, "s1", (Watching("a", seen),))
    new = store.start_run(RunState.begin("run-1", "T1", "look", {}))
    assert seen == ["a prepare", "a check at nothing", "a write at version 0, 1 events"]
    assert new.context == {"seen by": "a"}


@pytest.mark.parametrize("fails_at", ["prepare", "check", "write"])
def test_what_a_rider_refuses_is_not_saved_in_any_part(
    connection: AgentConnection, state: RunState, fails_at: str
) -> None:
    before = rows(connection.path)
    riders = (Watching("a"), Watching("b", fails_at=fails_at))
    with pytest.raises(InvalidStateError, match="b refuses"):
        save_checkpoint(connection, state, STEP, session="s1", riders=riders)
    assert rows(connection.path) == before
    with pytest.raises(InvalidStateError, match="b refuses"):
        SQLiteStore(connection, "s1", riders).start_run(RunState.begin("run-2", "T", "look", {}))
    assert rows(connection.path) == before


def test_a_rider_does_nothing_unless_it_says_so(
    connection: AgentConnection, state: RunState
) -> None:
    plain = save_checkpoint(connection, state, STEP, session="s1", riders=(Rider(),))
    assert plain == state.after(STEP)


def test_what_else_the_caller_writes_in_his_block_is_one_with_it(
    connection: AgentConnection, state: RunState
) -> None:
    before = rows(connection.path)
    with pytest.raises(KeyError), connection:
        write_checkpoint(connection, state, STEP, session="s1")
        raise KeyError
    assert rows(connection.path) == before


@dataclass(frozen=True)
class Slow(Rider):
    """Asks another connection to write while it prepares, as long as a model may take."""

    other: AgentConnection

    def prepare(self, saving: Saving) -> Saving:
        if saving.step is not None:
            with self.other:
                self.other.execute("UPDATE agent_runs SET ticket_id = 'meanwhile'")
        return saving


def test_a_rider_that_takes_its_time_keeps_no_writer_waiting(
    connection: AgentConnection, state: RunState
) -> None:
    with closing(connect(connection.path, timeout=0)) as other:
        save_checkpoint(connection, state, STEP, session="s1", riders=(Slow(other),))
    assert rows(connection.path)["agent_runs"][0][1] == "meanwhile"


@dataclass(frozen=True)
class Changing(Rider):
    changes: dict[str, Any]

    def prepare(self, saving: Saving) -> Saving:
        return replace(saving, after=replace(saving.after, **self.changes))


@pytest.mark.parametrize(
    "changes", [{"run_id": "run-2"}, {"ticket_id": "T2"}, {"version": 7}, {"next_action": "other"}]
)
def test_a_rider_may_not_change_which_run_it_is(
    connection: AgentConnection, state: RunState, changes: dict[str, Any]
) -> None:
    before = rows(connection.path)
    with pytest.raises(InvalidStateError, match=f"a rider has made {next(iter(changes))} "):
        save_checkpoint(connection, state, STEP, session="s1", riders=(Changing(changes),))
    assert rows(connection.path) == before
