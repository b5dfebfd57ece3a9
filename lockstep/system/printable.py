"""Makes texts of untrusted code safe for a terminal."""

from __future__ import annotations

import re
import sys
from functools import cache

_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def make_printable(text: str) -> str:
    """Replaces control characters, bidi overrides and lone surrogates by names: `␛`, `⟨U+D800⟩`."""
    return _UNFIT.sub(_name_character, text)


def print_text(text: str) -> None:
    """Prints text that may quote untrusted names."""
    print(make_printable(text))


def print_status(text: str) -> None:
    """Prints such a text on standard error; a live display shows it above its bar."""
    print(make_printable(text), file=sys.stderr, flush=True)


def print_note(text: str) -> None:
    """Prints a note on standard error."""
    print_status(f"note: {text}")


note_once = cache(print_note)
"""Prints a note on standard error, once per process."""


def _name_character(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return f"⟨U+{code:04X}⟩"
