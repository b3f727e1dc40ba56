"""A fork shows what a kernel shows, and ends with all that it started."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import forked_cells
import outputs
import pytest
from forked_cells import CellError, outputs_of
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from strict_nbval import compare_outputs
from wrong_notebooks import error, printed, result, shown

pytestmark = pytest.mark.prove
PACKAGE = outputs.ROOT / "lesson_lib"


def notebook(*sources: str) -> NotebookNode:
    cells = [new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(sources, 1)]
    return new_notebook(cells=cells)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "print(1)\ndisplay(2)\nprint(3)\n4",
            [printed("1\n"), shown("2"), printed("3\n"), result("4")],
        ),
        ("1;", []),
        ("print('a')\n1 / 0", [printed("a\n"), error("ZeroDivisionError", "division by zero")]),
        ("import sys\nsys.stderr.write('b');", [new_output("stream", name="stderr", text="b")]),
        ("%%capture said\nprint('unseen')", []),
        ("import lesson_lib\nprint(lesson_lib.__path__[0])", [printed(f"{PACKAGE}\n")]),
        ("import os\nprint(os.getcwd() == os.environ['TMPDIR'])", [printed("True\n")]),
    ],
)
def test_a_cell_shows_what_it_does(
    source: str, expected: list[NotebookNode], tmp_path: Path
) -> None:
    [(_, made)] = outputs_of(notebook(source), tmp_path, PACKAGE)
    assert compare_outputs(expected, made) is None


def test_the_cells_share_their_names_and_their_history(tmp_path: Path) -> None:
    run = outputs_of(notebook("1 / 0", "x = 3", "x", "_ + len(In)"), tmp_path, PACKAGE)
    assert compare_outputs([result("8")], list(run)[-1][1]) is None


def test_a_process_that_a_cell_ends_is_no_silent_cell(tmp_path: Path) -> None:
    with pytest.raises(CellError, match="cell 'cell-2' ended its process"):
        list(outputs_of(notebook("1", "import os\nos._exit(0)"), tmp_path, PACKAGE))


@pytest.mark.skipif(not forked_cells.FORKED, reason="Windows ends the process, not its children.")
def test_what_a_cell_that_never_ends_has_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = f"import socket; socket.create_connection({server.getsockname()}).recv(1)"
        start = f"import subprocess, sys\nc = subprocess.Popen([sys.executable, '-c', {child!r}])"
        with closing(outputs_of(notebook(start, "c.wait()"), tmp_path, PACKAGE)) as run:
            next(run)
            connection, _ = server.accept()
            monkeypatch.setattr(forked_cells, "LIMIT", 1)
            with pytest.raises(CellError, match="cell 'cell-2' runs for more than 1 s"):
                next(run)
        with connection:
            connection.settimeout(60)
            assert connection.recv(1) == b"", "the child lives on"
