"""The generated parts of the notebooks are as the generator makes them, and it notices edits."""

from __future__ import annotations

from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

LESSONS = ["01_first", "02_second", "03_third"]
REGION = """\
def both(connection, state):
    if state:
        # solution
        with connection:
            save(state)
        # instead of
        # # Your lines here.
        #
        # if not state:
        #     pass
        # return TODO
        # end
    # solution
    return state
    # instead of
    # return None
    # end"""
STUB = """\
def both(connection, state):
    if state:
        # Your lines here.

        if not state:
            pass
        return TODO
    return None"""


@pytest.fixture(scope="module", params=outputs.notebook_paths(), ids=outputs.name)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


def test_a_committed_notebook_is_as_generated(path: Path) -> None:
    assert path.read_bytes() == outputs.file_text(outputs.generated(path)).encode(), (
        f"{outputs.name(path)} is not as tools/outputs.py makes it: run `make outputs`"
    )


def test_there_are_lessons_and_each_has_solutions() -> None:
    lessons = [path.stem for path in outputs.lesson_paths()]
    assert lessons
    assert lessons == [path.stem for path in outputs.solution_paths()]


def exercise(source: str, cell_id: str = "exercise-1") -> NotebookNode:
    return new_notebook(
        cells=[
            new_markdown_cell("Try it.", id=f"{cell_id}-task", metadata={"tags": ["task"]}),
            new_code_cell(source, id=cell_id),
            new_code_cell("check()", id=f"{cell_id}-check"),
            new_markdown_cell("Because.", id=f"{cell_id}-why"),
        ]
    )


def lesson_for(solutions: NotebookNode) -> NotebookNode:
    cells = [cell for cell in solutions.cells if not cell.id.endswith("-why")]
    return outputs.with_exercises(new_notebook(cells=cells), solutions, "01_first")


def test_each_region_becomes_its_stub_and_keeps_the_indent() -> None:
    assert outputs.stub(REGION, "here") == STUB


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("a = 1", "no region"),
        ("# solution\na = 1\n# instead of\n# a = TODO", "'# instead of' is not followed by"),
        ("# solution\na = 1\n# end", "line 3: '# end' follows '# solution'"),
        ("a = 1\n# instead of\n# a = TODO\n# end", "line 2: '# instead of' follows '# end'"),
        ("# solution\n# solution\n# instead of\n# end", "line 2: '# solution' follows"),
        ("# solution\na = 1\n# instead of\na = TODO\n# end", "line 4: 'a = TODO' stands between"),
        ("# solution\na = 1\n# instead of\n#a = TODO\n# end", "line 4: '#a = TODO' stands between"),
    ],
)
def test_a_malformed_region_is_an_error_that_names_notebook_and_cell(
    source: str, complaint: str
) -> None:
    with pytest.raises(outputs.OutputsError) as caught:
        lesson_for(exercise(source))
    assert "01_first, cell 'exercise-1'" in str(caught.value)
    assert complaint in str(caught.value)


def test_an_exercise_without_counterpart_is_an_error() -> None:
    one, two = exercise(REGION), exercise(REGION)
    two.cells += exercise(REGION, "exercise-2").cells
    with pytest.raises(outputs.OutputsError, match="'exercise-2' and the lesson notebook has none"):
        outputs.with_exercises(one, two, "01_first")
    with pytest.raises(outputs.OutputsError, match="'exercise-2' and the solutions notebook has"):
        outputs.with_exercises(two, one, "01_first")


def test_a_cell_of_another_type_is_an_error() -> None:
    solutions = exercise(REGION)
    lesson = lesson_for(solutions)
    lesson.cells[0] = new_code_cell("", id="exercise-1-task")
    with pytest.raises(outputs.OutputsError, match="'exercise-1-task' is code in the lesson"):
        outputs.with_exercises(lesson, solutions, "01_first")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_edit_of_a_derived_cell_is_undone(place: int) -> None:
    solutions = exercise(REGION)
    lesson = lesson_for(solutions)
    assert lesson.cells[1].source == STUB
    edited = lesson_for(solutions)
    edited.cells[place].source += "\nx"
    edited.cells[place].metadata["tags"] = ["mine"]
    assert outputs.with_exercises(edited, solutions, "01_first") == lesson
    assert edited.cells[place].source.endswith("x"), "the argument was changed"


