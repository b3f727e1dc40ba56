"""Each notebook runs alone and twice, on any machine, and leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import outputs
import pytest
from nbformat import NotebookNode
from notebook_runner import run
from strict_nbval import compare_outputs

pytestmark = pytest.mark.prove

# Two machines that differ in what an output must not depend on.
MACHINES = (
    {"TZ": "UTC", "PYTHONHASHSEED": "1", "COLUMNS": "80"},
    {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "2", "COLUMNS": "200"},
)


def checkout() -> dict[Path, bytes]:
    folders = (outputs.NOTEBOOKS, outputs.ROOT / "data")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {file: file.read_bytes() for file in files}


def differences(notebook: NotebookNode, made: dict[str, list[NotebookNode]]) -> list[str]:
    return [
        f"cell {cell.id!r}: {difference}"
        for cell in notebook.cells
        if cell.cell_type == "code"
        if (difference := compare_outputs(cell.outputs, made[cell.id]))
    ]


@pytest.mark.parametrize("path", outputs.notebook_paths(), ids=outputs.name)
def test_a_notebook_runs_alone_and_twice_in_a_row(path: Path, tmp_path: Path) -> None:
    before = checkout()
    folder, scratch = tmp_path / "a földer with spaces", tmp_path / "temporary"
    folder.mkdir()
    scratch.mkdir()
    alone = Path(shutil.copy(path, folder))
    for machine in MACHINES:
        made = run(alone, folder, machine | {"TMPDIR": str(scratch)})
        assert differences(outputs.read(path), made) == []
        assert list(folder.iterdir()) == [alone], "the notebook left a file beside itself"
        assert list(scratch.iterdir()) == [], "the notebook left its temporary files"
    assert checkout() == before


@pytest.mark.parametrize("path", outputs.lesson_paths(), ids=outputs.name)
def test_a_lesson_passes_nbval_without_this_project_s_plugin(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plain = ["-c", "pytest.ini", "--noconftest", "-p", "no:randomly", "--nbval", str(path)]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *plain],
        cwd=tmp_path,
        env=outputs.kernel_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout
    cells = [cell for cell in outputs.read(path).cells if cell.cell_type == "code"]
    assert f" {len(cells)} passed" in child.stdout
