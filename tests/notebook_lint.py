"""The rules of the lesson guide that can be read off a notebook without running it.

A rule takes a page and yields a sentence for each breach, naming the cell where there is one.
"""

from __future__ import annotations

import ast
import base64
import copy
import html
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import nbformat
from nbformat import NotebookNode


@dataclass(frozen=True)
class Page:
    """A notebook and its file."""

    path: Path
    notebook: NotebookNode

    @property
    def code(self) -> list[NotebookNode]:
        """The code cells."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    @property
    def markdown(self) -> list[NotebookNode]:
        """The markdown cells."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "markdown"]

    @property
    def prose(self) -> list[NotebookNode]:
        """What a learner reads: markdown without navigation and speaker notes."""
        return [cell for cell in self.markdown if _is_prose(cell)]


Rule = Callable[[Page], Iterator[str]]

COLUMNS = 76
TAGS = re.compile(r"raises-exception|hide-input|no-slides|nav|(?:exercise|check)-\d+")
SLIDE_TYPES = {"slide", "subslide", "fragment", "skip", "notes", "-"}

# Each prints, waits or fails where nobody looks, or waits for somebody who is not there.
BANNED = {
    "clear_output",
    "display_id",
    "_exit",
    "abort",
    "atexit",
    "create_task",
    "ensure_future",
    "get_ipython",
}
BANNED_BUILTINS = {"input", "quit", "exit"}

LEAKS = {
    "a path of one machine": re.compile(
        r"(?<![\w.:/-])/(?:home|tmp|root|Users|var|usr|opt|private|mnt|srv|work)/\S*|\b[A-Z]:\\\w*"
    ),
    "an address in memory": re.compile(r"\b0x[0-9a-fA-F]{6,}\b"),
    "a time": re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b\d\d:\d\d:\d\d\b"),
    "a process id": re.compile(r"(?i)\bpid\W{0,3}\d+|\bprocess(?: id)?\W{0,3}\d{3,}|ipykernel_\d+"),
    "a random id": re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-"),
}

TERMS = {
    r"(?i)\bcheck[- ]points?\b": "checkpoint",
    r"(?i)\bcrash-?points?\b": "crash point",
    r"(?i)\b(?:idempotence|idempotent|deduplication|dedup) keys?\b": "idempotency key",
    r"(?i)\bsub-?process(?:es)?\b": "child process",
    r"(?i)\btime-outs?\b": "timeout",
    r"(?i)\bdata bases?\b": "database",
    r"(?i)\btool-effects?\b": "tool effect",
    r"(?i)\brun[- ]ids?\b": "`run_id`",
    r"(?i)\bup-casters?\b": "upcaster",
    r"(?i)\bre-play(?:s|ed)?\b": "replay",
    r"(?i)\bco-?routine\b": "coroutine",
    r"(?<![\w./])(?:Sqlite|sqlite|SQlite)(?!\w|[./]\w)": "SQLite",
    r"(?<![\w./])(?:Json|json)(?!\w|[./]\w)": "JSON",
    r"\bJupyter Lab\b|\bJupyterlab\b": "JupyterLab",
    r"\bGithub\b": "GitHub",
}
DISMISSIVE = re.compile(
    r"(?i)\b(?:just|simply|easy|easily|obviously|of course|trivial|trivially)\b"
)
DISMISSIVE_PER_1000 = 0.5

HEAD_SECTIONS = ("What you'll do", "What you'll learn", "What you'll need")
SECTIONS = (*HEAD_SECTIONS, "What can go wrong", "Key points", "In practice", "Further reading")
MEASURABLE = set(
    re.findall(
        r"\w+",
        """
    add apply avoid break build calculate cause change check choose classify close commit
    compare compute connect count crash create cure decide define delete demonstrate derive
    describe design detect determine diagnose distinguish draw enforce estimate evaluate explain
    export find fix give identify implement inspect interpret judge justify kill lay list locate
    make mark measure model modify move name open order pass place plot point predict prevent
    print produce protect prove put query read recognise recognize reconstruct record recover
    refuse reject repair repeat replace reproduce resolve restore resume retry reuse roll run
    save say select separate set show simulate sketch solve split start state stop store
    summarise summarize tell test trace turn undo use validate verify wrap write
    """,
    )
)

