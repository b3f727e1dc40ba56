"""Wrong notebooks fail, each for its reason, and right ones pass."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import wrong_notebooks
from matplotlib.figure import Figure
from nbformat import NotebookNode
from strict_nbval import compare_outputs
from wrong_notebooks import (
    ENDING,
    NOTEBOOKS,
    TIME_LIMIT,
    WITHOUT_CODE,
    Row,
    bar,
    error,
    picture,
    printed,
    result,
)

from lesson_lib.labs.kit.drawing import picture as shown_picture

TESTS = Path(__file__).parent
OPTIONS = [
    "--nbval",
    f"--nbval-cell-timeout={TIME_LIMIT}",
    "--continue-on-collection-errors",
    "--junitxml=verdicts.xml",
    "--randomly-seed=3",
]
Verdicts = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Return what a run in random order said of each cell, as it went: nothing where it passed."""
    folder = tmp_path_factory.mktemp("wrong notebooks")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    wrong_notebooks.write(folder)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "strict_nbval", *OPTIONS],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(TESTS)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (folder / "verdicts.xml").exists(), child.stdout + child.stderr
    return {
        (case.get("classname", ""), case.get("name", "")): "".join(
            problem.get("message", "") + (problem.text or "") for problem in case
        )
        for case in ElementTree.parse(folder / "verdicts.xml").iter("testcase")
    }


def rows() -> list[object]:
    """Return each notebook's rows, its end among them: silent where the notebook says nothing."""
    return [
        pytest.param(name, row, id=f"{name}-{row.name}")
        for name, cells in NOTEBOOKS.items()
        for row in ([] if cells[-1].name == ENDING else [Row(ENDING, "")]) + cells
    ]


@pytest.mark.prove
@pytest.mark.parametrize(("notebook", "row"), rows())
def test_each_cell_passes_or_fails_as_it_must(notebook: str, row: Row, verdicts: Verdicts) -> None:
    said = verdicts[f"{notebook}.ipynb", row.name]
    if row.says is None:
        assert said == ""
    else:
        assert row.says in said


@pytest.mark.prove
@pytest.mark.parametrize("name", WITHOUT_CODE)
def test_a_notebook_without_code_is_refused_in_any_folder(name: str, verdicts: Verdicts) -> None:
    assert "has no code cell" in verdicts["", f"{name.replace('/', '.')}.ipynb"]


@pytest.mark.prove
def test_a_page_of_links_needs_no_code(verdicts: Verdicts) -> None:
    assert not [names for names in verdicts if "index" in "".join(names)]


@pytest.mark.prove
def test_cells_stay_together_and_in_order(verdicts: Verdicts) -> None:
    ran = [names for names in verdicts if names[0]]
    notebooks = list(dict.fromkeys(file.removesuffix(".ipynb") for file, _ in ran))
    assert ran == [
        (f"{notebook}.ipynb", name)
        for notebook in notebooks
        for name in [*(row.name for row in NOTEBOOKS[notebook] if row.name != ENDING), ENDING]
    ]
    assert notebooks != sorted(notebooks)  # the run did shuffle


def drawn(height: float = 4, label: str = "saved", colour: str = "#0072B2", size: int = 10) -> str:
    """Return a Matplotlib picture as the lessons show it."""
    figure = Figure(figsize=(3, 2))
    axes = figure.add_subplot()
    axes.bar([0, 1], [3, height], color=colour)
    axes.scatter([0, 1], [3, 3], s=9 * height, marker="^")
    axes.set_title(label, fontsize=size, loc="left")
    return shown_picture(figure, "Two bars, 3 and 4 high.")._repr_html_()


def one(html: str) -> list[NotebookNode]:
    """Return the outputs of a cell that shows this HTML."""
    return [result("[picture]", **{"text/html": html})]


def test_a_picture_may_differ_in_last_digits_only() -> None:
    saved, made = drawn(), drawn(height=4.000002)
    assert saved != made
    assert compare_outputs(one(saved), one(made)) is None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        pytest.param(lambda: drawn(height=4.05), "a number in the picture", id="moved bar"),
        pytest.param(lambda: drawn(label="lost"), "in the picture, in line", id="label"),
        pytest.param(lambda: drawn(colour="#0072B3"), "in the picture, in line", id="colour"),
        pytest.param(lambda: drawn(size=11), "a number in the picture", id="size"),
        pytest.param(lambda: picture("no SVG at all"), "text/html differs", id="other words"),
        pytest.param(lambda: drawn().replace("base64,P", "base64,="), "no SVG", id="corrupt"),
        pytest.param(lambda: drawn() * 2, "text/html differs", id="twice"),
        pytest.param(lambda: "<p>saved</p>", "text/html differs", id="gone"),
    ],
)
def test_a_picture_that_looks_different_is_different(made: Callable[[], str], says: str) -> None:
    assert says in (compare_outputs(one(drawn()), one(made())) or "")


@pytest.mark.parametrize(
    ("saved", "made", "equal"),
    [
        pytest.param(bar(100), bar(100.05), True, id="near"),
        pytest.param(bar(100), bar(100.06), False, id="far"),
        pytest.param(bar(1), bar(1.009), True, id="near for a small number"),
        pytest.param(bar(0.1), bar(0.12), False, id="a scale: words a fifth larger"),
        pytest.param(bar(0), bar(0.001), True, id="nothing"),
        pytest.param(bar(-0.5), bar(0.5), False, id="sign"),
        pytest.param(bar(3).replace("rect", "path"), bar(3), False, id="no number"),
    ],
)
def test_how_near_the_numbers_of_pictures_must_be(saved: str, made: str, equal: bool) -> None:
    assert (compare_outputs(one(picture(saved)), one(picture(made))) is None) == equal


def test_a_stream_is_joined_and_an_error_compared_by_its_last_line() -> None:
    bad = error("ValueError", "bad")
    frames = error("ValueError", "bad")
    frames.traceback = ["a frame", "\x1b[31mValueError\x1b[0m: bad"]
    assert (
        compare_outputs([printed("a\nb\n"), bad], [printed("a\n"), printed("b\n"), frames]) is None
    )


def test_the_difference_is_named() -> None:
    difference = compare_outputs([printed("one\ntwo\n")], [printed("one\nthree\n")])
    assert difference == (
        "stdout differs: in line 2 the notebook holds 'two\\n', the run made 'three\\n'"
    )
