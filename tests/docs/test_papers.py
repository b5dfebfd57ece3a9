"""Every line of options in docs/papers.md makes a recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.config.loading import load_recipe
from lockstep.config.recipe_files import find_shipped

PAGE = (Path(__file__).parents[2] / "docs/papers.md").read_text()
RECIPES = {
    "ppo": "ppo_arithmetic", "grpo": "grpo_arithmetic", "dpo": "dpo_chat", "reward_model": "reward_model_chat",
    "distill": "distill_arithmetic", "simpo": "simpo_arithmetic", "orpo": "orpo_arithmetic", "kto": "kto_arithmetic",
    "online_dpo": "online_dpo_arithmetic",
}  # fmt: skip
GIVEN = ["model.path=MODEL", "data.train=train.jsonl", "data.validation=test.jsonl"]
"""What a recipe for one's own model leaves open."""
SECTIONS = re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
LINES = [
    (re.findall(r"`(\w+)`", title)[-1:] or ["ppo"], re.findall(r"`([\w.]+=[^`]*)`", row))
    for title, body in SECTIONS
    for row in re.findall(r"^\| (?!paper|---)[^|]* \|(.*)\|$", body, re.MULTILINE)
    if "the recipe" not in row and "beside it" not in row
]


@pytest.mark.parametrize(
    ("algorithm", "words"), [(algorithm[0], words) for algorithm, words in LINES]
)
def test_options_of_papers_page_line_load_as_recipe(algorithm: str, words: list[str]) -> None:
    assert words
    recipe = RECIPES[algorithm]
    loaded = load_recipe(recipe, [*(GIVEN if recipe.endswith("chat") else []), *words])
    assert loaded.recipe


@pytest.mark.parametrize("name", re.findall(r"the recipe `(\w+)`", PAGE))
def test_recipe_named_on_papers_page_is_shipped(name: str) -> None:
    assert name in find_shipped()
