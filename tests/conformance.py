"""Which stores are held to the promises of `StateStore`. One joins by a line in `STORES`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from toy_stores import JSONFileStore

from lesson_lib.errors import StaleVersionError
from lesson_lib.ledger import Ledger
from lesson_lib.model import Step
from lesson_lib.patterns.ephemeral import Ephemeral
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid, create_snapshots
from lesson_lib.processes import die
from lesson_lib.recovery.buffer import BufferedStore
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.store import StateStore
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

type Open = Callable[[Path, str], AbstractContextManager[StateStore]]


@contextmanager
def open_sqlite(folder: Path, session: str) -> Iterator[StateStore]:
    with closing(connect(folder / "agent.db", timeout=60)) as connection:
        create_schema(connection)
        yield SQLiteStore(connection, session)


@contextmanager
def open_dictionary(folder: Path, session: str) -> Iterator[StateStore]:
    yield replace(DICTIONARIES.setdefault(folder, Ephemeral(session)), session=session)


@contextmanager
def open_log(folder: Path, session: str, make: type[EventSourcing]) -> Iterator[StateStore]:
    with closing(connect(folder / "agent.db", timeout=60)) as connection:
        create_schema(connection)
        create_snapshots(connection)
        yield make(connection, session, agent=ticket_agent)


DICTIONARIES: dict[Path, Ephemeral] = {}


@contextmanager
def open_buffered(folder: Path, session: str) -> Iterator[StateStore]:
    with closing(connect(folder / "agent.db", timeout=60)) as connection:
        create_schema(connection)
        yield BufferedStore(SQLiteStore(connection, session))


# The stores, each with the promises that it cannot keep: those must fail.
STORES: dict[str, tuple[Open, frozenset[str]]] = {
    "sqlite": (open_sqlite, frozenset()),
    "sqlite behind a buffer": (open_buffered, frozenset()),
    "event sourcing": (partial(open_log, make=EventSourcing), frozenset()),
    "hybrid": (partial(open_log, make=Hybrid), frozenset()),
    "dictionary": (open_dictionary, frozenset({"another process finds it", "racing processes"})),
    "JSON file": (
        lambda folder, session: nullcontext(JSONFileStore(folder / "runs.json", session)),
        frozenset({"racing processes", "two callers of one key"}),
    ),
}


def main() -> None:
    """Be another process: a session of run T104 that may die at a point, or a racer."""
    name, folder, session, task = sys.argv[1:5]
    opened, _ = STORES[name]
    with opened(Path(folder), session) as store:
        if task == "race":
            print("ready", flush=True)
            sys.stdin.readline()
            race(store)
            return

        def passing(point: str) -> None:
            if point == task:
                die("kill")

        tools = Tools(read_runbooks(), Ledger(Path(folder, "ledger.txt")))
        state = ticket_agent.resume_or_start(store, "run-T104")
        print(ticket_agent.run_to_end(store, state, tools, passing=passing).context["reply"])


def race(store: StateStore) -> None:
    """Save ten checkpoints of run-1, each on what is newest."""
    saved = 0
    while saved < 10:
        state = store.load_state("run-1")
        try:
            store.save_checkpoint(state, Step("look", {"n": state.context["n"] + 1}, "look"))
            saved += 1
        except StaleVersionError:
            pass


if __name__ == "__main__":
    main()
