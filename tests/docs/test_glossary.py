"""docs/glossary.md: each word stands once, sorted within its group, and names code that exists."""

from __future__ import annotations

import ast
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


def find_missing(named: str) -> list[str]:
    """Files and names of `path.py` or `path.py:name` in a text that do not exist."""
    missing: list[str] = []
    for path, name in re.findall(r"`([\w/]+\.py)(?::(\w+))?`", named):
        file = ROOT / path
        if not file.is_file() or (name and name not in top_level_names(file)):
            missing.append(f"{path}:{name}")
    return missing


def top_level_names(file: Path) -> set[str]:
    """Functions, classes and constants of a module."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_sorted_and_names_code_that_exists(group: str) -> None:
    table = rows(group)
    words = [row[0] for row in table]
    assert len(words) > 5
    assert words == sorted(words, key=str.casefold)
    for word, meaning, code, *others in table:
        assert meaning, word
        assert len(others) == 1, word
        assert re.fullmatch(r"`lockstep(_doctor|_convert)?/[\w/]+\.py(:\w+)?`", code), word
        assert not find_missing(code), word
