"""Reports for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def summary_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, each as wide as its widest entry; no escape codes.

    Raises:
        ValueError: Rows differ in length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        line = "  ".join(map(str.ljust, row, widths))
        lines.append(line.rstrip())
    return "\n".join(lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