@pytest.mark.parametrize(
    ("stem", "links"),
    [
        ("01_first", "[contents](index.ipynb) · [next: 02 second](02_second.ipynb)"),
        (
            "02_second",
            (
                "[previous: 01 first](01_first.ipynb) · [contents](index.ipynb)"
                " · [next: 03 third](03_third.ipynb)"
            ),
        ),
        ("03_third", "[previous: 02 second](02_second.ipynb) · [contents](index.ipynb)"),
        (
            "solutions/02_second",
            "[lesson: 02 second](../02_second.ipynb) · [contents](../index.ipynb)",
        ),
    ],
)
def test_navigation_stands_second_and_last(stem: str, links: str) -> None:
    path = outputs.NOTEBOOKS / f"{stem}.ipynb"
    cells = [new_markdown_cell(text, id=text) for text in ("nav-top", "title", "body")]
    once = outputs.with_navigation(new_notebook(cells=cells), path, LESSONS)
    assert [cell.id for cell in once.cells] == ["title", "nav-top", "body", "nav-bottom"]
    assert once.cells[1].source == once.cells[-1].source == links
    assert outputs.with_navigation(once, path, LESSONS) == once


def test_the_index_has_no_navigation() -> None:
    index = new_notebook(cells=[new_markdown_cell("# Contents", id="title")])
    assert outputs.with_navigation(index, outputs.NOTEBOOKS / "index.ipynb", LESSONS) == index


def untidy() -> NotebookNode:
    code = new_code_cell(
        "1",
        id="one",
        execution_count=7,
        metadata={"tags": ["raises-exception"], "execution": {"started": "now"}, "trusted": True},
        outputs=[
            new_output("stream", name="stdout", text="a\n"),
            new_output("stream", name="stdout", text="b\n"),
            new_output("display_data", {"text/plain": "figure"}),
            new_output("stream", name="stdout", text="c\n"),
            new_output("execute_result", {"text/plain": "1"}, execution_count=7),
            new_output(
                "error",
                ename="ValueError",
                evalue="no",
                traceback=["\x1b[31mFile /home/me/lesson.py:3\x1b[0m", "ValueError: no"],
            ),
        ],
    )
    slide = {"slideshow": {"slide_type": "slide"}, "editable": True, "tags": []}
    return new_notebook(
        cells=[new_markdown_cell("# One", id="title", metadata=slide), code],
        metadata={"toc": {}, "language_info": {"name": "python", "version": "3.1"}},
    )


def test_normalising_keeps_what_a_reader_sees_and_nothing_else() -> None:
    notebook = outputs.normalised(untidy())
    title, code = notebook.cells
    assert notebook.metadata == outputs.METADATA
    assert title.metadata == {"slideshow": {"slide_type": "slide"}}
    assert code.metadata == {"tags": ["raises-exception"]}
    assert [title.id, code.id, code.execution_count] == ["title", "one", 1]
    streams = [output.get("text") for output in code.outputs]
    assert streams == ["a\nb\n", None, "c\n", None, None]
    assert code.outputs[3].execution_count == 1
    assert code.outputs[4].traceback == ["ValueError: no"]


def test_normalising_twice_changes_nothing() -> None:
    notebook = outputs.normalised(untidy())
    assert outputs.normalised(notebook) == notebook
    assert outputs.file_text(notebook).endswith("}\n")


def test_the_kernel_knows_nothing_of_who_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ["PYTEST_CURRENT_TEST", "JPY_PARENT_PID", "JUPYTER_CONFIG_DIR", "MPLBACKEND"]
    for variable in [*foreign, "LESSON_KEPT"]:
        monkeypatch.setenv(variable, "1")
    environment = outputs.kernel_environment()
    assert environment["LESSON_KEPT"] == "1"
    assert not environment.keys() & foreign


def test_without_notebooks_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(outputs, "ROOT", tmp_path)
    monkeypatch.setattr(outputs, "NOTEBOOKS", tmp_path / "notebooks")
    with pytest.raises(outputs.OutputsError, match=r"notebooks/index\.ipynb: no notebook is there"):
        outputs.notebook_paths()


def test_a_file_that_is_no_notebook_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "torn.ipynb"
    path.write_text("{")
    with pytest.raises(outputs.OutputsError, match=r"torn\.ipynb is no valid notebook"):
        outputs.read(path)
