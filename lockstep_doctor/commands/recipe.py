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
    said: dict[str, Any] = {"model": {"path": str(find_weights_folder(model))}}
    if folder is not None:
        said["run"] = {"folder": folder}
    if own.is_file():
        begun = [_read_run_settings(own)]
    else:
        begun = []
    loaded = load_recipe(
        recipe, overrides, [*begun, RecipeLayer("lockstep doctor", said)], DoctorRecipe
    )
    return fetch_names(replace(loaded, name=Path(model).resolve().name, pins=read_pins(own.parent)))


def _read_run_settings(own: Path) -> RecipeLayer:
    """Returns the settings that the doctor takes from a run's recipe."""
    training = load_run(own.parent).training_recipe
    tree = training.model_dump(mode="json")
    said = dict[str, Any](learner=read_computation(training))
    if "sampler" in tree:
        said["sampler"] = tree["sampler"]
        said["backends"] = [
            "hf",
            "torch",
            *(["vllm"] if tree["sampler"]["backend"] == "vllm" else []),
        ]
    return RecipeLayer(str(own), said)
