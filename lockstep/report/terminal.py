"""Reports that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_WIDTH, _HEIGHT = 72, 14  # characters and lines


def curve(steps: Sequence[int], values: Sequence[float], title: str) -> str:
    """Draws numbers over steps as a line, in lines of text without escape codes; `title` stands above."""
    import plotext

    figure = plotext.figure
    plotext.terminal.limit(False, False)  # as wide as requested, on any terminal
    figure.clear()  # there is one figure for the whole process
    figure.theme("colorless")
    figure.plot_size(_WIDTH, _HEIGHT)
    figure.title(title)
    figure.ruler("x").ticks(list(steps[:: max(1, len(steps) // 8)]))
    figure.draw(figure.signal(list(steps), list(values), marker="hd").lines())
    return "\n".join(line.rstrip() for line in plotext.uncolorize(str(figure.build())).splitlines())


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
