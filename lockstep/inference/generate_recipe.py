"""The recipe of `lockstep generate MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.config import PromptSection
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import Command
from lockstep.inference.generate_options import GenerateRecipe


def generate_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves a generation. Arguments and errors: `Command.resolve`."""
    return _GENERATE.resolve(model, data, overrides, recipe, folder)


def _sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    """The distribution of a run's rollouts, or as much room for a response as its demonstrations had."""
    sampling = tree.get("sampling") or room
    return {} if sampling is None else {"sampling": sampling}


_GENERATE = Command("generate", GenerateRecipe, "generate", "prompts", ("seed", "sampler"), PromptSection, _sampling)
