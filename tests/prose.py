"""What the prose of a notebook claims, and the numbers in it that nothing holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode

COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
CHECK = re.compile(r"\s*check:\s*(.+?)\s*", re.DOTALL)
WORDS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty",
)
NUMBER = rf"(?:\d{{1,3}}(?:,\d{{3}})+|\d+|{'|'.join(WORDS)})"
SERIES = rf"{NUMBER}(?:\s*(?:,|and|to|\u2013|-)\s*{NUMBER})*"
# What is no result: other notebooks, time to plan, standards, versions, code, links, list numbers.
EXEMPT = re.compile(
    rf"""
    <!--.*?-->
    | ^```.*?^```
    | `[^`]*`
    | ^\#.*?$
    | !?\[[^\]]*\]\([^)]*\)
    | </?\w[^>]*>
    | ^\s*\d+\.\s
    | \b(?:lesson|notebook|exercise)s?\s+{SERIES}
    | \b{SERIES}\s+minutes?\b
    | \b(?:ISO|RFC|UTF-|SQLite|Python|CC0)\s*[\d.]+
    | \d+(?:\.\d+)+
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
LONE_NUMBER = re.compile(rf"(?<![\w.-]){NUMBER}(?![\w-])", re.IGNORECASE)


def output_text(output: NotebookNode) -> str:
    """Return the plain text of an output."""
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return str(output.evalue)
    return str(output.data.get("text/plain", ""))


def claims(source: str) -> list[str]:
    """Return the expressions of the `<!-- check: … -->` comments of a markdown cell."""
    found = [CHECK.fullmatch(comment) for comment in COMMENT.findall(source)]
    return [match[1] for match in found if match]


def claim_problems(notebook: NotebookNode) -> list[str]:
    """Return what is wrong with the claims and the numbers of the prose, without running a cell."""
    known = _numbers(
        text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for text in (cell.source, *map(output_text, cell.outputs))
    )
    return [
        f"cell {cell.id!r}: {problem}"
        for cell in notebook.cells
        if cell.cell_type == "markdown" and "nav" not in cell.metadata.get("tags", [])
        for problem in _cell_problems(cell.source, known)
    ]


def _cell_problems(source: str, known: set[int]) -> Iterator[str]:
    for comment in COMMENT.findall(source):
        if comment.strip().startswith("check") and not CHECK.fullmatch(comment):
            yield f"<!--{comment}--> is not written <!-- check: expression -->"
    shown = _numbers([COMMENT.sub("", source)])
    checked: set[int] = set()
    for expression in claims(source):
        try:
            nodes = list(ast.walk(ast.parse(expression, mode="eval")))
        except SyntaxError:
            yield f"{expression} is no Python expression"
            continue
        if not any(isinstance(node, ast.Name) for node in nodes):
            yield f"{expression} looks at nothing of the notebook"
        # The place of a value in a row is no claim.
        slices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
        places = {inner for place in slices for inner in ast.walk(place)}
        constants = [node for node in nodes if isinstance(node, ast.Constant)]
        numbers = {
            node.value for node in constants if type(node.value) is int and node not in places
        }
        for number in sorted(numbers - shown):
            yield f"{expression} checks {number}, which the text of the cell does not say"
        checked |= numbers
    said = _numbers(LONE_NUMBER.findall(EXEMPT.sub(" ", source)))
    for number in sorted(number for number in said - checked - known if number >= 2):
        yield f"the text says {number}, which no check of the cell and no code cell holds"


def _numbers(texts: Iterable[str]) -> set[int]:
    """Return the whole numbers that stand in the texts, in digits or as a word up to twenty."""
    tokens = {
        token.replace(",", "")
        for text in texts
        for token in re.findall(rf"(?<![^\W_]){NUMBER}(?![^\W_])", text.lower())
    }
    return {WORDS.index(token) if token in WORDS else int(token) for token in tokens}
