"""Pictures with their words: one palette, one way from a figure to what a notebook shows."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind people can tell apart. Colour is never the only
# carrier: each line has a marker and a dash of its own too.
BLACK, GREY, PALE, WHITE = "#000000", "#666666", "#DDDDDD", "#FFFFFF"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
LINES = ((BLUE, "o", "-"), (GREEN, "s", "--"), (VERMILION, "^", ":"))  # colour, marker, dash


@dataclass(frozen=True)
class Picture:
    """An SVG with a text alternative: what the picture shows, in words."""

    alt: str
    svg: bytes

    def __repr__(self) -> str:
        """Return the picture's words."""
        return f"[picture: {self.alt}]"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg).decode()
        return (
            f'<img alt="{html.escape(self.alt, quote=True)}" style="max-width:100%"'
            f' src="data:image/svg+xml;base64,{data}">'
        )


def picture(figure: Figure, alt: str) -> Picture:
    """Return a Matplotlib figure as a picture, the same bytes each time.

    Args:
        figure: The figure.
        alt: What it shows, in words.
    """
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lesson_lib", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(alt, buffer.getvalue())
