"""nbval without its holes: what a notebook shows must be what a fresh kernel makes of it.

nbval collects the notebooks and starts their kernels. Running a cell and comparing its outputs is
done here, since nbval 0.11 calls too much green: a cell that was never run or ran into its time
limit, outputs in another order, pictures, whatever comes after the last cell, and any cell that
holds one of its markers. Markers and sanitising rules have no effect here. `test_strict_nbval.py`
holds a wrong notebook for each of these.
"""

from __future__ import annotations

import base64
import math
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import output_from_msg
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel
from nbval.plugin import IPyNbFile
from prose import claims

SAVED = {"stream", "display_data", "execute_result", "error"}
NOT_SAVED = {"clear_output", "update_display_data"}
WITHOUT_CODE = "index.ipynb"  # a page of links; any other notebook has something to prove

# A thread that never ends runs into the time limit. The nap is for what a child process wrote past
# the cell: ipykernel hands it on up to 0.2 s later.
AFTER_THE_LAST_CELL = """\
import gc, threading, time
for thread in set(threading.enumerate()) - {threading.main_thread()}:
    if not thread.daemon:
        thread.join()
gc.collect()
time.sleep(0.3)
"""

Output = Mapping[str, Any]

PICTURE = re.compile(r'(?<=data:image/svg\+xml;base64,)[^"\']*')
NUMBER = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?")
# Matplotlib names clip paths, markers and collections by a hash of their coordinates.
HASHED_ID = re.compile(r"\b(?:[hmp]|C[0-9a-f]+_[0-9a-f]+_)[0-9a-f]{10}\b")
COLOUR_CODE = re.compile(r"\x1b\[[\d;]*m")


def compare_outputs(reference: Sequence[Output], actual: Sequence[Output]) -> str | None:
    """Return None where two lists of outputs are equal, else a sentence that names the difference.

    Order, kind, text and metadata count. A stream is joined as far as nothing else comes between.
    The frames of a traceback are left out: they name the files of one machine.

    Args:
        reference: The outputs that the notebook holds.
        actual: The outputs that the run made.
    """
    old, new = list(_fields(reference)), list(_fields(actual))
    if [kind for kind, _ in old] != [kind for kind, _ in new]:
        return f"the notebook holds {_listing(old)}; the run made {_listing(new)}"
    for (kind, saved), (_, made) in zip(old, new, strict=True):
        difference = _difference(kind, saved, made)
        if difference:
            return f"{kind} differs: {difference}"
    return None


def _fields(outputs: Sequence[Output]) -> Iterator[tuple[str, Any]]:
    """Yield what there is to compare, in order, as pairs of kind and value."""
    stream, text = "", ""
    for output in outputs:
        kind = output["output_type"]
        if stream and output.get("name") != stream:
            yield stream, text
            stream, text = "", ""
        if kind == "stream":
            stream = output["name"]
            text += output["text"]
        elif kind == "error":
            summary = f"{output['ename']}: {output['evalue']}"
            yield kind, summary
            yield "last line of the traceback", _plain([summary, *output["traceback"]][-1])
        else:
            for mime, value in sorted(output["data"].items()):
                yield f"{kind} {mime}", value
            yield f"{kind} metadata", dict(output.get("metadata", {}))
    if stream:
        yield stream, text


def _plain(text: str) -> str:
    return COLOUR_CODE.sub("", text)


def _listing(fields: Sequence[tuple[str, Any]]) -> str:
    shown = [f"{kind} {str(value)[:60]!r}" for kind, value in fields if value != {}]
    return ", ".join(shown) or "no output"


def _difference(kind: str, saved: Any, made: Any) -> str | None:
    if saved == made:
        return None
    if not (isinstance(saved, str) and isinstance(made, str)):
        return f"the notebook holds {saved!r}, the run made {made!r}"
    if not kind.endswith("text/html") or PICTURE.sub("", saved) != PICTURE.sub("", made):
        return _text_difference(saved, made)
    pictures = zip(PICTURE.findall(saved), PICTURE.findall(made), strict=True)
    return next(filter(None, (_picture_difference(*pair) for pair in pictures)), None)


