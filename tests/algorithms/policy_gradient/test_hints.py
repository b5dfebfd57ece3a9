"""Hints name keys of the recipe at hand: what PPO and GRPO share says the section of neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lockstep.algorithms.grpo.options import GRPOSection
from lockstep.algorithms.ppo.options import PPOSection

PACKAGE = Path(__file__).parents[3] / "lockstep"
OWN = {"algorithms/ppo/options.py", "algorithms/ppo/job.py", "algorithms/grpo/options.py"}
KEYS = "|".join({*PPOSection.model_fields, *GRPOSection.model_fields})
NAMED = re.compile(rf"\b(?:ppo|grpo)\.(?:{KEYS})\b")


def texts(tree: ast.Module) -> Iterator[str]:
    """Texts that a user may be shown; docstrings, which stand alone, are none."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_hints_name_no_section_that_a_recipe_may_not_have() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE)) not in OWN]
    named = {
        path.name: found
        for path in files
        for text in texts(ast.parse(path.read_text()))
        if (found := NAMED.findall(text))
    }
    assert not named
