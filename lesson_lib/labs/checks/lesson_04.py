"""Checks of lesson 04: the crash point, recovering all runs, the order of the writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.errors import ChildError, SimulatedCrash
from lesson_lib.labs.checks import exercise, given, scratch_database
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import SQLiteStore
from lesson_lib.store import StateStore
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent


@exercise(1, "assign the name of a crash point to point")
def exercise_1(point: str) -> str | None:
    """Kill a child at the learner's point, resume, and read the ledger."""
    with TemporaryDirectory() as name:
        files = Path(name, "agent.db"), Path(name, "ledger.txt")
        try:
            run_agent_in_child(*files, "T104", "session-1", die_at=point, how="kill")
        except ChildError:
            return f"a run never comes to {point!r}: look at the list of points in step 1"
        before = Ledger(files[1]).count("run-T104:lookup_runbook")
        run_agent_in_child(*files, "T104", "session-2")
        calls = Ledger(files[1]).count("run-T104:lookup_runbook")
    if calls == 2:
        return None
    if not point.startswith("lookup_runbook:"):
        return f"{point} belongs to another action: stop in the middle of lookup_runbook"
    when = "had not run yet" if before == 0 else "had run, and its result was saved"
    return f"at {point} the tool {when}: {calls} call in the ledger, wanted: 2"


@exercise(2, "resume each unfinished run and return the ids")
def exercise_2(recover_all: Callable[[StateStore, Tools], list[str]]) -> str | None:
    """Give a store with a finished run and two that stopped."""
    with scratch_database() as (connection, folder):
        tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
        store = SQLiteStore(connection, "session-1")
        ticket_agent.run_to_end(store, ticket_agent.start(store, "run-T101"), tools)
        ticket_agent.start(store, "run-T104")
        ticket_agent.run_next_action(store, ticket_agent.start(store, "run-T105"), tools)
        finished = store.read_events("run-T101")
        found = given(recover_all(SQLiteStore(connection, "session-2"), tools))
        for run_id in ("run-T104", "run-T105"):
            if store.load_state(run_id).status != "completed":
                return f"{run_id} is still unfinished"
            events = store.read_events(run_id)
            if "run_resumed" not in [event.event_type for event in events]:
                return f"{run_id} was finished, but no event tells that it was resumed"
        if store.read_events("run-T101") != finished:
            return "run-T101 was finished before, and got new events"
        if found != ["run-T104", "run-T105"]:
            return f"it returned {found!r}, wanted: the ids of the two runs"
    return None


@exercise(3, "put the four lines into another order")
def exercise_3(step: Callable[..., None]) -> str | None:
    """Let the process die after each call, and look at what is left."""
    missing = {"load", "tool", "result", "checkpoint"} - set(_done(step, alive=4))
    if missing:
        return f"nothing died, and still these were not called: {', '.join(sorted(missing))}"
    for alive in range(4):
        done = _done(step, alive)
        if "checkpoint" in done and "tool" not in done:
            return "died after the checkpoint: the run believes in a tool call that never happened"
        if "checkpoint" in done and "result" not in done:
            return "died after the checkpoint: it vouches for a result that is not saved"
        if "result" in done and "tool" not in done:
            return "a result is saved before the tool gave it"
    return None


def _done(step: Callable[..., None], alive: int) -> list[str]:
    """Return which functions `step` called before it died at the call after `alive` of them."""
    done: list[str] = []

    def recorder(name: str) -> Callable[..., str]:
        def call(*_: Any) -> str:
            if len(done) == alive:
                raise SimulatedCrash
            done.append(name)
            return name

        return call

    with suppress(SimulatedCrash):
        step(*map(recorder, ("load", "tool", "result", "checkpoint")))
    return done