FENCE = re.compile(r"^[ ]*(```+|~~~+).*?(?:^[ ]*\1[ ]*$|\Z)", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HTML_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(\s*([^)\s]+)[^)]*\)")
HTML_LINK = re.compile(r'<a\b[^>]*\bhref="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\(")
HEADING = re.compile(r"^(#{1,6})[ ]+(.+?)[ ]*#*$", re.MULTILINE)
BOLD_LABEL = re.compile(r"^[ ]*(?:[-*+][ ]+)?(\*\*|__)(.+?)\1", re.MULTILINE)
BULLET = re.compile(r"^[ ]*(?:[-*+]|\d+\.)[ ]+(.+)$")
VAGUE = {"", "here", "this", "link", "this link", "click here", "page", "this page", "more"}
DATA_URI = re.compile(r"data:image/svg\+xml;base64,([^\"']*)")
FOLDED = re.compile(r"<details>\s*<summary>.+?</summary>.*\S.*</details>", re.DOTALL)
EXERCISE_KIND = re.compile(r"\((Modify|Make|Parsons|Bug hunt)\)")
EXERCISE_PART = re.compile(r"(exercise-\d+)(?:-task|-check|)")


def load(path: Path) -> Page:
    """Return the notebook as it is, repairing nothing."""
    return Page(path, nbformat.v4.reads(path.read_text(encoding="utf-8")))


# What a learner sees ---------------------------------------------------------------------------


def _slide_type(cell: NotebookNode) -> str | None:
    kind: str | None = cell.metadata.get("slideshow", {}).get("slide_type")
    return kind


def _is_prose(cell: NotebookNode) -> bool:
    navigation = cell.id.startswith("nav-") or "nav" in cell.metadata.get("tags", [])
    return cell.cell_type == "markdown" and not navigation and _slide_type(cell) != "notes"


def _without_code(source: str) -> str:
    """Return markdown without comments and fenced code; of inline code the words stay."""
    text = FENCE.sub("", COMMENT.sub("", source))
    return INLINE_CODE.sub(lambda found: re.sub(r"[^\w.]+", " ", found[2]), text)


def _plain(source: str) -> str:
    """Return the words of markdown without any code, tag or link target."""
    text = INLINE_CODE.sub(" ", FENCE.sub("", COMMENT.sub("", source)))
    return HTML_TAG.sub(" ", LINK.sub(r"\1", text))


def count_words(page: Page) -> int:
    """Count the words of prose.

    A word is what stands between blanks and holds a letter or a digit; inline code counts as it is
    read. Navigation, speaker notes, HTML comments and tags, fenced code and link targets do not.
    """
    texts = [HTML_TAG.sub(" ", LINK.sub(r"\1", _without_code(cell.source))) for cell in page.prose]
    return sum(any(map(str.isalnum, word)) for text in texts for word in text.split())


def _headings(page: Page) -> list[tuple[str, int, str]]:
    return [
        (cell.id, len(found[1]), found[2])
        for cell in page.markdown
        for found in HEADING.finditer(FENCE.sub("", COMMENT.sub("", cell.source)))
    ]


def _labels(cells: Sequence[NotebookNode]) -> list[str]:
    """Return headings and the bold words that begin a paragraph."""
    texts = [FENCE.sub("", cell.source) for cell in cells]
    patterns = (HEADING, BOLD_LABEL)
    return [_folded(match[2]) for text in texts for p in patterns for match in p.finditer(text)]


def _folded(label: str) -> str:
    return label.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip("*_ .:").casefold()


# Rules for every notebook ----------------------------------------------------------------------


def valid_format(page: Page) -> Iterator[str]:
    """The file keeps the notebook format, 4.5 or later, and names the kernel every machine has."""
    try:
        nbformat.validate(copy.deepcopy(page.notebook))
    except nbformat.ValidationError as error:
        yield f"is no valid notebook: {str(error).splitlines()[0]}"
    if (page.notebook.nbformat, page.notebook.nbformat_minor) < (4, 5):
        yield "is of a format before 4.5, which has no cell ids"
    kernel = page.notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"names the kernel {kernel!r} where every machine has 'python3'"


def cell_ids(page: Page) -> Iterator[str]:
    """Cells have ids that say what they are."""
    ids = [cell.get("id", "") for cell in page.notebook.cells]
    for place, cell_id in enumerate(ids):
        if not re.fullmatch(r"[a-z][a-z0-9-]*", cell_id) or re.fullmatch(r"[0-9a-f-]{8,}", cell_id):
            yield f"cell {place} has the id {cell_id!r}: give it a name in small letters"
    for cell_id in sorted({cell_id for cell_id in ids if ids.count(cell_id) > 1}):
        yield f"cell {cell_id}: another cell has the same id"


def executed_in_order(page: Page) -> Iterator[str]:
    """Every code cell has code and was run, from the top."""
    for place, cell in enumerate(page.code, 1):
        if not cell.source.strip():
            yield f"cell {cell.id} is empty: delete it"
        if cell.execution_count != place:
            yield f"cell {cell.id} was saved as run {cell.execution_count} and must be run {place}"
        for output in cell.outputs:
            if output.get("execution_count", place) != place:
                yield f"cell {cell.id} holds the result of run {output.execution_count}"


def outputs_of_any_machine(page: Page) -> Iterator[str]:
    """No output says on which machine, when, or with what complaint it was made."""
    for cell in page.code:
        for output in cell.outputs:
            if output.get("name") == "stderr":
                yield f"cell {cell.id} holds stderr: {output.text[:60]!r}"
            if len(output.get("traceback", [])) > 1:
                yield f"cell {cell.id} holds a traceback; its last line is enough"
            for what, pattern in LEAKS.items():
                found = pattern.search(_output_text(output))
                if found:
                    yield f"cell {cell.id} holds {what} in its output: {found[0]!r}"


def _output_text(output: NotebookNode) -> str:
    values = [output.get("text"), output.get("evalue"), *output.get("data", {}).values()]
    text = "\n".join(str(value) for value in values if value)
    return DATA_URI.sub(lambda found: base64.b64decode(found[1]).decode("utf-8", "replace"), text)


def plain_python(page: Page) -> Iterator[str]:
    """Code cells hold Python that a check can follow: no magics, nothing that acts unseen."""
    for cell in page.code:
        if "NBVAL_" in cell.source:
            yield f"cell {cell.id} holds NBVAL_: every output is compared"
        try:
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(cell.source, cell.id, "exec", flags)
        except SyntaxError as error:
            yield f"cell {cell.id}, line {error.lineno}: no plain Python (a magic? a command?)"
            continue
        for name in sorted(set(_banned_names(tree))):
            yield f"cell {cell.id} uses {name}, whose effect no check sees: take it out"


def _banned_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in BANNED | BANNED_BUILTINS:
                yield name
            case ast.Attribute(attr=name) | ast.keyword(arg=name) if name in BANNED:
                yield str(name)
            case ast.Import(names=aliases):
                yield from BANNED & {alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases):
                yield from BANNED & {str(module), *(alias.name for alias in aliases)}


def known_tags(page: Page) -> Iterator[str]:
    """A tag is one of those that have an effect; a saved error has its own."""
    for cell in page.notebook.cells:
        tags = cell.metadata.get("tags", [])
        for tag in tags:
            if not TAGS.fullmatch(tag):
                yield f"cell {cell.id} has the tag {tag!r}, which nothing reads"
        failed = any(output.output_type == "error" for output in cell.get("outputs", []))
        if failed and "raises-exception" not in tags:
            yield f"cell {cell.id} holds an error and lacks the tag raises-exception"
        if "raises-exception" in tags and not failed:
            yield f"cell {cell.id} has the tag raises-exception and holds no error"


def pictures_in_words(page: Page) -> Iterator[str]:
    """A picture is an `<img>` with a text alternative, which shows in an untrusted notebook too."""
    for cell in page.markdown:
        source = FENCE.sub("", cell.source)
        yield from _html_breaches(cell.id, source)
        for found in IMAGE.finditer(source):
            if len(found[1]) < 10:
                yield f"cell {cell.id} has a picture whose words say too little: {found[1]!r}"
    for cell in page.code:
        for output in cell.outputs:
            data = output.get("data", {})
            for mime in data:
                if mime.startswith("image/"):
                    yield f"cell {cell.id} shows {mime} without words: use labs.kit.drawing.Picture"
            yield from _html_breaches(cell.id, data.get("text/html", ""))


def _html_breaches(cell_id: str, text: str) -> Iterator[str]:
    for tag in re.findall(r"<img\b[^>]*>", text):
        alternative = re.search(r'\balt="([^"]*)"', tag)
        if not alternative or len(html.unescape(alternative[1]).strip()) < 10:
            yield f"cell {cell_id} has a picture without a text alternative of 10 letters or more"
    for name in re.findall(r"<(svg|script|iframe)\b", text):
        yield f"cell {cell_id} holds <{name}>, which an untrusted notebook does not show"
    for data in DATA_URI.findall(text):
        try:
            ElementTree.fromstring(base64.b64decode(data, validate=True))
        except (ValueError, ElementTree.ParseError):
            yield f"cell {cell_id} holds a picture that is no SVG"
    for table in re.findall(r"<table\b.*?</table>", text, re.DOTALL):
        if "<th" not in table.replace("<thead", ""):
            yield f"cell {cell_id} shows a table without headers"


def columns(page: Page) -> Iterator[str]:
    """A line of code fits on a slide."""
    for cell in page.code:
        for number, line in enumerate(cell.source.splitlines(), 1):
            if len(line) > COLUMNS:
                yield f"cell {cell.id}, line {number} has {len(line)} columns of {COLUMNS}"


def slide_types(page: Page) -> Iterator[str]:
    """Every cell says what it is on a slide."""
    for cell in page.notebook.cells:
        if _slide_type(cell) not in SLIDE_TYPES:
            yield f"cell {cell.id} has the slide type {_slide_type(cell)!r}: name one"


def headings_in_order(page: Page) -> Iterator[str]:
    """One H1, in the first cell, and no level skipped below it."""
    found = _headings(page)
    if [cell_id for cell_id, level, _ in found if level == 1] != [page.notebook.cells[0].get("id")]:
        yield "must have exactly one H1 and have it in its first cell"
    for (_, before, _), (cell_id, level, text) in pairwise(found):
        if level > before + 1:
            yield f"cell {cell_id}: the heading {text!r} has level {level} after level {before}"


def links(page: Page) -> Iterator[str]:
    """A link says where it leads, and there is something there."""
    for cell in page.markdown:
        text = _without_code(cell.source)
        found = [(words, target) for words, target in LINK.findall(text)]
        found += [(words, target) for target, words in HTML_LINK.findall(text)]
        for words, target in found:
            if HTML_TAG.sub("", words).strip("*_ .").casefold() in VAGUE or "://" in words:
                yield f"cell {cell.id}: the link text {words!r} does not say where it leads"
            if not re.match(r"https://|mailto:", target) and not _leads_somewhere(page, target):
                yield f"cell {cell.id}: the link to {target} leads nowhere"
        if re.search(r"https?://", HTML_LINK.sub("", LINK.sub("", text))):
            yield f"cell {cell.id} shows a bare URL: write [where it leads](URL)"


def _leads_somewhere(page: Page, target: str) -> bool:
    file, _, anchor = unquote(target).partition("#")
    path = page.path.parent / file if file else page.path
    if file and (":" in file or not path.exists()):
        return False
    if not anchor:
        return True
    if not file:
        titles = [text for _, _, text in _headings(page)]
    elif path.suffix == ".ipynb":
        titles = [text for _, _, text in _headings(load(path))]
    else:
        titles = [found[2] for found in HEADING.finditer(path.read_text(encoding="utf-8"))]
    return _anchor(anchor) in map(_anchor, titles)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.strip().replace(" ", "-")).casefold()


