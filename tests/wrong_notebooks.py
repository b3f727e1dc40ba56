"""Notebooks that show something else than they do, and a few right ones to tell them from."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ENDING = "after the last cell"
TIME_LIMIT = 8


@dataclass(frozen=True)
class Row:
    """A cell, what the notebook falsely holds as its outputs, and what is to be said of it."""

    name: str
    source: str
    saved: str | list[NotebookNode] = ""  # a text stands for a print
    says: str | None = None  # None: the cell is right
    tags: list[str] = field(default_factory=list)
    count: int | None = -1  # -1: the place among the code cells
    prose: bool = False


def result(text: str, **data: Any) -> NotebookNode:
    """Return the output of an expression."""
    return new_output("execute_result", data={"text/plain": text, **data}, execution_count=1)


def shown(text: str, metadata: dict[str, Any] | None = None, **data: Any) -> NotebookNode:
    """Return the output of `display`."""
    return new_output("display_data", data={"text/plain": text, **data}, metadata=metadata or {})


def printed(text: str) -> NotebookNode:
    """Return the output of `print`."""
    return new_output("stream", name="stdout", text=text)


def error(name: str, words: str, last_line: str = "") -> NotebookNode:
    """Return the output of an exception, as the project saves it."""
    last_line = last_line or f"{name}: {words}"
    return new_output("error", ename=name, evalue=words, traceback=[last_line])


def picture(svg: str, alt: str = "Two bars, 3 and 4 high.") -> str:
    """Return a picture as the lessons show it."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def bar(height: float) -> str:
    """Return an SVG of one bar."""
    return f'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="{height}"/></svg>'


def show_html(html: str) -> str:
    """Return the source of a cell that displays this HTML."""
    return f"from IPython.display import HTML\nHTML({html!r})"


HTML_REPR = "<IPython.core.display.HTML object>"
RAISES = ["raises-exception"]
REFUSED = "import socket\ntry:\n    {}\nexcept OSError as error:\n    print(str(error)[:47])"

CELLS = [
    Row("right-text", "x = 1\nprint('a')", "a\n"),
    Row("right-state", "print(x)", "1\n"),
    Row("right-result", "x + 1", [result("2")]),
    Row("right-hidden-result", "x + 1;"),
    Row("right-last-result", "print(_)", "2\n"),
    Row(
        "right-order",
        "print('1')\ndisplay(2)\nprint('3')",
        [printed("1\n"), shown("2"), printed("3\n")],
    ),
    Row("right-error", "1 / 0", [error("ZeroDivisionError", "division by zero")], tags=RAISES),
    Row(
        "right-picture",
        show_html(picture(bar(3.00001))),
        [result(HTML_REPR, **{"text/html": picture(bar(3))})],
    ),
    Row(
        "right-unaware-of-pytest",
        "import os\n[name for name in os.environ if name.startswith('PYTEST_')]",
        [result("[]")],
    ),
    Row(
        "right-offline",
        REFUSED.format("socket.create_connection(('192.0.2.1', 80), timeout=1)"),
        "socket.getaddrinfo to 192.0.2.1 was refused: te\n",
    ),
    Row("text-changed", "print('b')", "a\n", "in line 1 the notebook holds 'a"),
    Row("text-space", "print('a ')", "a\n", "in line 1 the notebook holds 'a"),
    Row("text-overwritten", "print('CRASHED\\rOK')", "OK\n", "in line 1 the notebook holds 'OK"),
    Row("output-gone", "pass", "a\n", "the run made no output"),
    Row("output-new", "print('a')", "", "the notebook holds no output"),
    Row("stderr-new", "import sys\nprint('b', file=sys.stderr)", "", "the run made stderr"),
    Row("error-new", "print('a')\n1 / 0", "a\n", "ZeroDivisionError: division by zero"),
    Row(
        "error-other-kind",
        "raise ValueError('bad')",
        [error("TypeError", "bad")],
        "error differs",
        RAISES,
    ),
    Row(
        "error-other-words",
        "raise ValueError('worse')",
        [error("ValueError", "bad")],
        "error differs",
        RAISES,
    ),
    Row(
        "error-other-traceback",
        "raise ValueError('bad')",
        [error("ValueError", "bad", "ValueError: worse")],
        "last line of the traceback differs",
        RAISES,
    ),
    Row("error-missing", "print('a')", "a\n", "raised none", RAISES),
    Row("error-ignored", "pass", "", "raised none", [*RAISES, "nbval-ignore-output"]),
    Row("exit-unnoticed", "raise SystemExit(1)", "", "raised an error"),
    Row(
        "order-of-print-and-display",
        "display(1)\nprint('2')",
        [printed("2\n"), shown("1")],
        "the run made display_data",
    ),
    Row(
        "order-of-prints-round-display",
        "print('1')\nprint('2')\ndisplay(3)",
        [printed("1\n"), shown("3"), printed("2\n")],
        "the run made stdout '1\\n2\\n', display_data",
    ),
    Row("result-or-display", "display(2)", [result("2")], "the run made display_data"),
    Row(
        "metadata",
        "display(1, metadata={'alt': 'wrong'})",
        [shown("1", metadata={"alt": "right"})],
        "metadata differs",
    ),
    Row(
        "html",
        show_html("<b>wrong</b>"),
        [result(HTML_REPR, **{"text/html": "<b>right</b>"})],
        "text/html differs",
    ),
    Row(
        "picture-moved",
        show_html(picture(bar(4))),
        [result(HTML_REPR, **{"text/html": picture(bar(3))})],
        "a number in the picture is 3 in the notebook and 4 in the run",
    ),
    Row(
        "picture-words",
        show_html(picture(bar(3), alt="Two bars.")),
        [result(HTML_REPR, **{"text/html": picture(bar(3))})],
        "Two bars, 3 and 4 high.",
    ),
    Row("picture-missing", "0", [result("0", **{"text/html": picture(bar(3))})], "the run made"),
    Row(
        "picture-bare",
        "display({'image/png': 'AAAA', 'text/plain': '0'}, raw=True)",
        [shown("0", {}, **{"image/png": "BBBB"})],
        "image/png differs",
    ),
    Row("never-run", "print('a')", "", "without having been run", count=None),
    Row("never-run-with-output", "print('a')", "a\n", "without having been run", count=None),
    Row("run-out-of-order", "print('a')", "a\n", "was saved as run 99", count=99),
    Row("marker-skip", "# NBVAL_SKIP\nprint('b')", "a\n", "stdout differs"),
    Row("marker-in-text", "s = '''\n# NBVAL_SKIP\n'''\nprint('b')", "a\n", "stdout differs"),
    Row("marker-ignore", "# NBVAL_IGNORE_OUTPUT\nprint('b')", "a\n", "stdout differs"),
    Row("marker-tag", "print('b')", "a\n", "stdout differs", tags=["nbval-skip"]),
    Row(
        "update",
        "shown = display(1, display_id='x')\nshown.update(2)",
        [shown("1")],
        "sends update_display_data",
    ),
    Row(
        "clear",
        "from IPython.display import clear_output\nprint('a')\nclear_output()",
        "a\n",
        "sends clear_output",
    ),
    Row("question", "input('name? ')", [printed("name? ")], "StdinNotImplementedError"),
    Row("right-claim", "<!-- check: x + 1 == 2 --><!-- check: len(In)\n== 43 -->", prose=True),
    Row("claim-false", "Two. <!-- check: x -->\n<!-- check: x == 2 -->", says="False", prose=True),
    Row("claim-too-early", "<!-- check: later == 1 -->", says="NameError", prose=True),
    Row("right-cells-in-order", "later = len(In)\nprint(later)", "44\n"),
]

