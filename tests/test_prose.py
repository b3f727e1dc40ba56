"""The prose of the notebooks says what their results say."""

from __future__ import annotations

from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from prose import claim_problems


@pytest.mark.parametrize("path", outputs.notebook_paths()[1:], ids=outputs.name)
def test_the_numbers_of_the_prose_are_those_of_the_results(path: Path) -> None:
    assert claim_problems(outputs.read(path)) == []


TRACE = new_code_cell(
    "trace = list(range(9))\nlen(trace)",
    id="trace",
    outputs=[new_output("execute_result", {"text/plain": "9"}, execution_count=1)],
)


def after_trace(text: str) -> NotebookNode:
    return new_notebook(cells=[TRACE, new_markdown_cell(text, id="prose")])


@pytest.mark.parametrize(
    "text",
    [
        "The trace holds nine events. <!-- check: len(trace) == 9 -->",
        "It has 7 rows after zero errors. <!-- check: len(trace) - 2 == 7 + 0 and 2 --> Two fewer.",
        "Nine events. <!-- check: len(trace) == 9 and trace[5] > trace[-2] -->",
        "Nine events, said without a check, stand in an output.",
        "# Thirty-two words on 64 things\n\nIn one cell, and only once.",
        "Reading takes 10\u201315 minutes; lessons 02 and 03 follow. Then do exercise 4.",
        "RFC 8259, ISO 8601, UTF-8, SQLite 3.40.1, Python 3.13, version 2.5 and ticket T104.",
        "Call `sleep(30)`, see [part 12](12_more.ipynb).\n\n```\nsleep(30)\n```\n\n2. Again.",
    ],
)
def test_claims_that_are_in_order(text: str) -> None:
    assert claim_problems(after_trace(text)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("There are eight events.", "the text says 8"),
        ("There are 1,234 events.", "the text says 1234"),
        ("There are 45 events.", "the text says 45"),
        ("Eight. <!-- check: len(trace) == 9 -->", "checks 9, which the text"),
        ("Nine events. <!-- check: 9 == 9 -->", "looks at nothing of the notebook"),
        ("Nine events. <!-- check: len(trace) = 9 -->", "is no Python expression"),
        ("Nine events. <!-- check len(trace) == 9 -->", "is not written <!-- check:"),
    ],
)
def test_claims_that_are_not(text: str, problem: str) -> None:
    problems = claim_problems(after_trace(text))
    assert any(problem in found for found in problems), problems
    assert all(found.startswith("cell 'prose': ") for found in problems)


def test_generated_links_claim_nothing() -> None:
    links = new_markdown_cell("13 more", id="nav-top", metadata={"tags": ["nav"]})
    assert claim_problems(new_notebook(cells=[links])) == []