def tables_with_headers(page: Page) -> Iterator[str]:
    """A table in markdown names its columns, the first one too."""
    for cell in page.markdown:
        lines = _without_code(cell.source).splitlines()
        for is_table, group in groupby(lines, key=lambda line: line.lstrip().startswith("|")):
            rows = [row.strip().strip("|").split("|") for row in group] if is_table else []
            ruled = len(rows) > 1 and all(re.fullmatch(r" *:?-+:? *", mark) for mark in rows[1])
            if rows and not (ruled and all(name.strip() for name in rows[0])):
                yield f"cell {cell.id} has a table whose columns are not all named"


def no_admonitions(page: Page) -> Iterator[str]:
    """No markup that GitHub or JupyterLab shows raw."""
    for cell in page.markdown:
        found = re.search(r"(?m)^\s*(> ?\[!\w+\]|:::|!!! |\.\. \w+::)", FENCE.sub("", cell.source))
        if found:
            yield f"cell {cell.id} has an admonition ({found[1]}), which readers see raw"


def one_spelling(page: Page) -> Iterator[str]:
    """A term has one spelling."""
    for cell in page.markdown:
        for pattern, term in TERMS.items():
            found = re.search(pattern, _plain(cell.source))
            if found:
                yield f"cell {cell.id} says {found[0]!r}: the term is {term}"


