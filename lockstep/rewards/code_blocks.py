"""Fenced code blocks of Markdown, also in lists and quotations, as models write them.

A block keeps what its fence is indented by off its lines, as in CommonMark. Unlike there, a line that is indented less
does not end a list, since models often indent a fence and not the code; and a block that is never closed is none, since
it was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LEAD = re.compile(r"[ \t]*(?:(?:>|[-*+](?=[ \t])|[0-9]{1,9}[.)](?=[ \t]))[ \t]*)*")
"""The marks of lists and quotations that a line begins with, and its indent."""
_LANGUAGE = re.compile(r"^[\s{.]*([\w+#-]*)")
_FENCE = re.compile(r"(`{3,})([^`]*)|(~{3,})(.*)", re.DOTALL)
_QUOTE = re.compile(r" {0,3}> ?")
_FURTHEST = 3
"""Most spaces by which a closing fence may be indented, unless the opening one is indented further."""
_TAB = 4


@dataclass(frozen=True)
class CodeBlock:
    """A block between fences: the language that its first line names, in lower case, and its text."""

    language: str
    text: str


@dataclass
class _OpenBlock:
    """A block whose closing fence is still to come.

    Attributes:
        fence: Its opening fence.
        language: Its language.
        quotes: Number of quotations around it.
        indent: Columns by which its fence is indented, in the innermost of them.
        lines: Its lines so far.
    """

    fence: str
    language: str
    quotes: int
    indent: int
    lines: list[str] = field(default_factory=list)

    def closes(self, line: str) -> bool:
        """True if a line, without its quotation marks, is the closing fence."""
        text = line.strip()
        is_fence = len(text) >= len(self.fence) and not text.strip(self.fence[0])
        return is_fence and _count_spaces(line) <= max(_FURTHEST, self.indent)


def find_code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yields the blocks of a text in their order."""
    block: _OpenBlock | None = None
    for line in re.split(r"(?<=\n)", text):
        if block is None or block.indent:
            line = _LEAD.sub(lambda lead: lead[0].expandtabs(_TAB), line, count=1)
        inner = None if block is None else _unquote(line, block.quotes)
        if block is None or inner is None:  # a quotation that ends, ends a block in it
            block = _open_block(line)
        elif block.closes(inner):
            yield CodeBlock(block.language, "".join(block.lines))
            block = None
        else:
            block.lines.append(inner[min(block.indent, _count_spaces(inner)) :])


def _open_block(line: str) -> _OpenBlock | None:
    """The block that a line opens, behind the marks of lists and quotations; None if it opens none."""
    lead = _LEAD.match(line)
    start = 0 if lead is None else lead.end()
    fence = _FENCE.fullmatch(line, start)
    if fence is None:
        return None
    marks, info = fence[1] or fence[3], fence[2] or fence[4] or ""
    last_quote = line.rfind(">", 0, start)
    indent = start if last_quote < 0 else start - last_quote - 1 - line.startswith(" ", last_quote + 1)
    return _OpenBlock(marks, "".join(_LANGUAGE.findall(info)).lower(), line.count(">", 0, start), indent)


def _unquote(line: str, quotes: int) -> str | None:
    """A line without its quotation marks; None if it has fewer of them."""
    start = 0
    for _ in range(quotes):
        mark = _QUOTE.match(line, start)
        if mark is None:
            return None
        start = mark.end()
    return line[start:]


def _count_spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
