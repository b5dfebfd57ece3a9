"""Recipe of `lockstep doctor table MODEL` and similar commands, based on the run's recipe if MODEL
is a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.config.hub import fetch_names
from lockstep.config.hub_name import read_pins
from lockstep.config.loading import LoadedRecipe, RecipeError, load_recipe, load_run
from lockstep.config.model_recipe import find_weights_folder, read_computation
from lockstep.config.recipe_files import RecipeLayer
from lockstep_doctor.table.options import DoctorRecipe


def doctor_recipe(
    model: str,
    overrides: Sequence[str] = (),
    recipe: str = "doctor",
    folder: str | None = None,
) -> LoadedRecipe:
    """Loads the recipe.

    Args:
        model: A Hugging Face folder, a name on the hub, or the folder of a finished run, whose
            precision and sampler are then used.
        overrides: Overrides, `key.sub=value` each.
        recipe: Name or path of the base recipe.
        folder: Folder of the results.

    Raises:
        RecipeError: One sentence per error.
    """
    own = Path(model) / "recipe.yaml"
    if Path(model).is_file():
        raise RecipeError(
            f"{model} is a file, not a model folder; for a dump run lockstep doctor locate "
            f"{model} --model FOLDER"
        )
    given: dict[str, Any] = {"model": {"path": str(find_weights_folder(model))}}
    if folder is not None:
        given["run"] = {"folder": folder}
    layers = list[RecipeLayer]()
    if own.is_file():
        training = load_run(own.parent).training_recipe
        options = training.model_dump(mode="json")
        taken: dict[str, Any] = {"learner": read_computation(training)}
        if "sampler" in options:
            taken["sampler"] = options["sampler"]
            taken["backends"] = ["hf", "torch"]
            if options["sampler"]["backend"] == "vllm":
                taken["backends"].append("vllm")
        layers.append(RecipeLayer(str(own), taken))
    layers.append(RecipeLayer("lockstep doctor", given))
    loaded = load_recipe(recipe, overrides, layers, DoctorRecipe)
    return fetch_names(replace(loaded, name=Path(model).resolve().name, pins=read_pins(own.parent)))
