"""docs/glossary.md: each word stands once, sorted within its group, and names code
(test_docs_names.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
GROUPS = {group.splitlines()[0]: group for group in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}


def rows(group: str) -> list[list[str]]:
    """The cells of a group's table: word, meaning, code, what others call it."""
    lines = [line for line in GROUPS[group].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("group", GROUPS)
def test_glossary_group_is_sorted_and_every_row_names_code(group: str) -> None:
    table = rows(group)
    words = [row[0] for row in table]
    assert len(words) > 5
    assert words == sorted(words, key=str.casefold)
    for word, meaning, code, *others in table:
        assert meaning, word
        assert len(others) == 1, word
        assert re.fullmatch(r"`lockstep(_doctor|_convert)?/[\w/]+\.py(:\w+)?`", code), word