# Rules for lessons -----------------------------------------------------------------------------


def proportions(page: Page) -> Iterator[str]:
    """20 to 50 cells, at most 3 code cells in a row, 45 to 90 words of prose per code cell."""
    cells = len(page.notebook.cells)
    if not 20 <= cells <= 50:
        yield f"has {cells} cells; a lesson has 20 to 50"
    row = 0
    for cell in page.notebook.cells:
        row = row + 1 if cell.cell_type == "code" else 0 if _is_prose(cell) else row
        if row > 3:
            yield f"cell {cell.id} is code cell {row} in a row without prose; 3 are the limit"
    share = count_words(page) / max(1, len(page.code))
    if not 45 <= share <= 90:
        yield f"has {share:.1f} words of prose per code cell; a lesson has 45 to 90"


def short_code(page: Page) -> Iterator[str]:
    """Of the non-blank lines of code cells: median 6, 90th percentile 15, at most 30."""
    sizes = [len(re.findall(r"(?m)^.*\S.*$", cell.source)) for cell in page.code]
    for cell, size in zip(page.code, sizes, strict=True):
        if size > 30:
            yield f"cell {cell.id} has {size} lines; 30 are the limit"
    tenths = statistics.quantiles(sizes, n=10, method="inclusive")
    if tenths[4] > 6:
        yield f"has code cells of {tenths[4]:g} lines in the median; 6 are the limit"
    if tenths[8] > 15:
        yield f"has code cells of {tenths[8]:g} lines at the 90th percentile; 15 are the limit"


