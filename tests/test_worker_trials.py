"""What lesson 07 tries out does what the lesson says of it, and its figures say it in words."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from lesson_lib.children import together
from lesson_lib.crash import run_child
from lesson_lib.errors import TicketDataError
from lesson_lib.stores.sqlite import load_state, read_events
from lesson_lib.tickets import DATA
from lesson_lib.workers import figures as worker_figures
from lesson_lib.workers import storm
from lesson_lib.workers import trials as worker_trials
from lesson_lib.workers.locks import idle_reader, read_then_write
from lesson_lib.workers.trials import Clock, Desk


def test_a_clock_stands_until_it_is_moved() -> None:
    clock, other = Clock(), Clock()
    assert clock() == clock() == other()
    clock.move(90)
    clock.move(-30)
    assert clock() - other() == timedelta(minutes=1)


def test_a_desk_has_the_runs_it_was_asked_for(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "one", "T101", "T104")) as desk:
        assert desk.run_ids == ("run-T101", "run-T104")
    with closing(Desk.open(tmp_path / "many", "T101", "T104", copies=2)) as desk:
        assert desk.run_ids == ("run-T101-1", "run-T101-2", "run-T104-1", "run-T104-2")
        assert load_state(desk.connection, "run-T104-2").context["ticket"]["area"] == "cold storage"
    with pytest.raises(TicketDataError, match="choose one of"):
        Desk.open(tmp_path / "none", "T999")


def test_a_desk_acts_and_counts_the_calls(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "desk", "T104")) as desk:
        loaded = desk.act("one")
        assert desk.act("two", loaded).version == desk.act("three").version - 1 == 2
        assert (desk.calls("lookup_runbook"), desk.calls("draft_reply")) == (1, 1)
        savers = [
            e.session for e in read_events(desk.connection, "run-T104") if e.action != "start"
        ]
        assert list(dict.fromkeys(savers)) == ["one", "two", "three"]


def test_asking_says_what_became_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with closing(Desk.open(tmp_path / "desk", "T104", clock=clock)) as desk:
        assert desk.ask("worker-1") is not None
        clock.move(7)
        assert desk.ask("worker-2") is None
    assert capsys.readouterr().out.splitlines() == [
        "second 0: worker-1 gets token 1",
        "second 7: worker-2 is told to wait",
    ]


def test_a_tool_in_a_transaction_locks_others_out(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "desk", "T104", "T105")) as desk:
        with desk.connection:
            assert desk.meanwhile("run-T105") == "worker-2: database is locked"
        said = desk.once("slow", lambda: desk.meanwhile("run-T105"))
        assert said == "worker-2 saved its checkpoint"
        assert load_state(desk.connection, "run-T105").version == 1


def test_of_two_rivals_one_is_refused(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "desk", "T104")) as desk:
        ends = together([desk.rival("worker-1"), desk.rival("worker-2")])
    said = sorted(end.printed for end in ends)
    assert said == ["refused: StaleVersionError\n", "saved version 1\n"]


def test_a_rival_is_the_same_program_when_called_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    with closing(Desk.open(tmp_path / "desk", "T104")) as desk:
        worker_trials.main(desk.rival("worker-1")[2:])
    assert capsys.readouterr().out == "ready\nsaved version 1\n"


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


def test_a_storm_that_ends_in_death_loses_what_was_not_acknowledged(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "desk", "T104", copies=7)) as desk:
        told = desk.tools.ledger
        end = run_child(["-m", "lesson_lib.workers.storm", str(desk.database), str(told.path)])
        assert end.ended == "died without cleanup"
        saved = [r for r in desk.run_ids if load_state(desk.connection, r).version]
        assert told.lines() == saved == list(desk.run_ids[:5])


def test_the_faster_they_come_the_fewer_commits(tmp_path: Path) -> None:
    with closing(Desk.open(tmp_path / "desk", "T104", copies=41)) as desk:
        rates = (1, 49, 51, 100, 10_000)
        counts = [storm.count_commits(desk.connection, rate) for rate in rates]
        assert {load_state(desk.connection, r).version for r in desk.run_ids} == {len(rates)}
    # One alone, two full batches of 20; else one commit for each 20 ms.
    assert (counts[0], counts[1], counts[-1]) == (41, 41, 3)
    assert counts == sorted(counts, reverse=True)
    assert counts[3] == 22


def test_the_figures_say_in_words_what_they_show() -> None:
    rows = [
        {"kind": kind, "workers": workers, "relative_runs_per_second": ratio}
        for kind, ratios in (("slow", ("1.0", "1.9")), ("quick", ("1.0", "1.1")))
        for workers, ratio in zip(("1", "2"), ratios, strict=True)
    ]
    assert "slow: 1 with 1, 1.9 with 2; quick: 1 with 1, 1.1 with 2 workers" in repr(
        worker_figures.throughput(rows)
    )
    assert "of the commits for 9 checkpoints: 9 at 10 per second, 1 at 5,000 per second" in repr(
        worker_figures.storm({10: 9, 5_000: 1}, 9)
    )


def test_the_measured_throughput_is_whole() -> None:
    rows = worker_figures.read_throughput()
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