def _text_difference(saved: str, made: str) -> str | None:
    lines = zip_longest(saved.splitlines(keepends=True), made.splitlines(keepends=True))
    for number, (old, new) in enumerate(lines, 1):
        if old != new:
            equal = next(i for i, (a, b) in enumerate(zip_longest(old or "", new or "")) if a != b)
            part = slice(max(0, equal - 40), equal + 80)
            shown = [repr(line[part]) if line else "nothing" for line in (old, new)]
            return f"in line {number} the notebook holds {shown[0]}, the run made {shown[1]}"
    return None


def _picture_difference(saved: str, made: str) -> str | None:
    """Compare two SVGs in base64. Platforms may differ in the last digits and in nothing else."""
    if saved == made:
        return None
    try:
        old, new = (_canonical(base64.b64decode(svg, validate=True)) for svg in (saved, made))
    except ValueError:
        return "a picture is no SVG in base64"
    if NUMBER.sub("", old) != NUMBER.sub("", new):
        return f"in the picture, {_text_difference(old, new)}"
    for here, there in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True):
        a, b = float(here), float(there)
        # Small numbers scale and fade what is drawn: 0.05 more of them would be seen.
        if abs(a - b) > 0.05 or not math.isclose(a, b, rel_tol=0.01, abs_tol=0.001):
            return f"a number in the picture is {here} in the notebook and {there} in the run"
    return None


def _canonical(svg: bytes) -> str:
    names: dict[str, str] = {}
    return HASHED_ID.sub(lambda found: names.setdefault(found[0], f"id_{len(names)}"), svg.decode())


class CellError(Exception):
    """A cell is not what it shows. The message completes a sentence that begins with the cell."""


