"""What notebooks display is what the package and the disk hold, and looking changes neither."""

from __future__ import annotations

import ast
import html
import inspect
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lesson_lib.agent import Agent
from lesson_lib.errors import LessonError, StorageError
from lesson_lib.labs.kit import show
from lesson_lib.labs.kit.sessions import run_agent_in_child
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect, create_schema
from lesson_lib.tickets import agent, ticket_agent

HOSTILE = "<script>alert('x')</script> & \"q\""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database as a crash left it, with its write-ahead log beside it."""
    path = tmp_path / "agent.db"
    run_agent_in_child(
        path, tmp_path / "ledger.txt", "T104", "session-1", die_at="lookup_runbook:tool_ran"
    )
    return path


def test_a_table_is_aligned_text_with_null_as_a_word() -> None:
    shown = show.table([{"id": 1, "next": None}, {"id": 200, "next": "finish"}])
    assert repr(shown) == "id   next\n1    NULL\n200  finish"


def test_a_table_shows_the_named_columns_in_this_order() -> None:
    assert repr(show.table([{"a": 1, "b": 2, "c": 3}], "c", "a")) == "c  a\n3  1"


def test_a_query_without_rows_still_shows_its_columns(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "agent.db")) as connection:
        create_schema(connection)
        rows = connection.execute("SELECT run_id, version FROM agent_runs")
        assert show.table(rows, "run_id").columns == ("run_id",)
        rows = connection.execute("SELECT run_id, version FROM agent_runs")
        assert show.table(rows).columns == ("run_id", "version")


def test_html_holds_text_and_no_markup_of_the_data() -> None:
    shown = show.table([{HOSTILE: HOSTILE, "n": None}])._repr_html_()
    assert shown.count(html.escape(HOSTILE)) == 2
    assert "<script" not in shown
    assert '<th scope="col">n</th>' in shown
    assert "<td>NULL</td>" in shown


class Sample:
    """A docstring, then the two places where another one may stand."""

    # A comment stays.
    words = """
    and so does text that is no docstring
    """

    def first(self) -> str:
        """Leave this out."""

        def inner() -> str:
            """Leave this out.

            And this.
            """
            return self.second()

        return inner()

    def second(self) -> str:
        """Leave this out."""
        return self.words


@pytest.mark.parametrize(
    "shown",
    [Agent.run_next_action, agent.finish, show.Table, AgentConnection, StorageError, Sample],
)
def test_source_prints_the_code_without_docstrings(
    shown: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    show.source(shown)
    printed, text = capsys.readouterr().out, textwrap.dedent(inspect.getsource(shown))
    lines = iter(text.splitlines())
    assert all(line in lines for line in printed.splitlines())
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(node.body) > 1:
            del node.body[: ast.get_docstring(node) is not None]
    assert ast.dump(ast.parse(printed)) == ast.dump(tree)
    assert printed.count("#") == text.count("#")


def test_source_prints_functions_in_the_order_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show.source(agent.finish, agent.lookup_runbook)
    printed = capsys.readouterr().out
    assert printed.startswith("def finish(")
    assert "\n\ndef lookup_runbook(" in printed


def test_versions_are_those_the_lessons_need_and_an_older_one_is_refused() -> None:
    assert show.versions((3, 12), (3, 8)) == "Python: 3.12+ | SQLite: 3.8+"
    for needed in ({"python": (4, 0)}, {"sqlite": (4, 0)}):
        with pytest.raises(LessonError, match="too old: install Python"):
            show.versions(**needed)


def test_a_look_at_the_disk_changes_no_byte_of_it(database: Path) -> None:
    def disk() -> dict[str, tuple[bytes, int]]:
        files = (path for path in database.parent.rglob("*") if path.is_file())
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = disk()
    assert before["agent.db-wal"][0]
    rows = show.rows_on_disk(database)
    assert disk() == before
    assert [len(found) for found in rows.values()] == [1, 2, 0]


def test_the_disk_holds_what_is_committed_and_no_clock(tmp_path: Path) -> None:
    database = tmp_path / "agent.db"
    with closing(connect(database)) as connection:
        create_schema(connection)
        ticket_agent.start(SQLiteStore(connection, "session-1"), "run-T104")
        before = show.rows_on_disk(database)
        with connection:
            connection.execute("UPDATE agent_runs SET version = 7")
            assert show.rows_on_disk(database) == before
        assert show.rows_on_disk(database)["agent_runs"][0][-1] == 7
    (run,), events, effects = before.values()
    assert run[:4] == ("run-T104", "T104", "running", "classify_priority")
    assert events == [("run-T104", 1, "session-1", "run_started", "start", "{}")]
    assert effects == []


def test_files_says_what_each_file_is(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database.rename(database.with_name("a_longer_name.db"))
    (database.parent / "agent.db-wal").write_bytes(b"")
    show.files(database.parent)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        path.name for path in database.parent.iterdir()
    )
    words = {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in lines}
    assert words["a_longer_name.db"] == "the database"
    assert words["ledger.txt"] == "the witness"
    assert words["agent.db-wal"].endswith("(empty)")
    assert words["agent.db-locks"] == "a folder for the locks of tool calls under way"
