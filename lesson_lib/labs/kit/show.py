"""What notebooks display: source code, rows of a table, files on disk, a picture with its words."""

from __future__ import annotations

import ast
import html
import inspect
import sqlite3
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Cursor
from typing import Any

from lesson_lib.errors import LessonError
from lesson_lib.sqlite.on_disk import TABLES, rows_on_disk

__all__ = [
    "TABLES",
    "Table",
    "files",
    "progress",
    "rows_on_disk",
    "source",
    "table",
    "versions",
]


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
