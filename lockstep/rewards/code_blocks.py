"""Fenced code blocks of Markdown, also in lists and quotations, as models write them.

A block keeps what its fence is indented by off its lines, as in CommonMark. Unlike there, a line
that is indented less does not end a list, since models often indent a fence and not the code; and a
block that is never closed is none, since it was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_INDENT = re.compile(r"[ \t>]*")
_OPENING = re.compile(
    r"(?P<lead>(?:[ >]|(?:[-*+]|[0-9]{1,9}[.)])(?=[ \t]))*)"  # the marks of lists and quotations
    r"(?P<fence>`{3,}(?=[^`]*$)|~{3,})[\s{.]*(?P<language>[\w+#-]*)"
)
_FURTHEST = 3
"""Most spaces by which a closing fence may be indented, unless the opening one is indented
further.
"""
_TAB = 4


@dataclass(frozen=True)
class CodeBlock:
    """A block between fences: the language that its first line names, in lower case, and its
    text.
    """

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
        if _closes(inner.strip(), opening["fence"]) and column <= max(_FURTHEST, indent):
            yield CodeBlock(opening["language"].lower(), "".join(lines))
            opening = None
        else:
            lines.append(line[min(indent, column) :])


def _closes(text: str, fence: str) -> bool:
    """True if a text is a fence that closes another."""
    return len(text) >= len(fence) and not text.strip(fence[0])
