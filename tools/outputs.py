"""Write what is generated in the notebooks: navigation, exercise stubs and outputs."""

from __future__ import annotations

import argparse
import asyncio
import copy
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOLUTIONS = NOTEBOOKS / "solutions"
CELL_TIMEOUT = 60
AT_ONCE = 2

METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
NAVIGATION_IDS = ("nav-top", "nav-bottom")
EXERCISE_ID = re.compile(r"exercise-\d+(-task|-check)?")
ANSWER_ID = re.compile(r"exercise-\d+")


class OutputsError(Exception):
    """A notebook cannot be made. The message names the notebook and the cell."""


def lesson_paths() -> list[Path]:
    """Return the lessons, in the order of their numbers."""
    return sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


def solution_paths() -> list[Path]:
    """Return the solutions notebooks, in the order of their numbers."""
    return sorted(SOLUTIONS.glob("*.ipynb"))


def notebook_paths() -> list[Path]:
    """Return all notebooks: the index, the lessons, the solutions.

    Raises:
        OutputsError: There is none, so whoever asked would do nothing and call it a success.
    """
    paths = [NOTEBOOKS / "index.ipynb", *lesson_paths(), *solution_paths()]
    missing = [name(path) for path in paths if not path.exists()]
    if missing or len(paths) == 1:
        raise OutputsError(f"{' '.join(missing) or name(NOTEBOOKS)}: no notebook is there")
    return paths


def name(path: Path) -> str:
    """Return how messages call a file: its path from the root of the project."""
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> NotebookNode:
    """Return the notebook in this file.

    Raises:
        OutputsError: The file is no valid notebook.
    """
    try:
        notebook: NotebookNode = nbformat.read(path, 4)
        nbformat.validate(notebook)
    except (ValueError, nbformat.ValidationError) as error:
        raise OutputsError(f"{path} is no valid notebook: {str(error).splitlines()[0]}") from error
    return notebook


def file_text(notebook: NotebookNode) -> str:
    """Return the text of the notebook's file."""
    text: str = nbformat.writes(notebook)
    return text.rstrip("\n") + "\n"


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without what differs from run to run or from tool to tool."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata = _node(METADATA)
    count = 0
    for cell in notebook.cells:
        kept = {key: cell.metadata.get(key) for key in ("slideshow", "tags")}
        cell.metadata = _node({key: value for key, value in kept.items() if value})
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = _normalised_outputs(cell.outputs, count)
    return notebook


def _normalised_outputs(outputs: list[NotebookNode], count: int) -> list[NotebookNode]:
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
            continue
        if output.output_type == "execute_result":
            output.execution_count = count
        elif output.output_type == "error":
            # The frames hold the paths of this machine and the line numbers of this Python.
            output.traceback = [f"{output.ename}: {output.evalue}"]
        kept.append(output)
    return kept


def with_navigation(notebook: NotebookNode, path: Path, lessons: Sequence[str]) -> NotebookNode:
    """Return the notebook with its links as second and as last cell; the index has none.

    Args:
        notebook: The notebook.
        path: Its file.
        lessons: The stems of all lessons, in order.
    """
    notebook = copy.deepcopy(notebook)
    cells = [cell for cell in notebook.cells if cell.id not in NAVIGATION_IDS]
    links = " · ".join(f"[{text}]({target})" for text, target in _links(path, lessons))
    if links:
        top, bottom = (
            _node(
                {
                    "cell_type": "markdown",
                    "id": cell_id,
                    "metadata": {"slideshow": {"slide_type": "skip"}, "tags": ["nav"]},
                    "source": links,
                }
            )
            for cell_id in NAVIGATION_IDS
        )
        cells = [*cells[:1], top, *cells[1:], bottom]
    notebook.cells = cells
    return notebook


def _links(path: Path, lessons: Sequence[str]) -> list[tuple[str, str]]:
    def link(role: str, stem: str, folder: str = "") -> tuple[str, str]:
        return f"{role}: {stem.replace('_', ' ')}", f"{folder}{stem}.ipynb"

    if path.parent.name == SOLUTIONS.name:
        return [link("lesson", path.stem, "../"), ("contents", "../index.ipynb")]
    if path.stem not in lessons:
        return []
    place = lessons.index(path.stem)
    previous = [link("previous", stem) for stem in lessons[:place][-1:]]
    following = [link("next", stem) for stem in lessons[place + 1 :][:1]]
    return [*previous, ("contents", "index.ipynb"), *following]


def with_exercises(lesson: NotebookNode, solutions: NotebookNode, where: str) -> NotebookNode:
    """Return the lesson with each exercise cell derived from the cell of the same id.

    Args:
        lesson: The lesson, with a cell for each exercise cell.
        solutions: Its solutions notebook.
        where: What errors call the lesson.

    Raises:
        OutputsError: A cell has no counterpart, or a solution marks its region wrongly.
    """
    lesson = copy.deepcopy(lesson)
    targets = {cell.id: cell for cell in lesson.cells if EXERCISE_ID.fullmatch(cell.id)}
    masters = {cell.id: cell for cell in solutions.cells if EXERCISE_ID.fullmatch(cell.id)}
    for cell_id in sorted(targets.keys() ^ masters.keys()):
        has, lacks = ("lesson", "solutions") if cell_id in targets else ("solutions", "lesson")
        raise OutputsError(
            f"{where}: the {has} notebook has a cell {cell_id!r} and the {lacks} notebook has"
            " none: add it, or delete this one"
        )
    for cell_id, target in targets.items():
        master = masters[cell_id]
        if target.cell_type != master.cell_type:
            raise OutputsError(
                f"{where}, cell {cell_id!r} is {target.cell_type} in the lesson and"
                f" {master.cell_type} in the solutions: make them the same"
            )
        target.metadata = copy.deepcopy(master.metadata)
        target.source = master.source
        if ANSWER_ID.fullmatch(cell_id):
            target.source = stub(master.source, f"{where}, cell {cell_id!r}")
    return lesson


