"""Each rule of the lesson guide passes a good lesson and notices a bad one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import notebook_lint as lint
import pytest
from nbformat import NotebookNode, write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_lint import FOR_ALL, FOR_LESSONS, FOR_SOLUTIONS, Page, Rule
from wrong_notebooks import bar, error, picture, printed, result

Change = Callable[[NotebookNode], object]

HEAD = """\
# Save a run

## What you'll do
You save a run.

## What you'll learn
- **Explain** why a dictionary is lost.
- Compare two saved runs.

## What you'll need
An hour before lunch: 12 minutes to read, 20 for the exercises."""
PROSE = "The run is saved, and nothing that was saved is lost when the process ends here. " * 4
ANSWER = "<details><summary>What happened</summary>\n\nIt was saved.\n\n</details>\n\n"
NOTE = "> **Speaker notes** (3 minutes). Ask who has seen it. Expect: nobody."


def words(cell_id: str, source: str, slide_type: str = "slide") -> NotebookNode:
    """Return a markdown cell."""
    return new_markdown_cell(source, id=cell_id, metadata={"slideshow": {"slide_type": slide_type}})


def code(cell_id: str, source: str, said: str = "1\n") -> NotebookNode:
    """Return a code cell that printed something."""
    metadata = {"slideshow": {"slide_type": "-"}}
    return new_code_cell(source, id=cell_id, metadata=metadata, outputs=[printed(said)])


def good_lesson(verdict: str = "not solved yet - a name is missing") -> NotebookNode:
    """Return a lesson that breaks no rule."""
    cells = [
        words("head", HEAD),
        words("nav-top", "[contents](index.ipynb)", "skip"),
        code("imports", "import math"),
        words("first-step", f"## The first step\n\n{PROSE}"),
        code("first-run", "print(1)"),
        words("first-guess", f"**Predict.** What is printed?\n\n{PROSE}"),
        code("first-try", "print(1)"),
        words("first-answer", ANSWER + PROSE),
        words("first-notes", NOTE, "notes"),
        words("second-guess", f"**Predict.** What is printed?\n\n{PROSE}"),
        code("second-try", "print(1)"),
        words("second-answer", ANSWER + PROSE),
        words("second-notes", NOTE, "notes"),
    ]
    for number, kind in enumerate(("Modify", "Make"), 1):
        name = f"exercise-{number}"
        cells += [
            words(f"{name}-task", f"### Exercise {number} ({kind})\n\n{PROSE}"),
            code(name, "TODO = None"),
            code(f"{name}-check", "check(TODO)", f"Exercise {number}: {verdict}\n"),
        ]
    manual = "[SQLite's page on WAL](https://sqlite.org/wal.html)"
    cells += [
        words("wrong", f"## What can go wrong\n\n{PROSE}"),
        words("key", "## Key points\n\nA saved run stays.\n\n## In practice\n\nIt is small."),
        words("reading", f"## Further reading\n\n{manual} and [the step](#The-first-step)."),
        words("third-notes", NOTE, "notes"),
        words("nav-bottom", "[contents](index.ipynb)", "skip"),
    ]
    for place, cell in enumerate([cell for cell in cells if cell.cell_type == "code"], 1):
        cell.execution_count = place
    kernel = {"name": "python3", "display_name": "Python 3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def find(notebook: NotebookNode, cell_id: str) -> NotebookNode:
    """Return the cell with this id."""
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def breaches(rule: Rule, notebook: NotebookNode, folder: Path) -> list[str]:
    """Return what a rule says of a notebook that lies beside an index."""
    write(new_notebook(cells=[words("head", "# Contents")]), folder / "index.ipynb")
    return list(rule(Page(folder / "01_good.ipynb", notebook)))


# How a change is written down ---------------------------------------------------------------------


def says(text: str, cell_id: str = "first-step") -> Change:
    """Add text to a markdown cell."""
    return lambda notebook: find(notebook, cell_id).update(
        source=f"{find(notebook, cell_id).source}\n\n{text}"
    )


def becomes(source: str, cell_id: str = "first-run") -> Change:
    """Replace the source of a cell."""
    return lambda notebook: find(notebook, cell_id).update(source=source)


def holds(*outputs: NotebookNode) -> Change:
    """Replace the outputs of a code cell."""
    return lambda notebook: find(notebook, "first-run").update(outputs=list(outputs))


def has(cell_id: str = "first-run", **fields: object) -> Change:
    """Replace fields of a cell."""
    return lambda notebook: find(notebook, cell_id).update(fields)


def marked(cell_id: str, tags: list[str], slide_type: str | None = "slide") -> Change:
    """Replace the metadata of a cell."""
    metadata = NotebookNode(tags=tags, slideshow=NotebookNode(slide_type=slide_type))
    return lambda notebook: find(notebook, cell_id).update(metadata=metadata)


def without(*cell_ids: str) -> Change:
    """Delete cells."""
    return lambda notebook: notebook.update(
        cells=[cell for cell in notebook.cells if cell.id not in cell_ids]
    )


def replaced(old: str, new: str, cell_id: str = "head") -> Change:
    """Replace a part of a cell's source."""
    return lambda notebook: find(notebook, cell_id).update(
        source=find(notebook, cell_id).source.replace(old, new)
    )


