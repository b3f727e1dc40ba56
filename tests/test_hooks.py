"""Hooks pass a point where something happens, in order, and leave no trace after their block."""

from __future__ import annotations

import builtins
import io
import os
import sys
from pathlib import Path

import pytest

from lesson_lib import ledger
from lesson_lib.ledger import Ledger
from lesson_lib.processes import run_python
from lesson_lib.sqlite import AgentConnection
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sweep.hooks import around, file_operations, lines, statements
from lesson_lib.sweep.points import Points, read_points


class Service:
    def ask(self, path: str) -> str:
        if not path:
            raise LookupError
        return f"answer to {path}"


class Special(Service):
    pass


def test_a_call_has_a_point_before_and_one_after_it(tmp_path: Path) -> None:
    passed: list[str] = []
    with around(Service, "ask", passed.append, lambda service, path: f"ask {path}"):
        assert Service().ask("/a") == "answer to /a"
        with pytest.raises(LookupError):
            Service().ask("")
    Service().ask("/b")
    assert passed == ["before ask /a", "after ask /a", "before ask "]


def test_a_call_without_a_label_has_no_point() -> None:
    passed: list[str] = []
    with around(Service, "ask", passed.append, lambda service, path: path.strip("/")):
        assert Service().ask("/") == "answer to /"
    assert passed == []


def test_what_was_inherited_is_inherited_again() -> None:
    with around(Special, "ask", print, lambda *_: ""):
        assert "ask" in vars(Special)
    assert "ask" not in vars(Special)


def test_an_error_of_a_point_comes_out_and_the_hook_goes() -> None:
    def refuse(label: str) -> None:
        raise KeyError(label)

    plain = Service.ask
    with pytest.raises(KeyError), around(Service, "ask", refuse, lambda *_: "it"):
        Service().ask("/a")
    assert Service.ask is plain


def test_each_statement_has_two_points(connection: AgentConnection) -> None:
    passed: list[str] = []
    with statements(AgentCursor, passed.append), connection:
        connection.execute("-- rows\nCREATE TABLE a (b)")
        connection.executemany("INSERT INTO a VALUES (?)", [(1,), (2,)])
    expected = ["BEGIN IMMEDIATE", "CREATE TABLE a", "INSERT INTO a", "COMMIT"]
    assert passed == [f"{when} {what}" for what in expected for when in ("before", "after")]
    connection.execute("SELECT 1").fetchall()
    assert len(passed) == 8


def test_each_line_of_the_chosen_files_has_a_point(tmp_path: Path) -> None:
    passed: list[str] = []
    for _ in range(2):  # what was not watched the first time is watched the second
        with lines(passed.append, ledger.__file__):
            Ledger(tmp_path / "calls").write("a")
        Ledger(tmp_path / "calls").write("b")
    half = len(passed) // 2
    assert passed[:half] == passed[half:]
    assert 4 <= half <= 10
    assert all(label.startswith("ledger.py line ") for label in passed)
    assert all(sys.monitoring.get_tool(number) is None for number in (3, 4))


def test_files_that_are_written_moved_or_removed_have_points(tmp_path: Path) -> None:
    passed: list[str] = []
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    file = inside / "a.json"
    before = builtins.open, io.open, os.open, os.replace
    with file_operations(inside, passed.append):
        Ledger(inside / "calls").write("a")
        for folder in (outside, inside):
            folder.mkdir(exist_ok=True)
            (folder / "new.json").write_text("1", encoding="utf-8")
            (folder / "new.json").replace(folder / "a.json")
        with file.open(mode="r+", encoding="utf-8") as opened:
            assert opened.read() == "1"
        assert file.read_text(encoding="utf-8") == "1"
        os.close(os.open(file, os.O_RDONLY))
        os.rename(file, inside / "b.json")  # noqa: PTH104
        with open(os.open(inside / "b.json", os.O_WRONLY), "w", encoding="utf-8"):  # noqa: PTH123
            (inside / "b.json").unlink()
    assert (builtins.open, io.open, os.open, os.replace) == before
    expected = ["open calls", "open new.json", "replace a.json", "open a.json"]
    expected += ["rename b.json", "open b.json", "unlink b.json"]
    assert passed == [f"{when} {what}" for what in expected for when in ("before", "after")]


def test_points_are_counted_and_named_and_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Points(tmp_path / "points") as point:
        point("größer")
        point("before COMMIT")
        point("before COMMIT")
        raise ZeroDivisionError
    assert read_points(tmp_path / "points") == ["größer", "before COMMIT", "before COMMIT #2"]
    assert point.passed == read_points(tmp_path / "points")
    assert read_points(tmp_path / "none") == []


DYING = """
import sys
from pathlib import Path
from lesson_lib.sweep.points import Points
with Points(Path(sys.argv[1]), {die_at!r}) as point:
    for label in "aab":
        point(label)
"""


@pytest.mark.parametrize(
    ("die_at", "passed"),
    [(2, ["a", "a #2"]), ("b", ["a", "a #2", "b"]), ("a #2", ["a", "a #2"])],
)
def test_a_process_dies_at_a_number_or_a_label(
    die_at: int | str, passed: list[str], tmp_path: Path
) -> None:
    code = DYING.format(die_at=die_at)
    assert run_python(code, tmp_path / "points").ended == "died without cleanup"
    assert read_points(tmp_path / "points") == passed


def test_a_point_that_is_never_passed_kills_nobody(tmp_path: Path) -> None:
    code = DYING.format(die_at=4)
    assert run_python(code, tmp_path / "points").ended == "finished"