def respectful(page: Page) -> Iterator[str]:
    """No word that tells a learner it should have been easy, beyond one in 2,000."""
    texts = {cell.id: _plain(cell.source) for cell in page.prose}
    found = [(name, word) for name, text in texts.items() for word in DISMISSIVE.findall(text)]
    if len(found) * 1000 > DISMISSIVE_PER_1000 * count_words(page):
        places = ", ".join(f"{word!r} in {name}" for name, word in found)
        yield f"has more than {DISMISSIVE_PER_1000} dismissive words per 1,000: {places}"


def sections(page: Page) -> Iterator[str]:
    """The sections of a lesson, as headings or bold words; three and the minutes in cell 1."""
    first, everywhere = _labels(page.notebook.cells[:1]), _labels(page.prose)
    for section in SECTIONS:
        where, place = (first, "its first cell") if section in HEAD_SECTIONS else (everywhere, "it")
        if not any(label.startswith(_folded(section)) for label in where):
            yield f"lacks the section {section!r} in {place}"
    if not re.search(r"\d+ minutes", page.notebook.cells[0].source):
        yield "does not say in its first cell how many minutes it takes"


def objectives(page: Page) -> Iterator[str]:
    """What you'll learn: two to four skills, each beginning with a verb that can be measured."""
    skills: list[str] = []
    inside = False
    for line in page.notebook.cells[0].source.splitlines():
        bullet = BULLET.match(line)
        if re.match(r"\s*(#|\*\*|__)", line):
            inside = _folded(line.strip("# ")).startswith("what you'll learn")
        elif inside and bullet:
            skills.append(re.sub(r"[*_`]", "", bullet[1]))
    if not 2 <= len(skills) <= 4:
        yield f"lists {len(skills)} skills under What you'll learn; a lesson has 2 to 4"
    for skill in skills:
        if skill.split()[0].casefold() not in MEASURABLE:
            yield f"has the skill {skill!r}, which does not begin with a measurable verb"


