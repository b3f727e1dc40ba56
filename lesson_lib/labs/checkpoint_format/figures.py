"""The figure of lesson 09: what compression saves and costs, by the size of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from lesson_lib.checkpoints.codec import PAYS_FROM
from lesson_lib.labs.checkpoint_format.measuring import WORTH_IT, Cost
from lesson_lib.labs.kit.drawing import GREY, LINES, Picture, picture


def compression(costs: Sequence[Cost]) -> Picture:
    """Draw bytes, disk writes and time of a compressed checkpoint against its size."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    panels = figure.subplots(1, 3)
    said = []
    for axes, name, title in zip(
        panels,
        ("ratio", "written", "relative_time"),
        ("bytes stored", "bytes written to the disk", "time to compress and back"),
        strict=True,
    ):
        for kind, (colour, marker, dash) in zip(("gzip", "zstd"), LINES, strict=False):
            own = [cost for cost in costs if cost.compression == kind]
            shares = [getattr(cost, name) for cost in own]
            line = {"color": colour, "marker": marker, "linestyle": dash}
            axes.plot([cost.size for cost in own], shares, markersize=4, label=kind, **line)
            said.append(f"{title} with {kind} from {shares[0]:g} to {shares[-1]:g}")
        axes.axvline(PAYS_FROM, color=GREY, linestyle=":", linewidth=1.5)
        axes.set_xscale("log")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    stored, written, time = panels
    stored.set_ylim(0, 1.05)
    stored.set_ylabel("as a share of the plain checkpoint's")
    stored.legend(frameon=False, fontsize=9)
    written.set_ylim(0, 1.05)
    written.axhline(WORTH_IT, color=GREY, linewidth=0.8)
    place = {"ha": "right", "va": "bottom", "fontsize": 9}
    written.text(costs[-1].size, WORTH_IT + 0.01, "0.9: worth it below", **place)
    written.set_xlabel(f"bytes of the checkpoint; dotted: {PAYS_FROM:,}, from here we compress")
    time.axhline(1, color=GREY, linewidth=0.8)
    time.text(1.15 * PAYS_FROM, 1.1, "1: the save", va="bottom", fontsize=9)
    time.set_yscale("log")
    time.set_ylabel("as a share of a durable save")
    sizes = sorted({cost.size for cost in costs})
    return picture(
        figure,
        f"Shares of the plain checkpoint's, from {sizes[0]:,} to {sizes[-1]:,} bytes:"
        f" {'; '.join(said)}. A line at {PAYS_FROM:,} bytes: from there zstd is used. In the middle"
        f" panel a line at {WORTH_IT}: worth it below.{_bump(costs)} In the right panel a line at"
        " 1: as long as the save itself.",
    )


def _bump(costs: Sequence[Cost]) -> str:
    """Say where the share that is written rises once more, though that of the bytes falls."""
    own = [cost for cost in costs if cost.compression == "zstd" and cost.size >= PAYS_FROM]
    rises = [two for one, two in pairwise(own) if two.written > one.written]
    if not rises:
        return ""
    return f" There zstd rises once more, to {rises[-1].written:g} at {rises[-1].size:,} bytes."