def html(text: str) -> NotebookNode:
    """Return the output of a cell whose result is shown as HTML."""
    return result("words", **{"text/html": text})


BAD: list[tuple[Rule, Change, str]] = [
    (lint.valid_format, has(bogus=1), "is no valid notebook"),
    (lint.valid_format, lambda nb: nb.update(nbformat_minor=4), "before 4.5"),
    (lint.valid_format, lambda nb: nb.metadata.kernelspec.update(name="my-env"), "my-env"),
    (lint.cell_ids, has(id="3f2a9c1e"), "has the id '3f2a9c1e'"),
    (lint.cell_ids, has(id="First Run"), "has the id 'First Run'"),
    (lint.cell_ids, lambda nb: nb.cells[3].pop("id"), "cell 3 has the id ''"),
    (lint.cell_ids, has(id="imports"), "cell imports: another cell"),
    (lint.executed_in_order, becomes(" \n"), "first-run is empty"),
    (lint.executed_in_order, has(execution_count=None), "saved as run None and must be run 2"),
    (lint.executed_in_order, has(execution_count=7), "saved as run 7 and must be run 2"),
    (lint.executed_in_order, holds(result("1")), "holds the result of run 1"),
    (
        lint.outputs_of_any_machine,
        holds(new_output("stream", name="stderr", text="x")),
        "holds stderr: 'x'",
    ),
    (lint.outputs_of_any_machine, holds(printed("in /tmp/abc/run.db")), "a path"),
    (lint.outputs_of_any_machine, holds(printed(r"in C:\Users\me")), "a path"),
    (lint.outputs_of_any_machine, holds(result("<x at 0x7f3a9c1e20>")), "an address"),
    (lint.outputs_of_any_machine, holds(printed("2026-01-02T03:04:05")), "a time"),
    (lint.outputs_of_any_machine, holds(printed("took 00:00:03")), "a time"),
    (lint.outputs_of_any_machine, holds(printed("pid 4711")), "a process id"),
    (lint.outputs_of_any_machine, holds(printed("process 4711 died")), "a process id"),
    (lint.outputs_of_any_machine, holds(html("123e4567-e89b-12d3-a456-4266")), "a random id"),
    (lint.outputs_of_any_machine, holds(error("OSError", "/home/me/x")), "a path"),
    (
        lint.outputs_of_any_machine,
        holds(html(picture("<svg><!-- 2026-01-02T03:04:05 --></svg>"))),
        "a time",
    ),
    (
        lint.outputs_of_any_machine,
        holds(new_output("error", ename="E", evalue="e", traceback=["File x", "E: e"])),
        "a traceback",
    ),
    (lint.plain_python, becomes("# NBVAL_SKIP\nprint(1)"), "holds NBVAL_"),
    (lint.plain_python, becomes("x = '''\n# NBVAL_IGNORE_OUTPUT\n'''"), "holds NBVAL_"),
    (lint.plain_python, becomes("x = 1\n%matplotlib inline"), "line 2: no plain Python"),
    (lint.plain_python, becomes("%%capture\nprint(1)"), "line 1: no plain Python"),
    (lint.plain_python, becomes("!exit 3"), "no plain Python"),
    (lint.plain_python, becomes("x = !ls"), "no plain Python"),
    (lint.plain_python, becomes("print?"), "no plain Python"),
    (lint.plain_python, becomes("get_ipython().system('exit 3')"), "uses get_ipython"),
    (lint.plain_python, becomes("from IPython.display import clear_output"), "uses clear_output"),
    (lint.plain_python, becomes("display(1, display_id='x')"), "uses display_id"),
    (lint.plain_python, becomes("name = input('name? ')"), "uses input"),
    (lint.plain_python, becomes("import os\nos._exit(1)"), "uses _exit"),
    (lint.plain_python, becomes("quit()"), "uses quit"),
    (lint.plain_python, becomes("exit()"), "uses exit"),
    (lint.plain_python, becomes("import asyncio\nasyncio.create_task(f())"), "uses create_task"),
    (lint.plain_python, becomes("import atexit"), "uses atexit"),
    (lint.plain_python, becomes("from atexit import register"), "uses atexit"),
    (lint.known_tags, marked("first-run", ["raise-exception"]), "'raise-exception', which"),
    (lint.known_tags, marked("first-step", ["nbval-skip"]), "'nbval-skip', which"),
    (lint.known_tags, marked("first-run", ["raises-exception"]), "holds no error"),
    (lint.known_tags, holds(error("E", "e")), "lacks the tag raises-exception"),
    (lint.pictures_in_words, holds(result("x", **{"image/png": "AAAA"})), "shows image/png"),
    (lint.pictures_in_words, holds(html(picture(bar(1), alt="A figure"))), "10 letters"),
    (lint.pictures_in_words, holds(html('<img src="x.png">')), "10 letters"),
    (lint.pictures_in_words, holds(html(picture("a bar"))), "is no SVG"),
    (lint.pictures_in_words, holds(html(bar(1))), "holds <svg>"),
    (lint.pictures_in_words, holds(html("<script>x</script>")), "holds <script>"),
    (lint.pictures_in_words, says("<iframe src='x'></iframe>"), "holds <iframe>"),
    (lint.pictures_in_words, says("![plot](x.png)"), "say too little: 'plot'"),
    (
        lint.pictures_in_words,
        holds(html("<table><thead></thead><tr><td>1</td></tr></table>")),
        "without headers",
    ),
    (lint.columns, becomes("x = 1\n" + "y" * 77), "line 2 has 77 columns of 76"),
    (lint.slide_types, marked("first-run", [], None), "has the slide type None"),
    (lint.slide_types, marked("first-run", [], "page"), "has the slide type 'page'"),
    (lint.headings_in_order, says("# Another title"), "exactly one H1"),
    (lint.headings_in_order, replaced("# Save", "## Save"), "exactly one H1"),
    (lint.headings_in_order, says("#### Deep"), "'Deep' has level 4 after level 2"),
    (lint.links, says("[the next step](02_none.ipynb)"), "02_none.ipynb leads nowhere"),
    (lint.links, says("[the next step](#Nothing)"), "#Nothing leads nowhere"),
    (lint.links, says("[the list](index.ipynb#Nothing)"), "index.ipynb#Nothing leads nowhere"),
    (lint.links, says("[a clear page](http://example.org)"), "leads nowhere"),
    (lint.links, says("Read [here](https://example.org)."), "'here' does not say"),
    (lint.links, says("[https://example.org](https://example.org)"), "does not say"),
    (lint.links, says('<a href="index.ipynb">this link</a>'), "'this link' does not say"),
    (lint.links, says('<a href="none.ipynb">the contents</a>'), "none.ipynb leads nowhere"),
    (lint.links, says("See https://example.org."), "bare URL"),
    (lint.links, says("See <https://example.org>."), "bare URL"),
    (lint.tables_with_headers, says("| 1 | 2 |\n| 3 | 4 |"), "not all named"),
    (lint.tables_with_headers, says("| | kept |\n|---|---|\n| x | y |"), "not all named"),
    (lint.no_admonitions, says("> [!NOTE]\n> Mind this."), "(> [!NOTE])"),
    (lint.no_admonitions, says(":::{note}\nMind this.\n:::"), "(:::)"),
    (lint.one_spelling, says("A check-point is saved."), "'check-point': the term is checkpoint"),
    (lint.one_spelling, says("An idempotence key."), "the term is idempotency key"),
    (lint.one_spelling, says("Json in Sqlite."), "the term is SQLite"),
    (lint.proportions, without("wrong", "key", "reading", "head", "imports"), "has 19 cells"),
    (lint.proportions, lambda nb: nb.cells.extend([nb.cells[-1]] * 27), "has 51 cells"),
    (lint.proportions, without("exercise-1-task", "exercise-2-task"), "code cell 4 in a row"),
    (lint.proportions, without("wrong", "first-guess", "first-answer", "head"), "has 44.8 words"),
    (lint.proportions, says(PROSE * 5), "has 115.1 words"),
    (lint.short_code, becomes("x = 1\n" * 31), "has 31 lines"),
    (
        lint.short_code,
        lambda nb: [cell.update(source="x = 1\n" * 7) for cell in nb.cells],
        "in the median",
    ),
    (
        lint.short_code,
        lambda nb: [cell.update(source="x = 1\n" * 16) for cell in nb.cells if "try" in cell.id],
        "at the 90th percentile",
    ),
    (lint.respectful, says("This is simply done."), "'simply' in first-step"),
    (lint.sections, replaced("What you'll need", "Needed"), '"What you\'ll need" in its first'),
    (lint.sections, without("wrong"), "'What can go wrong'"),
    (lint.sections, without("key"), "'In practice'"),
    (lint.sections, without("reading"), "'Further reading'"),
    (lint.sections, replaced("12 minutes", "Time"), "how many minutes"),
    (lint.objectives, replaced("- Compare two saved runs.", ""), "lists 1 skills"),
    (lint.objectives, replaced("- Compare", "- Compare\n" * 3 + "- Compare"), "lists 5 skills"),
    (lint.objectives, replaced("**Explain**", "Understand"), "'Understand why"),
    (lint.predictions, replaced("**Predict.**", "Guess.", "first-guess"), "has 1 predictions"),
    (lint.predictions, without("first-try"), "no code cell follows"),
    (lint.predictions, replaced("<details>", "", "second-answer"), "no folded answer"),
    (lint.exercises, replaced("(Modify)", "", "exercise-1-task"), "marked (Modify)"),
    (lint.exercises, replaced("(Make)", "(make)", "exercise-2-task"), "marked (Make)"),
    (lint.exercises, without("exercise-2"), "cell exercise-2 is missing"),
    (lint.exercises, without("exercise-2-check"), "cell exercise-2-check is missing"),
    (lint.exercises, has("exercise-1-check", outputs=[]), "must say 'Exercise 1: not (solved"),
    (
        lint.exercises,
        lambda nb: nb.update(cells=[cell for cell in nb.cells if "exercise" not in cell.id]),
        "has no exercise, so",
    ),
    (lint.solved, has("exercise-1-check"), "must say 'Exercise 1: correct"),
    (lint.speaker_notes, without("third-notes"), "has 2 speaker notes"),
    (lint.speaker_notes, replaced("3 minutes", "short", "third-notes"), "has 2 speaker notes"),
    (lint.speaker_notes, replaced("Expect", "Say", "third-notes"), "has 2 speaker notes"),
]


