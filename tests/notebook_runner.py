"""Run a notebook in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode
from outputs import kernel_client, kernel_environment, read


def run(path: Path, folder: Path, env: dict[str, str]) -> dict[str, list[NotebookNode]]:
    """Run all cells, failing cells too, and return the outputs of each code cell by its id.

    Args:
        path: The notebook, which stays as it is.
        folder: The kernel's working directory.
        env: Variables to add to the kernel's environment.
    """
    notebook = read(path)
    kernel_client(notebook, folder, allow_errors=True).execute(env=kernel_environment() | env)
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(outputs: list[NotebookNode]) -> str:
    """Return the text of the stream outputs."""
    return "".join(output.text for output in outputs if output.output_type == "stream")
