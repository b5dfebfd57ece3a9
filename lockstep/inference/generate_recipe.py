"""The recipe of `lockstep generate MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.config import PromptSection
from lockstep.config.loading import Loaded, RecipeError
from lockstep.config.model_recipe import Command
from lockstep.inference.generate_options import GenerateRecipe


def generate_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves a generation. Arguments and errors: `Command.resolve`."""
    return _GENERATE.resolve(model, data, overrides, recipe, folder)


def _sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    """The distribution of a run's rollouts, or as much room for a response as its demonstrations had.

    Raises:
        RecipeError: The run's prompts named tools, and these would not.
    """
    environment = tree.get("environment")
    if environment is not None and environment["tool_format"] is not None:
        raise RecipeError(
            f"the run was trained with the tools of {environment['class_name']}, which generate neither puts into its "
            "prompts nor calls; say lockstep eval, which plays its episodes, or give the model in its final/"
        )
    sampling = tree.get("sampling") or room
    return {} if sampling is None else {"sampling": sampling}


_GENERATE = Command("generate", GenerateRecipe, "generate", "prompts", ("seed", "sampler"), PromptSection, _sampling)