def stub(solution: str, where: str) -> str:
    """Return the solution with what each region hides replaced by what it shows instead.

    A region is the lines `# solution`, the solution, `# instead of`, the stub as comments, `# end`.

    Args:
        solution: The source of a solution cell.
        where: What errors call the cell.

    Raises:
        OutputsError: There is no region, or one is not built like this.
    """
    following = {"# solution": "# instead of", "# instead of": "# end", "# end": "# solution"}
    lines: list[str] = []
    last = "# end"
    regions = 0
    for number, line in enumerate(solution.splitlines(), 1):
        marker = line.strip()
        if marker in following:
            if marker != following[last]:
                raise OutputsError(
                    f"{where}, line {number}: {marker!r} follows {last!r}, where"
                    f" {following[last]!r} must come next"
                )
            last = marker
            regions += marker == "# end"
        elif last == "# end":
            lines.append(line)
        elif last == "# instead of":
            shown = re.fullmatch(r"(\s*)#(?: (.*))?", line)
            if shown is None:
                raise OutputsError(
                    f"{where}, line {number}: {line!r} stands between '# instead of' and '# end'"
                    " and is no comment: begin it with '# '"
                )
            lines.append(shown[1] + shown[2] if shown[2] else "")
    if last != "# end":
        raise OutputsError(f"{where}: {last!r} is not followed by {following[last]!r}")
    if not regions:
        raise OutputsError(
            f"{where} has no region to solve: begin it with the line '# solution', put"
            " '# instead of' before the stub and '# end' after it"
        )
    return "\n".join(lines)


def generated(path: Path) -> NotebookNode:
    """Return the notebook with its generated cells as they should be and its outputs as they are.

    Raises:
        OutputsError: It cannot be generated.
    """
    notebook = read(path)
    lessons = [lesson.stem for lesson in lesson_paths()]
    if path.parent == NOTEBOOKS and path.stem in lessons:
        solutions = SOLUTIONS / path.name
        if not solutions.exists():
            raise OutputsError(f"{name(path)} has no solutions: write {name(solutions)}")
        notebook = with_exercises(notebook, read(solutions), name(path))
    return normalised(with_navigation(notebook, path, lessons))


def kernel_environment() -> dict[str, str]:
    """Return the environment for a kernel that knows nothing of who started it.

    Under pytest, ipykernel would hide what child processes write; the variables of a Jupyter server
    or a plotting backend would change outputs.
    """
    foreign = ("PYTEST", "JPY_", "JUPYTER", "IPYTHON", "MPL")
    return {key: value for key, value in os.environ.items() if not key.startswith(foreign)}


def kernel_client(
    notebook: NotebookNode, folder: Path, *, allow_errors: bool = False
) -> NotebookClient:
    """Return a client that will run the notebook's cells in this folder, storing no times."""
    return NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        # It would warn, once per notebook, that its traffic on this machine is not encrypted.
        extra_arguments=["--log-level=ERROR"],
        allow_errors=allow_errors,
    )


async def executed(path: Path) -> NotebookNode:
    """Return the notebook as a fresh kernel, started in the notebook's folder, makes it.

    Raises:
        OutputsError: A cell failed.
    """
    notebook = generated(path)
    if all(cell.cell_type != "code" for cell in notebook.cells):
        return notebook
    client = kernel_client(notebook, path.parent)
    async with client.async_setup_kernel(env=kernel_environment()):
        for index, cell in enumerate(notebook.cells):
            where = f"{name(path)}, cell {cell.id!r}"
            try:
                await client.async_execute_cell(cell, index)
            except CellExecutionError as error:
                raise OutputsError(f"{where}: {error.ename}: {error.evalue}") from error
            except CellTimeoutError as error:
                raise OutputsError(f"{where} ran for more than {CELL_TIMEOUT} s") from error
            except DeadKernelError as error:
                raise OutputsError(f"{where} ended the kernel") from error
    return normalised(notebook)


async def executed_texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of the files as they should be, in the order of `paths`.

    Raises:
        OutputsError: At least one notebook failed; the message has a line for each.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def text(path: Path) -> str:
        async with slots:
            return file_text(await executed(path))

    results = await asyncio.gather(*map(text, paths), return_exceptions=True)
    texts: list[str] = []
    failures: list[str] = []
    for result in results:
        if isinstance(result, OutputsError):
            failures.append(str(result))
        elif isinstance(result, BaseException):
            raise result
        else:
            texts.append(result)
    if failures:
        raise OutputsError("\n".join(failures))
    return texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the notebooks, or with `--check` say what would change. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and name what would change"
    )
    check: bool = parser.parse_args(arguments).check
    try:
        paths = notebook_paths()
        texts = asyncio.run(executed_texts(paths))
    except OutputsError as error:
        print(f"{error}\nNothing was written.", file=sys.stderr)
        return 1
    changed = 0
    for path, text in zip(paths, texts, strict=True):
        if path.read_bytes() == text.encode():
            continue
        changed += 1
        print(f"{name(path)} {'would change' if check else 'was written'}")
        if not check:
            path.write_bytes(text.encode())
    if not changed:
        print("Nothing changed.")
    return 1 if changed and check else 0


def _node(value: dict[str, Any]) -> NotebookNode:
    node: NotebookNode = nbformat.from_dict(value)
    return node


if __name__ == "__main__":
    sys.exit(main())
