"""Recipe of `lockstep doctor table MODEL` and its like, based on a run's own where MODEL is a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.config.hub import fetch_names
from lockstep.config.hub_name import read_pins
from lockstep.config.loading import Loaded, RecipeError, load, load_run
from lockstep.config.model_recipe import computation_of, weights_of
from lockstep.config.recipe_files import Layer
from lockstep_doctor.table.options import DoctorRecipe


def doctor_recipe(
    model: str,
    overrides: Sequence[str] = (),
    recipe: str = "doctor",
    folder: str | None = None,
) -> Loaded:
    """The recipe.

    Args:
        model: A Hugging Face folder, a name on the hub, or the folder of a finished run, which then
            says in which precision and by which sampler it was trained.
        overrides: `key.sub=value` each.
        folder: Of the results.

    Raises:
        RecipeError: One sentence for each thing that is wrong.
    """
    own = Path(model) / "recipe.yaml"
    if Path(model).is_file():
        raise RecipeError(
            f"{model} is a file, no model's folder; of a dump say lockstep doctor locate {model} "
            "--model FOLDER"
        )
    said: dict[str, Any] = {"model": {"path": str(weights_of(model))}}
    if folder is not None:
        said["run"] = {"folder": folder}
    if own.is_file():
        begun = [_as_trained(own)]
    else:
        begun = []
    loaded = load(recipe, overrides, [*begun, Layer("lockstep doctor", said)], DoctorRecipe)
    return fetch_names(replace(loaded, name=Path(model).resolve().name, pins=read_pins(own.parent)))


def _as_trained(own: Path) -> Layer:
    """Returns the settings of a run's recipe that the doctor shares."""
    training = load_run(own.parent).training
    tree = training.model_dump(mode="json")
    said = dict[str, Any](learner=computation_of(training))
    if "sampler" in tree:
        said["sampler"] = tree["sampler"]
        said["backends"] = [
            "hf",
            "torch",
            *(["vllm"] if tree["sampler"]["backend"] == "vllm" else []),
        ]
    return Layer(str(own), said)
