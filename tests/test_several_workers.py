"""What lesson 07 tries out does what the lesson says of it, and its figures say it in words."""

from __future__ import annotations

import csv
import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lesson_lib.errors import TicketDataError
from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.labs.several_workers import checkpoint_storm, figures, overlap, worker_process
from lesson_lib.labs.several_workers.lock_conflicts import idle_reader, read_then_write
from lesson_lib.labs.several_workers.overlap import most_at_once, tell_spans
from lesson_lib.labs.several_workers.repair_desk import RepairDesk
from lesson_lib.ledger import Ledger
from lesson_lib.processes import Child, ChildEnd, run_child, together
from lesson_lib.sqlite import AgentConnection, load_state, read_events, unfinished_runs
from lesson_lib.tickets import DATA, Tools


def test_a_desk_has_the_runs_it_was_asked_for(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "one", "T101", "T104")) as desk:
        assert desk.run_ids == ("run-T101", "run-T104")
    with closing(RepairDesk.open(tmp_path / "many", "T101", "T104", copies=2)) as desk:
        assert desk.run_ids == ("run-T101-1", "run-T101-2", "run-T104-1", "run-T104-2")
        assert load_state(desk.connection, "run-T104-2").context["ticket"]["area"] == "cold storage"
    with pytest.raises(TicketDataError, match="choose one of"):
        RepairDesk.open(tmp_path / "none", "T999")


