"""Reports for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def summary_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, each as wide as its widest entry; no escape codes.

    Raises:
        ValueError: Rows differ in length.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
