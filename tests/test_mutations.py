"""Take a guard away from the package, and a cell of the lesson about it notices."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from importlib import import_module
from pathlib import Path

import outputs
import pytest
from mutations import Mutation
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from notebook_runner import output_text, printed, steps
from strict_nbval import compare_outputs


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
    notebook = outputs.read(lesson)
    stored = {
        cell.id: cell.outputs
        for cell in notebook.cells
        if cell.cell_type == "code" and not (shown and shows(cell.outputs, shown))
    }
    probe = new_code_cell("import lesson_lib\nprint(lesson_lib.__file__)", id="which-package")
    notebook.cells.insert(0, probe)
    folder.mkdir()
    inherited = os.environ.get("PYTHONPATH", "")
    search_path = os.pathsep.join(filter(None, (str(package.parent), inherited)))
    environment = {"PYTHONPATH": search_path, "TMPDIR": str(folder)}
    with closing(steps(notebook, folder, environment)) as run:
        assert printed(next(run).cell.outputs) == f"{package / '__init__.py'}\n"
        for step in run:
            made = step.cell.get("outputs", [])
            if step.cell.id in stored and compare_outputs(stored[step.cell.id], made):
                return str(step.cell.id)
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
    ("lesson", "mutation"), MUTATIONS, ids=[mutation.guard for _, mutation in MUTATIONS]
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