def test_a_desk_acts_and_counts_the_calls(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104")) as desk:
        loaded = desk.act("one")
        assert desk.act("two", loaded).version == desk.act("three").version - 1 == 2
        assert (desk.calls("lookup_runbook"), desk.calls("draft_reply")) == (1, 1)
        savers = [
            e.session for e in read_events(desk.connection, "run-T104") if e.action != "start"
        ]
        assert list(dict.fromkeys(savers)) == ["one", "two", "three"]


def test_asking_says_what_became_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = HandClock()
    with closing(RepairDesk.open(tmp_path / "desk", "T104", clock=clock)) as desk:
        assert desk.ask("worker-1") is not None
        clock.move(7)
        assert desk.ask("worker-2") is None
    assert capsys.readouterr().out.splitlines() == [
        "second 0: worker-1 gets token 1",
        "second 7: worker-2 is told to wait",
    ]


def test_a_tool_in_a_transaction_locks_others_out(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104", "T105")) as desk:
        with desk.connection:
            assert desk.meanwhile("run-T105") == "worker-2: database is locked"
        said = desk.once("slow", lambda: desk.meanwhile("run-T105"))
        assert said == "worker-2 saved its checkpoint"
        assert load_state(desk.connection, "run-T105").version == 1


# The worker in a process of its own.


def test_of_two_rivals_one_is_refused(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104")) as desk:
        ends = together([desk.rival("worker-1"), desk.rival("worker-2")])
    said = sorted(end.printed for end in ends)
    assert said == ["refused: StaleVersionError\n", "saved version 1\n"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "completed run-T104"), ({"unclaimed": "run-T104"}, "saved version 1")],
)
def test_a_worker_is_the_same_program_when_called_here(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    with closing(RepairDesk.open(tmp_path / "desk", "T104")) as desk:
        worker_process.main(desk.worker("worker-1", **options)[2:])
    assert capsys.readouterr().out == f"ready\n{said}\n"


def test_a_worker_whose_parent_dies_before_it_says_go_does_nothing(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104")) as desk:
        with Child(*desk.worker("worker-1")) as worker:
            assert worker.read() == "ready"
            assert worker.end() == ChildEnd("died without cleanup", "")
        assert unfinished_runs(desk.connection) == ["run-T104"]
        assert load_state(desk.connection, "run-T104").version == 0


# What happens at the same time.


def test_nested_and_parallel_spans_are_counted_by_the_order_of_their_lines(tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    assert most_at_once(spans, "tool") == 0
    for line in ("tool begin", "write begin", "tool begin", "tool end", "write end", "tool end"):
        Ledger(spans).write(line)
    assert (most_at_once(spans, "tool"), most_at_once(spans, "write")) == (2, 1)


def test_writes_are_told_while_the_lock_is_held(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spans(Ledger):
        def write(self, line: str) -> None:
            with closing(sqlite3.connect(connection.path, timeout=0)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    line += f", {error}"
            super().write(line)

    monkeypatch.setattr(overlap, "Ledger", Spans)
    spans = connection.path.with_name("spans")
    with tell_spans(spans, takes=0):
        connection.execute("SELECT 1").fetchall()
        with connection:
            pass
        with pytest.raises(ZeroDivisionError), connection:
            raise ZeroDivisionError
    with connection:
        pass
    steps = ["write begin, database is locked", "write end, database is locked"]
    assert Ledger(spans).lines() == steps * 2


def test_a_tool_is_told_from_begin_to_end(tools: Tools, tmp_path: Path) -> None:
    with tell_spans(tmp_path / "spans", takes=0):
        result = tools.lookup_runbook("key", code="cold-storage-urgent")
        assert tools.draft_reply("key", priority="urgent", step="Wait.").endswith("Wait.")
    assert result == tools.lookup_runbook("key", "cold-storage-urgent")
    assert Ledger(tmp_path / "spans").lines() == ["tool begin", "tool end"] * 2


# "database is locked".


@pytest.mark.parametrize(
    ("mode", "said"),
    [("DELETE", "fails: database is locked (SQLITE_BUSY)"), ("WAL", "writes")],
)
def test_an_idle_reader_is_in_the_way_in_one_mode(tmp_path: Path, mode: str, said: str) -> None:
    assert idle_reader(tmp_path / "notes.db", mode) == said


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        ("BEGIN", ["second writes", "first fails: database is locked (SQLITE_BUSY_SNAPSHOT)"]),
        ("BEGIN IMMEDIATE", ["second fails: database is locked (SQLITE_BUSY)", "first writes"]),
    ],
)
def test_who_reads_and_then_writes_must_say_so_at_the_beginning(
    tmp_path: Path, begin: str, said: list[str]
) -> None:
    assert read_then_write(tmp_path / "notes.db", begin) == said


# The storm, and the figures.


def test_a_storm_that_ends_in_death_loses_what_was_not_acknowledged(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104", copies=7)) as desk:
        told = desk.tools.ledger
        end = run_child(["-m", checkpoint_storm.__name__, desk.database, told.path])
        assert end.ended == "died without cleanup"
        saved = [r for r in desk.run_ids if load_state(desk.connection, r).version]
        assert told.lines() == saved == list(desk.run_ids[:5])


def test_the_faster_they_come_the_fewer_commits(tmp_path: Path) -> None:
    with closing(RepairDesk.open(tmp_path / "desk", "T104", copies=41)) as desk:
        rates = (1, 49, 51, 100, 10_000)
        counts = [checkpoint_storm.count_commits(desk.connection, rate) for rate in rates]
        assert {load_state(desk.connection, r).version for r in desk.run_ids} == {len(rates)}
    # One alone, two full batches of 20; else one commit for each 20 ms.
    assert (counts[0], counts[1], counts[-1]) == (41, 41, 3)
    assert counts == sorted(counts, reverse=True)
    assert counts[3] == 22


def test_the_figures_say_in_words_what_they_show() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": kind, "workers": workers, "relative_runs_per_second": ratio}
        for kind, ratios in (("slow", ("1.0", "1.9")), ("quick", ("1.0", "1.1")))
        for workers, ratio in zip(("1", "2"), ratios, strict=True)
    ]
    assert "slow: 1 with 1, 1.9 with 2; quick: 1 with 1, 1.1 with 2 workers" in repr(
        figures.throughput(rows)
    )
    assert "of the commits for 9 checkpoints: 9 at 10 per second, 1 at 5,000 per second" in repr(
        figures.storm({10: 9, 5_000: 1}, 9)
    )


def test_the_measured_throughput_is_whole() -> None:
    rows = figures.read_throughput()
    text = (DATA / "throughput.csv").read_bytes().decode()
    assert text.splitlines()[1:] == [",".join(row.values()) for row in rows]
    assert "\r" not in text
    assert [(row["kind"], row["workers"]) for row in rows] == [
        (kind, workers)
        for kind in ("tools take 50 ms", "tools take no time")
        for workers in ("1", "2", "4", "8")
    ]
    assert {row["relative_runs_per_second"] for row in rows if row["workers"] == "1"} == {"1.0"}
    assert next(csv.reader(text.splitlines())) == ["kind", "workers", "relative_runs_per_second"]
