"""Fenced code blocks of Markdown as models write them, including in lists and quotations.

As in CommonMark, the indentation of a block's fence is removed from its lines. Unlike in
CommonMark, a less indented line does not end a list, since models often indent a fence but not the
code; and an unclosed block is ignored, since it was truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_INDENT = re.compile(r"[ \t>]*")
_OPENING = re.compile(
    r"(?P<lead>(?:[ >]|(?:[-*+]|[0-9]{1,9}[.)])(?=[ \t]))*)"  # markers of lists and quotations
    r"(?P<fence>`{3,}(?=[^`]*$)|~{3,})[\s{.]*(?P<language>[\w+#-]*)"
)
_FURTHEST = 3
"""Maximum indentation of a closing fence, unless the opening fence is indented further."""
_TAB = 4


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: the language in lower case, and the text."""

    language: str
    text: str


def find_code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yields the blocks of a text in their order."""
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in re.split(r"(?<=\n)", text):
        if opening is None:
            opening = _OPENING.match(line.expandtabs(_TAB))
            lines = []
            continue
        indent = opening.end("lead")
        if indent:
            line = _INDENT.sub(lambda lead: lead[0].expandtabs(_TAB), line, count=1)
        inner = line.lstrip(" >")
        column = len(line) - len(inner)
        text = inner.strip()
        fence = opening["fence"]
        is_fence = len(text) >= len(fence) and not text.strip(fence[0])
        if is_fence and column <= max(_FURTHEST, indent):
            yield CodeBlock(opening["language"].lower(), "".join(lines))
            opening = None
        else:
            lines.append(line[min(indent, column) :])
