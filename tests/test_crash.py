"""A real crash: the child dies without cleanup, and leaves on disk what the simulated one does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lesson_lib import agent
from lesson_lib.crash import ChildEnd, main, run_agent_in_child, run_python
from lesson_lib.errors import ChildError, SimulatedCrash
from lesson_lib.ledger import Ledger
from lesson_lib.show import rows_on_disk
from lesson_lib.stores.sqlite import connect, create_schema, read_events
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

REPLY = (
    "Priority: urgent. Next step: Check the gateway heartbeat, then ask a technician to inspect the"
    " sensor.\n"
)
AT = "lookup_runbook:before_checkpoint"
WAYS = pytest.mark.parametrize("how", ["exit", "kill"])

DYING = """
import atexit, sys
from lesson_lib.crash import die
atexit.register(print, "cleaned up by atexit")
try:
    print("before: größer", end="")
    die(sys.argv[1])
finally:
    print("cleaned up by finally")
"""


def test_a_child_that_lives_says_what_it_printed() -> None:
    code = "import sys; print('größer 🔧', sys.argv[1:])"
    assert run_python(code, "a b", Path("c")) == ChildEnd("finished", "größer 🔧 ['a b', 'c']\n")


@WAYS
def test_a_dying_child_cleans_nothing_up_and_keeps_what_it_printed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert run_python(DYING, how) == ChildEnd("died without cleanup", "before: größer")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('no such step')", "ValueError: no such step"),
        ("import sys; sys.exit('out of paper')", "out of paper"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os.abort()", "exit status"),
    ],
)
def test_a_child_that_fails_otherwise_is_an_error_with_its_reason(code: str, words: str) -> None:
    with pytest.raises(ChildError, match=f"the child process failed: .*{words}"):
        run_python(code)


def test_a_file_beside_the_learner_is_not_imported_by_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlite3.py").write_text("raise SystemExit('not the real one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run_python("import lesson_lib.crash").ended == "finished"


def test_an_agent_that_lives_prints_its_reply(tmp_path: Path) -> None:
    end = run_agent_in_child(tmp_path / "agent.db", tmp_path / "ledger.txt", "T104", "session-1")
    assert end == ChildEnd("finished", REPLY)


@pytest.mark.parametrize(
    ("ticket_id", "die_at", "how", "words"),
    [
        ("T104", "lookup_runbook:end", "exit", "never came to lookup_runbook:end; it passed"),
        ("T104", "", "exit", "never came to"),
        ("T104", AT, "gently", "invalid choice: 'gently'"),
        ("T999", AT, "exit", "'T999': choose one of T101"),
    ],
)
def test_a_child_that_cannot_do_as_asked_is_an_error(
    tmp_path: Path, ticket_id: str, die_at: str, how: str, words: str
) -> None:
    with pytest.raises(ChildError, match=words):
        run_agent_in_child(
            tmp_path / "a.db", tmp_path / "l.txt", ticket_id, "s", die_at=die_at, how=how
        )


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
        state = agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")
        state = agent.run_next_action(connection, state, "session-1", tools)
        with pytest.raises(SimulatedCrash):
            agent.run_next_action(connection, state, "session-1", tools, crash_after_tool=True)
        left.append(rows_on_disk(tmp_path / "simulated.db"))
    ledgers.append(tools.ledger.lines())

    assert left[0] == left[1] == left[2]
    assert [len(rows) for rows in left[0].values()] == [1, 3, 1]
    assert ledgers == [["run-T104:lookup_runbook"]] * 3


@WAYS
def test_another_process_ends_what_died_at_any_named_point(tmp_path: Path, how: str) -> None:
    database, ledger = tmp_path / "agent.db", tmp_path / "ledger.txt"
    points = ["classify_priority:begin", "lookup_runbook:tool_ran", AT, "finish:before_checkpoint"]
    for number, point in enumerate(points):
        end = run_agent_in_child(
            database, ledger, "T104", f"session-{number}", die_at=point, how=how
        )
        assert end.ended == "died without cleanup"
    assert run_agent_in_child(database, ledger, "T104", "last") == ChildEnd("finished", REPLY)
    with closing(connect(database)) as connection:
        resumed = [e for e in read_events(connection, "run-T104") if e.event_type == "run_resumed"]
    assert [event.session for event in resumed] == ["session-1", "session-2", "session-3", "last"]
    # It died once between the lookup's call and the commit of its result.
    assert Ledger(ledger).count("run-T104:lookup_runbook") == 2
    assert Ledger(ledger).count("run-T104:draft_reply") == 1


def test_the_child_says_in_one_sentence_what_is_wrong_with_the_database(tmp_path: Path) -> None:
    (tmp_path / "agent.db").write_text("notes", encoding="utf-8")
    with pytest.raises(ChildError, match=r"ForeignFileError: .*not an SQLite database"):
        run_agent_in_child(tmp_path / "agent.db", tmp_path / "ledger.txt", "T104", "session-1")
    assert (tmp_path / "agent.db").read_text(encoding="utf-8") == "notes"


def test_the_child_is_the_same_program_when_called_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path / "agent.db"), str(tmp_path / "ledger.txt"), "T104", "session-1"])
    assert capsys.readouterr().out == REPLY


def test_a_run_whose_process_died_after_its_last_checkpoint_still_gives_its_reply(
    tmp_path: Path,
) -> None:
    files = tmp_path / "agent.db", tmp_path / "ledger.txt"
    run_agent_in_child(*files, "T104", "session-1", die_at="finish:checkpoint_saved")
    assert run_agent_in_child(*files, "T104", "session-2") == ChildEnd("finished", REPLY)


def test_nothing_is_stored_for_an_unknown_ticket(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="choose one of"):
        run_agent_in_child(tmp_path / "agent.db", tmp_path / "ledger.txt", "T999", "session-1")
    assert list(tmp_path.iterdir()) == []
