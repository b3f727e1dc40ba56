"""The notebooks keep the rules of the lesson guide; test_notebook_lint.py shows each rule fail."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import notebook_lint
import pytest
from notebook_lint import FOR_ALL, FOR_LESSONS, FOR_SOLUTIONS, Page, Rule

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CORE = (
    "01_schema_creation",
    "02_atomic_checkpointing",
    "03_idempotent_tool",
    "04_simulated_crash",
    "05_recovery_trace",
)
EVERY = sorted(
    path for path in NOTEBOOKS.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts
)
LESSONS = [path for path in EVERY if path.parent == NOTEBOOKS and path.stem != "index"]
SOLUTIONS = [path for path in EVERY if path.parent == NOTEBOOKS / "solutions"]
KEPT = [
    (path, rule)
    for paths, rules in ((EVERY, FOR_ALL), (LESSONS, FOR_LESSONS), (SOLUTIONS, FOR_SOLUTIONS))
    for path in paths
    for rule in rules
]

load = cache(notebook_lint.load)


def name(path: Path) -> str:
    """Return the path as messages give it."""
    return path.relative_to(NOTEBOOKS.parent).as_posix()


def test_the_notebooks_are_there() -> None:
    stems = [path.stem for path in LESSONS]
    assert stems[: len(CORE)] == list(CORE)
    assert [path.stem for path in SOLUTIONS] == stems
    strays = set(EVERY) - {NOTEBOOKS / "index.ipynb", *LESSONS, *SOLUTIONS}
    assert not strays, f"neither index, lesson nor solutions: {sorted(map(name, strays))}"


@pytest.mark.parametrize(
    ("path", "rule"), KEPT, ids=[f"{name(path)}-{rule.__name__}" for path, rule in KEPT]
)
def test_a_notebook_keeps_the_rule(path: Path, rule: Rule) -> None:
    breaches = [f"{name(path)}: {breach}" for breach in rule(load(path))]
    assert not breaches, "\n".join([f"{rule.__doc__}", *breaches])


def test_the_series_has_lines_to_order_and_faults_to_find() -> None:
    pages: list[Page] = [load(path) for path in LESSONS]
    assert not list(notebook_lint.series_exercises(pages))
