"""docs/self_rewarding_defects.md names tests; they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| B(\d+) \|(.*)\|(.*)\|(.*)\|$", (ROOT / "docs/self_rewarding_defects.md").read_text(), re.MULTILINE
)


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_defect_has_a_row() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 30))


def test_a_defect_is_open_or_has_tests_that_are_there() -> None:
    for number, _, here, named in ROWS:
        tests = re.findall(r"`([^`]+)::([^`]+)`", named)
        assert bool(tests) != (here.strip() == "open"), f"B{number}"
        assert not [f"{file}::{name}" for file, name in tests if name not in functions_of(file)], f"B{number}"
