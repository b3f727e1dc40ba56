"""What notebooks display: source code, rows of a table, files on disk, a picture with its words."""

from __future__ import annotations

import ast
import base64
import html
import inspect
import io
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Cursor
from typing import TYPE_CHECKING, Any

from lesson_lib.errors import LessonError, StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPY = """
import shutil, sys
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    shutil.copyfile(source, target)
"""
TABLES = ("agent_runs", "agent_events", "tool_effects")


@dataclass(frozen=True)
class Table:
    """Rows under named columns, as text and as an HTML table. NULL is shown as a word."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __repr__(self) -> str:
        """Return the table as aligned text."""
        lines = [self.columns, *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(v))}</td>" for v in row) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Picture:
    """An SVG with a text alternative: what the picture shows, in words."""

    alt: str
    svg: bytes

    def __repr__(self) -> str:
        """Return the picture's words."""
        return f"[picture: {self.alt}]"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg).decode()
        return (
            f'<img alt="{html.escape(self.alt, quote=True)}" style="max-width:100%"'
            f' src="data:image/svg+xml;base64,{data}">'
        )


def picture(figure: Figure, alt: str) -> Picture:
    """Return a Matplotlib figure as a picture, the same bytes each time.

    Args:
        figure: The figure.
        alt: What it shows, in words.
    """
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lesson_lib", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(alt, buffer.getvalue())


def source(*functions: Callable[..., object] | type) -> None:
    """Print the code of functions or classes as the package has it, without their docstrings."""
    print("\n\n".join(_without_docstring(inspect.getsource(f)) for f in functions))


def versions(python: tuple[int, int] = (3, 12), sqlite: tuple[int, int] = (3, 38)) -> str:
    """Return which versions the lessons are tested from; fail on older ones.

    The versions of this very machine would differ from the committed output on the next.

    Raises:
        LessonError: This Python or its SQLite is older.
    """
    if sys.version_info < python or sqlite3.sqlite_version_info < sqlite:
        raise LessonError(
            f"Python {sys.version.split()[0]} with SQLite {sqlite3.sqlite_version} is too old:"
            f" install Python {python[0]}.{python[1]} or later"
        )
    return f"Python: {python[0]}.{python[1]}+ | SQLite: {sqlite[0]}.{sqlite[1]}+"


def table(rows: Sequence[Mapping[str, Any]] | Cursor, *columns: str) -> Table:
    """Return rows of a query, or any mappings, as a table.

    Args:
        rows: The rows, all with the same keys.
        columns: Which columns to show, in this order; all where none is named.
    """
    in_query = [column[0] for column in rows.description] if isinstance(rows, Cursor) else []
    found = list(rows)
    names = columns or tuple(in_query or (found[0].keys() if found else ()))
    return Table(names, tuple(tuple(row[name] for name in names) for row in found))


def rows_on_disk(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the three tables, without their clock column, as a new process would.

    The files are copied first and the copy is read: a look must not change what a crash left. A
    child makes the copy, since a process that opens and closes a database file by itself loses
    the locks its connections hold on it (SQLite, "How To Corrupt", section 2.2).

    Args:
        database: The database file; its journals are found beside it.

    Raises:
        StorageError: There is no such file.
    """
    if not database.exists():
        raise StorageError(f"there is no file {database}: name a database")
    with tempfile.TemporaryDirectory() as folder:
        copies = {
            database.with_name(database.name + suffix): Path(folder, "copy.db" + suffix)
            for suffix in ("", "-wal", "-journal")
        }
        pairs = [path for pair in copies.items() if pair[0].exists() for path in pair]
        subprocess.run([sys.executable, "-I", "-S", "-c", COPY, *pairs], check=True)
        with closing(sqlite3.connect(Path(folder, "copy.db"), autocommit=True)) as connection:
            connection.row_factory = sqlite3.Row
            return {name: _without_clock(connection, name) for name in TABLES}


def progress(database: Path) -> None:
    """Print the version of the first run and the types of its events, as found on disk."""
    rows = rows_on_disk(database)
    print("version in agent_runs:", rows["agent_runs"][0][5])
    print("events:", [event[3] for event in rows["agent_events"]])


def files(folder: Path) -> None:
    """Print the files of a folder with a word on what each one is."""
    known = {
        "-wal": "commits not yet copied into the database file",
        "-shm": "index of the -wal file, rebuilt when it is missing",
        "-locks": "a folder for the locks of tool calls under way",
        ".db": "the database",
        "ledger.txt": "the witness",
    }
    paths = sorted(folder.iterdir())
    width = max((len(path.name) for path in paths), default=0)
    for path in paths:
        what = next((text for end, text in known.items() if path.name.endswith(end)), "")
        empty = " (empty)" if path.is_file() and path.stat().st_size == 0 else ""
        print(f"{path.name:<{width}}  {what}{empty}")


def _without_clock(connection: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    rows = connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
    return [tuple(row[k] for k in row.keys() if k != "created_at_utc") for row in rows]  # noqa: SIM118


def _without_docstring(code: str) -> str:
    code = textwrap.dedent(code)
    lines = code.splitlines()
    documented = (ast.FunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: node.lineno, reverse=True):
        text = node.body[0]
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            end = text.end_lineno or text.lineno
            blank_follows = not lines[end].strip()
            del lines[text.lineno - 1 : end + blank_follows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "NULL" if value is None else str(value)
