"""docs/algorithms/*.md say where an equation is computed: there it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/algorithms").glob("*.md"))
PLACES = [ROOT / "lockstep", ROOT / "lockstep/algorithms/self_rewarding", ROOT]
"""Where the paths of a page begin."""
SHARED = "policy_gradient"
"""What PPO and GRPO share; it is no algorithm by itself."""


def definitions(path: str) -> set[str]:
    """Names of the functions and classes of a file; none where it is not there."""
    file = next((place / path for place in PLACES if (place / path).is_file()), None)
    nodes = [] if file is None else ast.walk(ast.parse(file.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_functions_named_on_algorithm_page_exist(page: Path) -> None:
    text = page.read_text()
    assert not [path for path in re.findall(r"`([\w/]+\.py)`", text) if not definitions(path)]
    named = re.findall(r"((?:`\w+`(?:, | and )?)+) in\s`([\w/]+\.py)`", text)
    assert named
    assert not [
        f"{path}: {name}"
        for names, path in named
        for name in re.findall(r"`(\w+)`", names)
        if name not in definitions(path)
    ]


def test_every_algorithm_has_a_page() -> None:
    algorithms = {
        path.parent.name for path in (ROOT / "lockstep/algorithms").glob("*/options.py")
    } - {SHARED}
    assert len(algorithms) > 5
    assert not algorithms - {page.stem for page in PAGES}