class Notebook(IPyNbFile):  # type: ignore[misc]
    """A notebook whose cells run in order in one fresh kernel."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each cell that runs or claims, and one for what may come after."""
        self.nb = nbformat.read(self.path, as_version=4)
        code = [cell for cell in self.nb.cells if cell.cell_type == "code"]
        if not code and self.path.name != WITHOUT_CODE:
            raise self.CollectError(f"{self.path} has no code cell, so nothing in it is checked.")
        number = 0
        for place, cell in enumerate(self.nb.cells):
            name = cell.get("id", f"cell {place}")
            if cell.cell_type == "code":
                number += 1
                yield Cell.from_parent(self, name=name, cell=cell, place=place, number=number)
            elif cell.cell_type == "markdown" and claims(cell.source):
                yield Claims.from_parent(self, name=name, cell=cell, place=place)
        if code:
            place = len(self.nb.cells)
            yield Ending.from_parent(self, name="after the last cell", place=place)

    def setup(self) -> None:
        """Start a kernel of this Python that cannot tell it is under test.

        ipykernel would drop what child processes write.
        """
        with pytest.MonkeyPatch.context() as environment:
            for name in [name for name in os.environ if name.startswith("PYTEST_")]:
                environment.delenv(name)
            self.kernel = RunningKernel(CURRENT_ENV_KERNEL_NAME, cwd=str(self.path.parent))

    def teardown(self) -> None:
        """End the kernel, without the measuring of coverage that nbval would do here."""
        if self.kernel and self.kernel.is_alive():
            self.kernel.kc.stop_channels()
            self.kernel.km.shutdown_kernel(now=True)

    def run(self, source: str, *, store_history: bool = True) -> list[NotebookNode]:
        """Run code in the kernel and return its outputs.

        Raises:
            CellError: The kernel died, the time is up, or there was output that no cell can hold.
        """
        request = self._request(source, store_history=store_history)
        outputs: list[NotebookNode] = []
        not_saved: set[str] = set()
        for message in self._messages(self.kernel.kc.get_iopub_msg):
            kind = message["msg_type"]
            if kind in SAVED:  # also what an earlier cell left running has written
                outputs.append(output_from_msg(message))
            elif kind in NOT_SAVED:
                not_saved.add(kind)
            elif message["parent_header"].get("msg_id") != request:
                continue
            elif message["content"].get("execution_state") == "idle":
                break
        if not_saved:
            raise CellError(f"sends {not_saved.pop()}, whose effect cannot be compared")
        return outputs

    def evaluate(self, expressions: Sequence[str]) -> list[str]:
        """Return what each expression gives in the kernel, which counts no run by that.

        Raises:
            CellError: The kernel died, or the time is up.
        """
        named = {str(number): expression for number, expression in enumerate(expressions)}
        request = self._request("", silent=True, user_expressions=named)
        messages = self._messages(self.kernel.kc.get_shell_msg)
        reply = next(said for said in messages if said["parent_header"].get("msg_id") == request)
        answers = [reply["content"]["user_expressions"][number] for number in named]
        return [
            answer["data"]["text/plain"]
            if answer["status"] == "ok"
            else f"{answer['ename']}: {answer['evalue']}"
            for answer in answers
        ]

    def _request(self, source: str, **options: Any) -> str:
        if not self.kernel.is_alive():
            raise CellError("was not run: the kernel ended in an earlier cell")
        request: str = self.kernel.kc.execute(
            source, allow_stdin=False, stop_on_error=False, **options
        )
        return request

    def _messages(self, get: Callable[..., dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield what the kernel sends, as long as it lives and there is time."""
        limit = self.config.option.nbval_cell_timeout
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            try:
                yield get(timeout=0.5)
            except Empty:
                if not self.kernel.is_alive():
                    self.kernel.stop()
                    raise CellError("ended the kernel") from None
        self.kernel.interrupt()  # reaches the kernel's child processes too
        self.kernel.stop()
        raise CellError(f"ran for more than {limit:g} s, so the kernel was stopped")


class _Item(pytest.Item):
    parent: Notebook
    source = ""

    def __init__(self, *, place: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.place = place

    def runtest(self) -> None:
        error = self._error()
        if error:
            message = f"{self.path.name}, {self.name}: {error}\n\n{self.source}"
            pytest.fail(message.rstrip(), pytrace=False)

    def _error(self) -> CellError | None:
        try:
            self.check()
        except CellError as error:
            return error
        return None

    def check(self) -> None:
        raise NotImplementedError


class Cell(_Item):
    """A code cell."""

    def __init__(self, *, cell: NotebookNode, number: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.cell = cell
        self.number = number
        self.source = cell.source

    def check(self) -> None:
        """Run the cell and compare what it made with what the notebook holds."""
        count = self.cell.execution_count
        outputs = self.parent.run(self.source)
        errors = [output for output in outputs if output.output_type == "error"]
        expected = "raises-exception" in self.cell.metadata.get("tags", [])
        if errors and not expected:
            raise CellError("raised an error:\n" + "\n".join(map(_plain, errors[0].traceback)))
        if expected and not errors:
            raise CellError("has the tag raises-exception and raised none: take the tag away")
        if count is None:
            raise CellError("was saved without having been run: run the notebook and save it")
        if count != self.number:
            raise CellError(f"was saved as run {count} and is code cell {self.number}: run all")
        difference = compare_outputs(self.cell.outputs, outputs)
        if difference:
            raise CellError(f"shows something else than it does: {difference}")


class Claims(_Item):
    """A cell of prose that claims something about the results above it."""

    def __init__(self, *, cell: NotebookNode, **rest: Any) -> None:
        super().__init__(**rest)
        self.source = cell.source

    def check(self) -> None:
        """Evaluate each claim in the kernel, at its place."""
        expressions = claims(self.source)
        answers = self.parent.evaluate([f"bool({expression})" for expression in expressions])
        for expression, answer in zip(expressions, answers, strict=True):
            if answer != "True":
                raise CellError(f"claims {expression}, which gives {answer}")


class Ending(_Item):
    """What threads, child processes and destructors still have to say."""

    def check(self) -> None:
        """Fail where anything comes after the last cell."""
        outputs = self.parent.run(AFTER_THE_LAST_CELL, store_history=False)
        if outputs:
            raise CellError(f"must stay silent; the run made {_listing(list(_fields(outputs)))}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Put a `Notebook` in the place of each notebook of nbval's."""
    found = yield
    return [
        Notebook.from_parent(parent, path=file_path) if isinstance(one, IPyNbFile) else one
        for one in found
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Look into folders that pytest passes over by name (build, dist) if notebooks are there."""
    name = collection_path.name
    passed_over = any(fnmatch(name, pattern) for pattern in config.getini("norecursedirs"))
    if not passed_over or name.startswith(".") or (collection_path / "pyvenv.cfg").exists():
        return None
    return False if any(collection_path.rglob("*.ipynb")) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the cells of a notebook together and in order, whatever shuffles the tests."""
    yield
    first: dict[object, int] = {}
    places: dict[pytest.Item, tuple[int, int]] = {}
    for index, item in enumerate(items):
        group, place = (item.parent, item.place) if isinstance(item, _Item) else (item, 0)
        places[item] = first.setdefault(group, index), place
    items.sort(key=places.__getitem__)
