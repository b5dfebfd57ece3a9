"""Recipes of `lockstep eval MODEL DATA` and similar commands.

If MODEL is a run, they take over its options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.config import Common, PromptSection, Recipe
from lockstep.config.hub_name import read_pins
from lockstep.config.loading import (
    LoadedRecipe,
    RecipeError,
    load_recipe,
    load_run,
    require_known_code,
)
from lockstep.config.recipe_files import RecipeLayer
from lockstep.system.sums import require_final


@dataclass(frozen=True)
class ModelCommand:
    """A command that runs a model on the rows of a file.

    Attributes:
        name: Name of the command.
        kind: Class of its recipes.
        recipe: The shipped recipe that it starts from.
        rows: The option of `data` that names the file.
        sections: The sections that it takes over from a run's recipe.
        data: Section class of the rows; None if the run's data options do not apply.
        sampling: Builds sampling options from a run's options, as JSON, and from
            `read_response_room`.
        name_model: Builds the options that name the model from the command's argument.
    """

    name: str
    kind: type[Recipe]
    recipe: str
    rows: str
    sections: tuple[str, ...]
    data: type[PromptSection] | None
    sampling: Callable[[dict[str, Any], dict[str, int] | None], dict[str, Any]]
    name_model: Callable[[str], dict[str, Any]] = lambda model: {
        "model": {"path": str(find_weights_folder(model))}
    }

    def resolve_recipe(
        self,
        model: str,
        data: str,
        overrides: Sequence[str],
        recipe: str | None,
        folder: str | None,
    ) -> LoadedRecipe:
        """Resolves the recipe for a model and a file of rows.

        Args:
            model: A Hugging Face folder, or the folder of a finished run, whose recipe then sets
                the prompts and the sampling distribution.
            data: A file of rows.
            overrides: `key.sub=value` each.
            recipe: The recipe to start from; None means the shipped one, with a run's options over
                it.
            folder: Folder of the results.

        Raises:
            RecipeError: One sentence per error.
        """
        first = recipe or self.recipe
        own = Path(model) / "recipe.yaml"
        options = {**self.name_model(model), "data": {self.rows: data}}
        if folder is not None:
            options["run"] = {"folder": folder}
        base = [self._as_trained(own)] if own.is_file() and recipe is None else []
        loaded = load_recipe(
            first, overrides, [*base, RecipeLayer(f"lockstep {self.name}", options)], self.kind
        )
        require_known_code(loaded, str(own))
        return replace(
            loaded,
            name=f"{Path(model).resolve().name}-{Path(data).stem}",
            pins=read_pins(own.parent),
        )

    def _as_trained(self, own: Path) -> RecipeLayer:
        """Returns the options of a run's recipe that the command also has, under the same keys."""
        training = load_run(own.parent).training_recipe
        tree = training.model_dump(mode="json")
        options: dict[str, Any] = {name: tree[name] for name in self.sections if name in tree}
        if self.data is not None:
            names = self.data.model_fields.keys() - {"max_validation_samples"}
            options["data"] = training.data.model_dump(mode="json", include=names)
        options["learner"] = read_computation(training)
        return RecipeLayer(str(own), options | self.sampling(tree, read_response_room(training)))


def read_computation(training: Common) -> dict[str, str]:
    """Returns the device and precision of a run's recipe."""
    return {"device": training.learner.device, "dtype": training.learner.dtype}


def read_response_room(training: Common) -> dict[str, int] | None:
    """Room for a response under a run's demonstrations, as `max_tokens`; None if it has none.

    This is the longest demonstration minus the longest prompt.
    """
    longest = training.longest_demonstration
    prompt = training.data.max_prompt_tokens
    if longest is None or longest <= prompt:
        return None
    return {"max_tokens": longest - prompt}


def find_weights_folder(model: Path | str) -> Path:
    """The folder of a model's weights: `final/` if it is a run, else the folder itself."""
    run = Path(model)
    if not (run / "recipe.yaml").is_file():
        require_final(run)
        return run
    if not (run / "final").is_dir():
        raise RecipeError(
            f"{run} is an unfinished run without final/; let it finish, or run lockstep export "
            f"{run} MODEL"
        )
    require_final(run / "final")
    return run / "final"
