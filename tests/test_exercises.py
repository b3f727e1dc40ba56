"""Each exercise says what is missing, refuses wrong answers with a hint, and takes its solution."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import outputs
import pytest
from forked_cells import outputs_of
from nbformat import NotebookNode
from notebook_runner import printed

WRONG_ANSWERS = Path(__file__).parent / "wrong_answers"
HEADER = re.compile(r"^# %% (.*)\n", re.MULTILINE)
WRONG = re.compile(r"(exercise-\d+) wrong: (\S.*)")


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson."""

    path: Path
    number: int

    @property
    def cell_id(self) -> str:
        """Return the id of the cell for its answer."""
        return f"exercise-{self.number}"


def cells(path: Path) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in outputs.read(path).cells}


def solutions(path: Path) -> dict[str, NotebookNode]:
    return cells(outputs.SOLUTIONS / path.name)


def answer_ids(path: Path) -> list[str]:
    return [cell_id for cell_id in cells(path) if outputs.ANSWER_ID.fullmatch(cell_id)]


def wrong_answers(path: Path) -> list[tuple[str, str, str]]:
    """Return cell id, what is wrong, and source of each wrong answer to a lesson's exercises."""
    file = WRONG_ANSWERS / f"{path.stem}.py"
    parts = HEADER.split(file.read_text(encoding="utf-8"))[1:]
    found = []
    for header, source in zip(parts[::2], parts[1::2], strict=True):
        match = WRONG.fullmatch(header)
        assert match, f"{file.name}: '# %% {header}' is not '# %% exercise-N wrong: why'"
        found.append((match[1], match[2], source))
    return found


LESSONS = outputs.lesson_paths()
EXERCISES = [
    Exercise(path, int(cell_id.removeprefix("exercise-")))
    for path in LESSONS
    for cell_id in answer_ids(path)
]


@pytest.fixture(scope="module", params=LESSONS, ids=outputs.name)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture(scope="module", params=EXERCISES, ids=lambda e: f"{e.path.stem}-{e.number}")
def exercise(request: pytest.FixtureRequest) -> Exercise:
    chosen: Exercise = request.param
    return chosen


def answered(exercise: Exercise, answer: str) -> str:
    """Return what the check prints when `answer` stands in the stub's place.

    Only what an exercise may rest on runs before it: the imports and the earlier solutions.
    """
    solved = solutions(exercise.path)
    earlier = [f"exercise-{number}" for number in range(1, exercise.number)]
    sources = [solved[cell_id].source for cell_id in ("imports", *earlier)]
    namespace = {"__name__": "__main__"}
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()):
        for source in [*sources, answer]:
            exec(source, namespace)
    with contextlib.redirect_stdout(said):
        exec(solved[f"{exercise.cell_id}-check"].source, namespace)
    return said.getvalue()


def test_each_lesson_has_exercises_and_each_exercise_its_cells(path: Path) -> None:
    ids = answer_ids(path)
    assert ids == [f"exercise-{number}" for number in range(1, len(ids) + 1)]
    assert ids, f"{path.name} has no exercise"
    in_lesson = {f"{cell_id}{part}" for cell_id in ids for part in ("", "-task", "-check")}
    in_solutions = in_lesson | {f"{cell_id}-why" for cell_id in ids}
    for found, expected in ((cells(path), in_lesson), (solutions(path), in_solutions)):
        assert {cell_id for cell_id in found if cell_id.startswith("exercise-")} == expected


def test_an_untouched_exercise_says_what_is_missing(exercise: Exercise) -> None:
    said = printed(cells(exercise.path)[f"{exercise.cell_id}-check"].outputs)
    pattern = rf"Exercise {exercise.number}: not (solved|right) yet - \S.*\n"
    assert re.fullmatch(pattern, said), said


def test_the_solution_says_correct(exercise: Exercise) -> None:
    said = printed(solutions(exercise.path)[f"{exercise.cell_id}-check"].outputs)
    assert said == f"Exercise {exercise.number}: correct\n"


def test_the_solution_needs_only_the_imports_and_earlier_solutions(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    solution = solutions(exercise.path)[exercise.cell_id].source
    assert answered(exercise, solution) == f"Exercise {exercise.number}: correct\n"


@pytest.mark.prove
def test_a_lesson_with_all_its_solutions_is_correct(path: Path, tmp_path: Path) -> None:
    lesson = outputs.read(path)
    solved = solutions(path)
    for cell in lesson.cells:
        if outputs.ANSWER_ID.fullmatch(cell.id):
            cell.source = solved[cell.id].source
    said = {}
    with contextlib.closing(outputs_of(lesson, tmp_path, outputs.ROOT / "lesson_lib")) as run:
        for cell, made in run:
            said[cell.id] = printed(made)
            raised = any(output.output_type == "error" for output in made)
            assert raised == ("raises-exception" in cell.metadata.get("tags", [])), cell.id
    for number, cell_id in enumerate(answer_ids(path), 1):
        assert said[f"{cell_id}-check"] == f"Exercise {number}: correct\n"


def test_each_wrong_answer_gets_a_hint_of_its_own(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {
        why: answered(exercise, source)
        for cell_id, why, source in wrong_answers(exercise.path)
        if cell_id == exercise.cell_id
    }
    assert len(said) >= 2, f"{exercise.cell_id} needs two wrong answers, not {len(said)}"
    pattern = rf"Exercise {exercise.number}: not right yet - \S.*\n"
    assert {why: text for why, text in said.items() if not re.fullmatch(pattern, text)} == {}
    assert len(set(said.values())) == len(said), f"different mistakes, same hint: {said}"


def test_wrong_answers_belong_to_exercises(path: Path) -> None:
    assert {cell_id for cell_id, _, _ in wrong_answers(path)} <= set(answer_ids(path))


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def hostile(solution: str, check: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of answers that break what the check looks at.

    A function raises or returns None, a value is None.
    """
    looked_at = _names(ast.parse(check))
    tree = ast.parse(solution)
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in looked_at:
            own_body = statement.body
            for source in ("raise RuntimeError('two\\nlines')", "return None"):
                statement.body = ast.parse(source).body
                yield f"{statement.name}: {source}", ast.unparse(tree)
            statement.body = own_body
        elif isinstance(statement, ast.Assign) and _names(statement) & looked_at:
            own_value = statement.value
            statement.value = ast.Constant(None)
            yield ast.unparse(statement), ast.unparse(tree)
            statement.value = own_value


def test_a_check_survives_any_answer(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    solved = solutions(exercise.path)
    check = solved[f"{exercise.cell_id}-check"].source
    broken = dict(hostile(solved[exercise.cell_id].source, check))
    assert broken, f"{check!r} looks at nothing that the answer defines"
    said = {what: answered(exercise, source) for what, source in broken.items()}
    pattern = rf"Exercise {exercise.number}: not (solved|right) yet - \S.*\n"
    assert {what: text for what, text in said.items() if not re.fullmatch(pattern, text)} == {}
