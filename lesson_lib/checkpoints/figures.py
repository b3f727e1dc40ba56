"""The figures of lesson 09: where each kind of state goes, and what compression saves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from lesson_lib.checkpoints.codec import PAYS_FROM
from lesson_lib.checkpoints.measuring import WORTH_IT, Cost
from lesson_lib.show import Picture, picture

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito; each has a shape of its own
LINES = {"gzip": (ORANGE, "--", "s"), "zstd": (BLUE, "-", "o")}


def compression(costs: Sequence[Cost]) -> Picture:
    """Draw bytes, disk writes and time of a compressed checkpoint against its size.

    Args:
        costs: What was measured.
    """
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    panels = figure.subplots(1, 3)
    said = []
    for axes, name, title in zip(
        panels,
        ("ratio", "written", "relative_time"),
        ("bytes stored", "bytes written to the disk", "time to compress and back"),
        strict=True,
    ):
        for kind, (colour, style, marker) in LINES.items():
            own = [cost for cost in costs if cost.compression == kind]
            axes.plot(
                [cost.size for cost in own],
                [getattr(cost, name) for cost in own],
                linestyle=style,
                color=colour,
                marker=marker,
                markersize=4,
                label=kind,
            )
            first, last = getattr(own[0], name), getattr(own[-1], name)
            said.append(f"{title} with {kind} from {first:g} to {last:g}")
        axes.axvline(PAYS_FROM, color=GREY, linestyle=":", linewidth=1.5)
        axes.set_xscale("log")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, 1.05)
    panels[1].set_ylim(0, 1.05)
    panels[1].axhline(WORTH_IT, color=GREY, linewidth=0.8)
    panels[1].text(
        costs[-1].size, WORTH_IT + 0.01, "0.9: worth it below", ha="right", va="bottom", fontsize=9
    )
    panels[2].axhline(1, color=GREY, linewidth=0.8)
    panels[2].text(1.15 * PAYS_FROM, 1.1, "1: the save", va="bottom", fontsize=9)
    panels[2].set_yscale("log")
    panels[0].set_ylabel("as a share of the plain checkpoint's")
    panels[2].set_ylabel("as a share of a durable save")
    panels[1].set_xlabel(f"bytes of the checkpoint; dotted: {PAYS_FROM:,}, from here we compress")
    panels[0].legend(frameon=False, fontsize=9)
    sizes = sorted({cost.size for cost in costs})
    return picture(
        figure,
        f"Shares of the plain checkpoint's, from {sizes[0]:,} to {sizes[-1]:,} bytes:"
        f" {'; '.join(said)}. A line at {PAYS_FROM:,} bytes: from there zstd is used. In the middle"
        f" panel a line at {WORTH_IT}: worth it below.{_bump(costs)} In the right panel a line at"
        " 1: as long as the save itself.",
    )


def _bump(costs: Sequence[Cost]) -> str:
    """Say where the share that is written rises, though that of the stored bytes falls."""
    own = [cost for cost in costs if cost.compression == "zstd" and cost.size >= PAYS_FROM]
    rises = [(one, two) for one, two in pairwise(own) if two.written > one.written]
    return "".join(
        f" There the share rises from {low.written:g} at {low.size:,} bytes to {high.written:g} at"
        f" {high.size:,}, and falls again: pages are written whole, and what is left of the larger"
        " one fills a page alone."
        for (low, _), (_, high) in zip(rises[:1], rises[-1:], strict=True)
    )