NOTEBOOKS = {
    "cells": CELLS,
    "kernel_dies": [
        Row("before", "print('a')", "a\n"),
        Row("death", "import os\nos._exit(0)", "", "ended the kernel"),
        Row("after", "print('c')", "c\n", "was not run"),
        Row(ENDING, "", says="was not run"),
    ],
    "interrupt_is_swallowed": [
        Row(
            "sleep",
            "import time\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass",
            "",
            "ran for more than 8 s",
        ),
        Row("after", "print('wrong')", "right\n", "was not run"),
        Row(ENDING, "", says="was not run"),
    ],
    "interrupt_is_expected": [
        Row(
            "talk",
            "import time\nwhile True:\n    print('on and on')\n    time.sleep(0.1)",
            [error("KeyboardInterrupt", "")],
            "ran for more than 8 s",
            RAISES,
        ),
        Row(ENDING, "", says="was not run"),
    ],
    "child_speaks": [
        Row(
            "child",
            "import subprocess, sys, time\n"
            "_ = subprocess.run([sys.executable, '-c', 'print(\"unheard\")'])\n"
            "time.sleep(0.5)",
            says="the run made stdout 'unheard",
        ),
        Row(
            "daemon",
            "import threading\n"
            "daemon = threading.Timer(0.2, print, ['unjoined'])\n"
            "daemon.daemon = True\n"
            "daemon.start()",
        ),
        Row(ENDING, "", says="the run made stdout 'unjoined"),
    ],
    "thread_speaks": [
        Row("timer", "import threading\nthreading.Timer(0.2, print, ['late']).start()"),
        Row("wait", "import time\ntime.sleep(0.5)\nprint('a')", "a\n", "the run made 'late"),
        Row("slow-timer", "threading.Timer(0.8, print, ['later']).start()"),
        Row(ENDING, "", says="the run made stdout 'later"),
    ],
}
WITHOUT_CODE = ["only_words", "build/only_words", "dist/only_words", "venv/deep/only_words"]


def write(folder: Path) -> None:
    """Write all the notebooks into a folder."""
    for name, rows in NOTEBOOKS.items():
        _save(folder / f"{name}.ipynb", list(_cells(rows)))
    for name in [*WITHOUT_CODE, "index"]:
        _save(folder / f"{name}.ipynb", [new_markdown_cell("Nothing to run.", id="words")])


def _cells(rows: list[Row]) -> Iterator[NotebookNode]:
    count = 0
    for row in rows:
        if row.prose:
            yield new_markdown_cell(row.source, id=row.name)
        elif row.name != ENDING:
            count += 1
            yield new_code_cell(
                row.source,
                id=row.name,
                outputs=row.saved if isinstance(row.saved, list) else _prints(row.saved),
                execution_count=count if row.count == -1 else row.count,
                metadata={"tags": row.tags},
            )


def _prints(text: str) -> list[NotebookNode]:
    return [printed(text)] if text else []


def _save(path: Path, cells: list[NotebookNode]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