@pytest.mark.parametrize("rule", FOR_ALL + FOR_LESSONS, ids=lambda rule: rule.__name__)
def test_a_good_lesson_breaks_no_rule(rule: Rule, tmp_path: Path) -> None:
    assert breaches(rule, good_lesson(), tmp_path) == []


def test_good_solutions_break_no_rule(tmp_path: Path) -> None:
    assert breaches(lint.solved, good_lesson(verdict="correct"), tmp_path) == []


@pytest.mark.parametrize(
    ("rule", "change", "says"),
    [pytest.param(*row, id=f"{row[0].__name__}-{place}") for place, row in enumerate(BAD)],
)
def test_a_bad_notebook_breaks_its_rule(
    rule: Rule, change: Change, says: str, tmp_path: Path
) -> None:
    notebook = good_lesson()
    change(notebook)
    assert says in "\n".join(breaches(rule, notebook, tmp_path))


def test_each_rule_is_shown_to_fail() -> None:
    assert {*FOR_ALL, *FOR_LESSONS, *FOR_SOLUTIONS} == {rule for rule, _, _ in BAD}


FINE: list[tuple[Rule, Change]] = [
    (lint.links, says("[the list](index.ipynb#contents) and [`step`](#the-first-step)")),
    (lint.links, says("In code, `https://example.org` and `x[1](none)` are no links.")),
    (lint.tables_with_headers, says("| what | kept |\n|:---|---:|\n| x | y |")),
    (lint.one_spelling, says("The `json` module; `sqlite.py`; see sqlite/store.py.")),
    (lint.plain_python, becomes("run_python('import os; os._exit(1)', input=None)")),
    (lint.plain_python, becomes("await answer")),
    (lint.outputs_of_any_machine, holds(printed("run-T104: 18/45 minutes, lib/schema.sql"))),
    (lint.pictures_in_words, holds(html(picture(bar(1))))),
    (lint.headings_in_order, says("```\n# a comment\n```")),
    (lint.respectful, says("<!-- simply --> `just`")),
]


