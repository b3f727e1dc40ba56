"""Run the cells of a notebook in a fork of a process that has pandas and Matplotlib loaded.

A kernel of its own would take seconds to start and to load them, too long for each of a hundred
runs. Where no process can be forked, on Windows, each run starts one and waits for that.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from nbformat import NotebookNode
from nbformat.v4 import new_output
from outputs import kernel_environment
from traitlets import Type
from traitlets.config import Config

FORKED = "forkserver" in multiprocessing.get_all_start_methods()
# Not the process of the tests, which has threads and has imported lesson_lib: a server forks.
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKED else "spawn")
CONTEXT.set_forkserver_preload(
    ["IPython.core.interactiveshell", "matplotlib.figure", "nbclient", "nbformat.v4", "pandas"]
)
# For what never ends. A machine would have to be very slow to take that long for a cell.
LIMIT = 600


class CellError(Exception):
    """A cell came to no end. The message names it."""


def outputs_of(
    notebook: NotebookNode, folder: Path, package: Path
) -> Generator[tuple[NotebookNode, list[NotebookNode]]]:
    """Yield each code cell with the outputs it makes, failing cells too, when it has run.

    Closing the iterator ends the process and, where processes fork, those that it has started.

    Args:
        notebook: The notebook, which stays as it is.
        folder: Where it runs and puts its temporary files.
        package: The folder of the `lesson_lib` that it imports.

    Raises:
        CellError: The process died in a cell, or a cell does not end.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    answers, there = CONTEXT.Pipe(duplex=False)
    environment = kernel_environment()
    inherited = environment.get("PYTHONPATH", "")
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(package.parent), inherited))),
        "TMPDIR": str(folder),
    }
    sources = [cell.source for cell in cells]
    process = CONTEXT.Process(target=_run, args=(sources, folder, package, environment, there))
    process.start()
    there.close()
    try:
        for cell in cells:
            if not answers.poll(LIMIT):
                raise CellError(f"cell {cell.id!r} runs for more than {LIMIT} s")
            try:
                made = answers.recv()
            except EOFError:
                raise CellError(f"cell {cell.id!r} ended its process") from None
            yield cell, made
    finally:
        if FORKED:
            with suppress(ProcessLookupError):
                os.killpg(process.ident or 0, signal.SIGKILL)
        process.kill()
        process.join()
        process.close()
        answers.close()


def _run(
    sources: list[str],
    folder: Path,
    package: Path,
    environment: dict[str, str],
    answers: Connection[list[NotebookNode], Any],
) -> None:
    if FORKED:
        os.setsid()  # so that whoever ends this process ends its children with it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(package.parent))
    found = importlib.util.find_spec("lesson_lib")
    assert found is not None
    assert found.origin == str(package / "__init__.py")
    assert "lesson_lib" not in sys.modules
    shell = _Shell.instance(config=Config(HistoryManager={"enabled": False}))
    run_cell: Callable[..., object] = shell.run_cell  # which has no types
    for source in sources:
        shell.made = []
        sys.stdout, sys.stderr = _Stream("stdout", shell), _Stream("stderr", shell)
        run_cell(source, store_history=True)
        answers.send(shell.made)


class _Stream(io.TextIOBase):
    def __init__(self, name: str, shell: _Shell) -> None:
        self.stream = name
        self.shell = shell

    def write(self, text: str) -> int:
        if text:
            self.shell.made.append(new_output("stream", name=self.stream, text=text))
        return len(text)


class _DisplayHook(DisplayHook):
    shell: _Shell

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self.shell.made.append(
            new_output(
                "execute_result",
                data=format_dict,
                metadata=md_dict or {},
                execution_count=self.prompt_count,
            )
        )


class _DisplayPublisher(DisplayPublisher):
    shell: _Shell

    def publish(self, data: Any, metadata: Any = None, source: Any = None, **_: Any) -> None:
        self.shell.made.append(new_output("display_data", data=data, metadata=metadata or {}))


class _Shell(InteractiveShell):
    """A shell that keeps a cell's outputs in the order in which they are made."""

    made: list[NotebookNode]
    displayhook_class = Type(_DisplayHook)
    display_pub_class = Type(_DisplayPublisher)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.made.append(
            new_output("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)
        )
