"""Take a guard away from the package, and a cell of the lesson about it notices."""

from __future__ import annotations

import shutil
from contextlib import closing
from importlib import import_module
from pathlib import Path

import outputs
import pytest
from forked_cells import outputs_of
from mutations import Mutation
from nbformat import NotebookNode
from prose import output_text
from strict_nbval import compare_outputs

pytestmark = pytest.mark.prove

# A lesson, and a guard that one of its cells notices the loss of.
MUTATIONS = [
    (lesson, mutation)
    for lesson in outputs.lesson_paths()
    for mutation in import_module(f"mutations.lesson_{lesson.stem[:2]}").MUTATIONS
]


def noticing_cell(lesson: Path, shown: str, package: Path, folder: Path) -> str | None:
    """Return the first cell whose outputs are not the stored ones when `package` is imported.

    A cell that prints the guard's own source code, `shown`, notices nothing by that.
    """
    folder.mkdir()
    with closing(outputs_of(outputs.read(lesson), folder, package)) as run:
        for cell, made in run:
            if shown and shows(cell.outputs, shown):
                continue
            if compare_outputs(cell.outputs, made):
                return str(cell.id)
    return None


def shows(outputs_of_cell: list[NotebookNode], source: str) -> bool:
    """Tell whether a cell prints this source code, whatever its indent."""
    return any(
        " ".join(source.split()) in " ".join(output_text(output).split())
        for output in outputs_of_cell
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the package and its data, side by side as in the checkout."""
    for name in ("lesson_lib", "data"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(outputs.ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path / "lesson_lib"


# A lesson whose stored outputs are out of date would notice everything.
@pytest.mark.parametrize("lesson", outputs.lesson_paths(), ids=lambda lesson: lesson.stem)
def test_an_unchanged_copy_changes_no_output(lesson: Path, package: Path, tmp_path: Path) -> None:
    assert noticing_cell(lesson, "", package, tmp_path / "work") is None


@pytest.mark.parametrize(
    ("lesson", "mutation"),
    MUTATIONS,
    ids=[f"{lesson.stem} {mutation.guard}" for lesson, mutation in MUTATIONS],
)
def test_a_lesson_notices_that_its_guard_is_gone(
    lesson: Path, mutation: Mutation, package: Path, tmp_path: Path
) -> None:
    file = package / mutation.file
    source = file.read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"{mutation.old!r} must stand once in {mutation.file}"
    file.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    cell = noticing_cell(lesson, mutation.old, package, tmp_path / "work")
    assert cell, f"{lesson.stem} shows the same outputs without this guard: {mutation.guard}"
    print(f"{mutation.guard}: noticed by cell {cell!r} of {lesson.stem}")