def predictions(page: Page) -> Iterator[str]:
    """At least two questions stand right before the code that answers them; answers are folded."""
    cells = page.notebook.cells
    asked = [place for place, cell in enumerate(cells) if "**Predict.**" in cell.source]
    if len(asked) < 2:
        yield f"has {len(asked)} predictions (**Predict.**); a lesson has two or more"
    for place in asked:
        kinds = [cell.cell_type for cell in cells[place + 1 : place + 5]]
        texts = [cell.source for cell in cells[place + 1 : place + 5]]
        if kinds[:1] != ["code"]:
            yield f"cell {cells[place].id} asks for a prediction and no code cell follows"
        if not any(map(FOLDED.search, texts)):
            yield f"cell {cells[place].id} asks for a prediction and no folded answer follows soon"


def exercises(page: Page) -> Iterator[str]:
    """Each exercise has a task, a stub and a check; one is to modify, one to make."""
    kinds = " ".join(_exercise_kinds(page))
    for kind in ("Modify", "Make"):
        if kind not in kinds:
            yield f"has no exercise marked ({kind})"
    yield from _checked(page, "not (solved|right) yet - .+")


def solved(page: Page) -> Iterator[str]:
    """Each exercise of a solutions notebook has a task, a solution and a check that says so."""
    yield from _checked(page, "correct.*")


def _exercise_kinds(page: Page) -> list[str]:
    tasks = [cell.source for cell in page.markdown if cell.id.endswith("-task")]
    return [kind for task in tasks for kind in EXERCISE_KIND.findall(task)]


def _checked(page: Page, verdict: str) -> Iterator[str]:
    cells = {cell.id: cell for cell in page.notebook.cells}
    numbers = {found[1] for found in map(EXERCISE_PART.fullmatch, cells) if found}
    if not numbers:
        yield "has no exercise, so nothing tells a learner whether it was understood"
    for name in sorted(numbers):
        missing = [part for part in (f"{name}-task", name, f"{name}-check") if part not in cells]
        for part in missing:
            yield f"cell {part} is missing"
        if f"{name}-check" not in missing:
            said = "".join(output.get("text", "") for output in cells[f"{name}-check"].outputs)
            wanted = f"{name.replace('exercise-', 'Exercise ')}: {verdict}"
            if not re.fullmatch(f"{wanted}\n?", said):
                yield f"cell {name}-check must say {wanted!r} and says {said!r}"


def speaker_notes(page: Page) -> Iterator[str]:
    """At least three notes tell the speaker the minutes and the answer to expect."""
    notes = [cell.source for cell in page.markdown if _slide_type(cell) == "notes"]
    useful = [note for note in notes if "minute" in note and re.search("(?i)answer|expect", note)]
    if len(useful) < 3:
        yield f"has {len(useful)} speaker notes with minutes and an expected answer; 3 are needed"


def series_exercises(lessons: Sequence[Page]) -> Iterator[str]:
    """In the series at least two tasks are to put lines in order or to find a fault."""
    kinds = [kind for page in lessons for kind in _exercise_kinds(page)]
    count = kinds.count("Parsons") + kinds.count("Bug hunt")
    if count < 2:
        yield f"the series has {count} exercises marked (Parsons) or (Bug hunt); two are needed"


FOR_ALL: tuple[Rule, ...] = (
    valid_format,
    cell_ids,
    executed_in_order,
    outputs_of_any_machine,
    plain_python,
    known_tags,
    pictures_in_words,
    columns,
    slide_types,
    headings_in_order,
    links,
    tables_with_headers,
    no_admonitions,
    one_spelling,
)
FOR_LESSONS: tuple[Rule, ...] = (
    proportions,
    short_code,
    respectful,
    sections,
    objectives,
    predictions,
    exercises,
    speaker_notes,
)
FOR_SOLUTIONS: tuple[Rule, ...] = (solved,)
