"""A picture carries its words, has the same bytes each time, and its colours stand in one place."""

from __future__ import annotations

import base64
import html
import re
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

from lesson_lib import labs
from lesson_lib.labs.kit import drawing
from lesson_lib.labs.kit.drawing import Picture, picture

HOSTILE = "<script>alert('x')</script> & \"q\""


def test_a_picture_carries_its_words_and_its_svg() -> None:
    shown = Picture(HOSTILE, b"<svg/>")
    assert repr(shown) == f"[picture: {HOSTILE}]"
    found = re.fullmatch(
        r'<img alt="([^"]*)" .*src="data:image/svg\+xml;base64,(.*)">', shown._repr_html_()
    )
    assert found
    assert html.unescape(found[1]) == HOSTILE
    assert base64.b64decode(found[2]) == b"<svg/>"


def test_a_picture_has_the_same_bytes_in_another_process() -> None:
    code = "import sys; from test_drawing import two_dots\nsys.stdout.buffer.write(two_dots().svg)"
    there = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parent
    )
    assert two_dots().svg == there.stdout
    assert there.stdout.startswith(b"<?xml")


def two_dots() -> Picture:
    figure = Figure()
    figure.add_subplot().scatter([1, 2], [2, 1], label="a")
    return picture(figure, "two dots")


def test_colours_stand_in_one_place() -> None:
    colour = re.compile("#[0-9A-Fa-f]{6}\\b")
    files = [path for folder in labs.__path__ for path in Path(folder).rglob("*.py")]
    found = [path for path in files if colour.search(path.read_text(encoding="utf-8"))]
    assert [str(path) for path in found] == [drawing.__file__]


def test_lines_differ_by_more_than_their_colour() -> None:
    for traits in zip(*drawing.LINES, strict=True):
        assert len(set(traits)) == len(traits)
