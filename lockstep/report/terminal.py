"""Reports that fit a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console


def curve(
    values: Sequence[float], title: str, width: int = 72, height: int = 14, steps: Sequence[int] | None = None
) -> str:
    """Draws numbers over steps as a line; what is not finite leaves a gap.

    Args:
        values: One per step; none give an empty frame.
        title: Stands above.
        width: Width in characters.
        height: Height in lines.
        steps: The step of each number; by default 1, 2, 3, …

    Returns:
        Lines of text; with colors where standard output is a terminal that shows them and NO_COLOR does not forbid
        it, without escape codes elsewhere.
    """
    import plotext

    console = Console(file=sys.stdout)
    colors = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    figure = plotext.figure
    plotext.terminal.limit(False, False)  # as wide as requested, on any terminal
    figure.clear()  # there is one figure for the whole process
    figure.theme("simple" if colors else "colorless")
    figure.plot_size(width, height)
    figure.title(title)
    places = range(1, len(values) + 1) if steps is None else steps
    figure.ruler("x").ticks(list(places[:: max(1, len(values) // 8)]))
    for finite, points in groupby(zip(places, values, strict=True), key=lambda point: math.isfinite(point[1])):
        if finite:
            across, heights = zip(*points, strict=True)
            figure.draw(figure.signal(list(across), list(heights), marker="hd").lines())
    plot = str(figure.build())
    if not colors:
        plot = plotext.uncolorize(plot)
    return "\n".join(line.rstrip() for line in plot.splitlines())


def summary_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, each as wide as its widest entry; no escape codes.

    Raises:
        ValueError: If rows differ in length.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
