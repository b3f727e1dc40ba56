"""Each lesson in a real JupyterLab: it runs, twice, and the page shows what the file holds."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import outputs
import pytest
import slides
from filelock import FileLock
from lab_driver import Lab, Visit, chromium, running_browser, running_lab, visiting
from nbformat import NotebookNode
from playwright.sync_api import Browser

pytestmark = pytest.mark.prove

TAG = re.compile(r"<style.*?</style>|<[^>]*>", re.DOTALL)
OVERFLOWING = """async ([width, height]) => {
    const reveal = await new Promise(done => require(['vendor/reveal/dist/reveal.js'], done));
    const cell = slide => slide.querySelector('[id^="cell-id="]')?.id.slice('cell-id='.length);
    const overflowing = [];
    for (const slide of reveal.getSlides()) {
        for (const folded of slide.querySelectorAll('details')) folded.open = true;
        const {h, v} = reveal.getIndices(slide);
        reveal.slide(h, v);
        const cut = box => box.scrollWidth > box.clientWidth;
        if (slide.scrollHeight > height) {
            overflowing.push(`${cell(slide)}: ${slide.scrollHeight - height} pixels too high`);
        }
        if (slide.scrollWidth > width || [...slide.querySelectorAll('pre')].some(cut)) {
            overflowing.push(`${cell(slide)}: too wide`);
        }
    }
    return [reveal.getSlides().length, overflowing];
}"""


def missing(what: str) -> NoReturn:
    """Skip, or fail where a browser is required, with a sentence that says what to do."""
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium()
    if executable is None:
        missing("No Chromium is on the PATH: install one, on Debian with `apt install chromium`.")
    with running_browser(executable) as started:
        yield started


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(outputs.NOTEBOOKS, tmp_path_factory.mktemp("lab")) as started:
        yield started


@pytest.fixture(scope="module")
def visit(browser: Browser, lab: Lab) -> Iterator[Visit]:
    """Open one page for all lessons: JupyterLab takes longer to load than a lesson to run."""
    with visiting(browser, lab.url, lab.url.replace("http", "ws", 1)) as opened:
        opened.open_lab(lab)
        yield opened


def stored(output: NotebookNode) -> tuple[str, list[str]]:
    """Return the kind of an output and the words that a page shows of it."""
    if output.output_type == "stream":
        return f"application/vnd.jupyter.{output.name}", output.text.split()
    if "text/html" in output.data:
        return "text/html", html.unescape(TAG.sub(" ", output.data["text/html"])).split()
    return "text/plain", output.data["text/plain"].split()


@pytest.mark.parametrize("path", outputs.lesson_paths(), ids=outputs.name)
def test_a_lesson_in_jupyterlab(path: Path, lab: Lab, visit: Visit) -> None:
    notebook = outputs.read(path)
    visit.open_notebook(path.name)
    for _ in range(2):
        visit.restart_and_run_all()
        for cell, shown in zip(notebook.cells, visit.cells(), strict=True):
            assert_shown(cell, shown)
    copy = lab.folder / path.name
    visit.save(copy)
    if folder := os.environ.get("SHOTS"):
        visit.photograph(Path(folder), path.stem)
    assert visit.popups() == []
    assert visit.problems == []
    saved = outputs.normalised(outputs.read(copy))
    assert outputs.file_text(saved) == path.read_text(encoding="utf-8")


def assert_shown(cell: NotebookNode, shown: dict[str, Any]) -> None:
    where = f"cell {cell.id!r}"
    for image in shown["images"]:
        assert image["width"], f"{where}: an image was not rendered"
        # "Image" is what JupyterLab says of a picture whose text alternative is missing or empty.
        assert image["text"] not in ("", "Image"), f"{where}: an image has no text alternative"
    if cell.cell_type == "markdown":
        assert "<!--" not in shown["text"], f"{where} shows its comments"
        return
    assert shown["prompt"] == f"[{cell.execution_count}]:", where
    seen = [(output["kind"], output["text"].split()) for output in shown["outputs"]]
    assert seen == [stored(output) for output in cell.outputs], where


@pytest.fixture(scope="module")
def slides_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    try:
        # The folder that all workers share: another may be fetching too.
        with FileLock(tmp_path_factory.getbasetemp().parent / "npm.lock"):
            modules = slides.vendored()
        slides.write_slides(folder, modules)
    except slides.SlidesError as error:
        missing(str(error))
    return folder


@pytest.mark.parametrize("path", outputs.lesson_paths(), ids=outputs.name)
def test_the_slides_of_a_lesson_fit(path: Path, browser: Browser, slides_folder: Path) -> None:
    with visiting(browser, slides_folder.as_uri()) as visit:
        visit.page.goto((slides_folder / f"{path.stem}.slides.html").as_uri())
        visit.page.wait_for_selector(".reveal.ready")
        size = [slides.WIDTH, slides.HEIGHT]
        count, overflowing = visit.page.evaluate(OVERFLOWING, size)
        assert count > 1
        assert not overflowing, "\n".join(["begin a subslide earlier:", *overflowing])
        assert visit.problems == []
