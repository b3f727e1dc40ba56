"""A real crash: the child dies without cleanup, and leaves on disk what the simulated one does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lesson_lib.errors import ChildError, SimulatedCrash
from lesson_lib.labs.kit.sessions import main, run_agent_in_child
from lesson_lib.ledger import Ledger
from lesson_lib.processes import ChildEnd
from lesson_lib.sqlite import SQLiteStore, connect, create_schema, read_events
from lesson_lib.sqlite.on_disk import rows_on_disk
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

REPLY = (
    "Priority: urgent. Next step: Check the gateway heartbeat, then ask a technician to inspect the"
    " sensor.\n"
)
AT = "lookup_runbook:before_checkpoint"
WAYS = pytest.mark.parametrize("how", ["exit", "kill"])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return the paths of a database and a ledger that do not exist yet."""
    return tmp_path / "agent.db", tmp_path / "ledger.txt"


def test_an_agent_that_lives_prints_its_reply(files: tuple[Path, Path]) -> None:
    assert run_agent_in_child(*files, "T104", "session-1") == ChildEnd("finished", REPLY)


@pytest.mark.parametrize(
    ("ticket_id", "die_at", "how", "words"),
    [
        ("T104", "lookup_runbook:end", "exit", "never came to lookup_runbook:end; it passed"),
        ("T104", "", "exit", "never came to"),
        ("T104", AT, "gently", "invalid choice: 'gently'"),
    ],
)
def test_a_child_that_cannot_do_as_asked_is_an_error(
    files: tuple[Path, Path], ticket_id: str, die_at: str, how: str, words: str
) -> None:
    with pytest.raises(ChildError, match=words):
        run_agent_in_child(*files, ticket_id, "s", die_at=die_at, how=how)


def test_nothing_is_stored_for_an_unknown_ticket(files: tuple[Path, Path]) -> None:
    with pytest.raises(ChildError, match="'T999': choose one of T101"):
        run_agent_in_child(*files, "T999", "session-1")
    assert list(files[0].parent.iterdir()) == []


def test_the_simulated_and_the_real_crash_leave_equal_rows(tmp_path: Path) -> None:
    left, ledgers = [], []
    for how in ("exit", "kill"):
        database, ledger = tmp_path / f"{how}.db", tmp_path / f"{how}.txt"
        end = run_agent_in_child(database, ledger, "T104", "session-1", die_at=AT, how=how)
        assert end == ChildEnd("died without cleanup", "")
        left.append(rows_on_disk(database))
        ledgers.append(Ledger(ledger).lines())

    tools = Tools(read_runbooks(), Ledger(tmp_path / "simulated.txt"))
    with closing(connect(tmp_path / "simulated.db")) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, "session-1")
        state = ticket_agent.start(store, "run-T104")
        state = ticket_agent.run_next_action(store, state, tools)
        with pytest.raises(SimulatedCrash):
            ticket_agent.run_next_action(store, state, tools, crash_after_tool=True)
        left.append(rows_on_disk(tmp_path / "simulated.db"))
    ledgers.append(tools.ledger.lines())

    assert left[0] == left[1] == left[2]
    assert [len(rows) for rows in left[0].values()] == [1, 3, 1]
    assert ledgers == [["run-T104:lookup_runbook"]] * 3


@WAYS
def test_another_process_ends_what_died_at_any_named_point(
    files: tuple[Path, Path], how: str
) -> None:
    points = ["classify_priority:begin", "lookup_runbook:tool_ran", AT, "finish:before_checkpoint"]
    for number, point in enumerate(points):
        end = run_agent_in_child(*files, "T104", f"session-{number}", die_at=point, how=how)
        assert end.ended == "died without cleanup"
    assert run_agent_in_child(*files, "T104", "last") == ChildEnd("finished", REPLY)
    database, ledger = files
    with closing(connect(database)) as connection:
        resumed = [e for e in read_events(connection, "run-T104") if e.event_type == "run_resumed"]
    assert [event.session for event in resumed] == ["session-1", "session-2", "session-3", "last"]
    # It died once between the lookup's call and the commit of its result.
    assert Ledger(ledger).count("run-T104:lookup_runbook") == 2
    assert Ledger(ledger).count("run-T104:draft_reply") == 1


def test_a_run_whose_process_died_after_its_last_checkpoint_still_gives_its_reply(
    files: tuple[Path, Path],
) -> None:
    run_agent_in_child(*files, "T104", "session-1", die_at="finish:checkpoint_saved")
    assert run_agent_in_child(*files, "T104", "session-2") == ChildEnd("finished", REPLY)


def test_the_child_says_in_one_sentence_what_is_wrong_with_the_database(
    files: tuple[Path, Path],
) -> None:
    files[0].write_text("notes", encoding="utf-8")
    with pytest.raises(ChildError, match=r"ForeignFileError: .*not an SQLite database"):
        run_agent_in_child(*files, "T104", "session-1")
    assert files[0].read_text(encoding="utf-8") == "notes"


def test_the_child_is_the_same_program_when_called_here(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*map(str, files), "T104", "session-1"])
    assert capsys.readouterr().out == REPLY
