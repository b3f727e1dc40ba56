"""Each notebook runs alone and twice, leaves nothing behind, and says what is so."""

from __future__ import annotations

import shutil
from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_runner import Result, claim_problems, run
from strict_nbval import compare_outputs

# Two machines that differ in what an output must not depend on.
MACHINES = (
    {"TZ": "UTC", "PYTHONHASHSEED": "1", "COLUMNS": "80"},
    {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "2", "COLUMNS": "200"},
)


def checkout() -> dict[Path, bytes]:
    folders = (outputs.NOTEBOOKS, outputs.ROOT / "data")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {file: file.read_bytes() for file in files}


def differences(notebook: NotebookNode, result: Result) -> list[str]:
    return [
        f"cell {cell.id!r}: {difference}"
        for cell in notebook.cells
        if cell.cell_type == "code"
        if (difference := compare_outputs(cell.outputs, result.outputs[cell.id]))
    ]


@pytest.mark.parametrize("path", outputs.notebook_paths(), ids=outputs.name)
def test_a_notebook_runs_alone_and_twice_in_a_row(path: Path, tmp_path: Path) -> None:
    before = checkout()
    folder, scratch = tmp_path / "a földer with spaces", tmp_path / "temporary"
    folder.mkdir()
    scratch.mkdir()
    alone = Path(shutil.copy(path, folder))
    for machine in MACHINES:
        result = run(alone, folder, machine | {"TMPDIR": str(scratch)})
        assert differences(outputs.read(path), result) == []
        assert result.failed_claims == ()
        assert list(folder.iterdir()) == [alone], "the notebook left a file beside itself"
        assert list(scratch.iterdir()) == [], "the notebook left its temporary files"
    assert checkout() == before


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


def test_a_false_claim_is_found_at_its_place_and_counts_no_execution(tmp_path: Path) -> None:
    def claim(cell_id: str, expression: str) -> NotebookNode:
        return new_markdown_cell(f"<!-- check: {expression} -->", id=cell_id)

    notebook = new_notebook(
        cells=[
            claim("too-early", "len(trace) == 9"),
            TRACE,
            claim("true", "len(trace) == 9 and\n len(trace) > 8"),
            claim("false", "len(trace) == 8"),
            new_code_cell("trace.append(1)\nlen(In)", id="later"),
            claim("changed", "len(trace) == 9"),
        ]
    )
    result = run(notebook, tmp_path)
    assert [failed.partition(" claims ")[0] for failed in result.failed_claims] == [
        "cell 'too-early'",
        "cell 'false'",
        "cell 'changed'",
    ]
    assert "NameError" in result.failed_claims[0]
    assert "gives False" in result.failed_claims[1]
    assert result.outputs["later"][0].data["text/plain"] == "3"


def test_a_run_goes_on_after_a_failing_cell_and_keeps_its_notebook(tmp_path: Path) -> None:
    notebook = new_notebook(
        cells=[new_code_cell("1 / 0", id="fails"), new_code_cell("print('on')", id="next")]
    )
    result = run(notebook, tmp_path)
    assert result.outputs["fails"][0].ename == "ZeroDivisionError"
    assert result.text("next") == "on\n"
    assert notebook.cells[1].outputs == []
