"""The library's imports run downward, and what does the work loads nothing that only draws."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "lesson_lib").rglob("*.py"))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Hold the imports of the package in this folder against the contracts of pyproject.toml."""
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command
    return subprocess.run(
        [command, "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_run_downward() -> None:
    linted = lint_imports(ROOT)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("agent", "sqlite"),
        ("sqlite.connection", "agent"),
        ("tickets.agent", "riders"),
        ("riders.claims", "checkpoints"),
        ("checkpoints.codec", "patterns"),
        ("patterns.log", "recovery"),
        ("workers", "tickets"),
        ("recovery.recover", "labs"),
        ("labs.four_patterns.figures", "labs.checks"),
    ],
)
def test_an_import_upward_is_found(module: str, imported: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "lesson_lib", tmp_path / "lesson_lib")
    file = tmp_path / "lesson_lib" / f"{module.replace('.', '/')}.py"
    file.write_text(f"{file.read_text('utf-8')}\nimport lesson_lib.{imported}\n", "utf-8")
    linted = lint_imports(tmp_path)
    assert linted.returncode == 1
    assert f"lesson_lib.{module} -> lesson_lib.{imported}" in linted.stdout


def test_no_folder_escapes_the_contracts() -> None:
    folders = {path.parent for path in MODULES}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_the_library_loads_neither_pandas_nor_matplotlib() -> None:
    files = [path.relative_to(ROOT).with_suffix("") for path in MODULES]
    parts = [file.parts for file in files if "labs" not in file.parts]
    names = [".".join(each).removesuffix(".__init__") for each in parts]
    assert "lesson_lib.agent" in names
    code = f"""
import sys
for name in {names}:
    __import__(name)
    loaded = {{"pandas", "matplotlib"}} & set(sys.modules)
    assert not loaded, f"{{name}} loads {{loaded}}"
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
