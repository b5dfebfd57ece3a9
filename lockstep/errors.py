"""What errors say."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """What an error says first: messages of libraries go on for pages."""
    return str(error).strip().split("\n", 1)[0].rstrip(".:") or type(error).__name__