@pytest.mark.parametrize(
    ("rule", "change"),
    [pytest.param(*row, id=f"{row[0].__name__}-{place}") for place, row in enumerate(FINE)],
)
def test_a_rule_spares_what_is_fine(rule: Rule, change: Change, tmp_path: Path) -> None:
    notebook = good_lesson()
    change(notebook)
    assert breaches(rule, notebook, tmp_path) == []


def test_words_are_counted_as_they_are_read(tmp_path: Path) -> None:
    cells = [
        words("text", "Two *words* — and `run_id`, [a link](https://example.org/x)."),
        words("hidden", "<!-- check: 1 == 1 -->\n```\ncode in a fence\n```\n<b>bold</b>"),
        words("nav-top", "not counted"),
        words("notes", "not counted", "notes"),
    ]
    assert lint.count_words(Page(tmp_path / "x.ipynb", new_notebook(cells=cells))) == 7


def test_the_series_needs_two_tasks_to_order_or_to_hunt(tmp_path: Path) -> None:
    parsons, plain = good_lesson(), good_lesson()
    replaced("(Make)", "(Make) (Parsons)", "exercise-2-task")(parsons)
    pages = [Page(tmp_path / "01.ipynb", parsons), Page(tmp_path / "02.ipynb", plain)]
    assert len(list(lint.series_exercises(pages))) == 1
    replaced("(Make)", "(Make) (Bug hunt)", "exercise-2-task")(plain)
    assert not list(lint.series_exercises(pages))
