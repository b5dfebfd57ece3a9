"""The recipe of `lockstep judge-eval MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.config.hub_name import read_pins
from lockstep.config.loading import Loaded, load, load_run, require_command, require_known_code
from lockstep.config.model_recipe import computation_of, weights_of
from lockstep.config.recipe_files import Layer
from lockstep.inference.judge_eval_options import JudgeEvalRecipe

_RECIPE = "judge_eval"


def judge_eval_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves an evaluation of a judge.

    Args:
        model: A Hugging Face folder; the folder of a finished run, whose judge options apply, if it has any; or the
            address of a server, `http://…/v1`.
        data: A file of ranked responses.
        overrides: `key.sub=value` each.
        recipe: The recipe to begin with; None: the shipped one, overridden by a run's options.
        folder: Folder of the results.

    Raises:
        RecipeError: One sentence for each problem.
    """
    first, own = recipe or _RECIPE, Path(model) / "recipe.yaml"
    require_command(JudgeEvalRecipe, first)
    said: dict[str, Any] = {"data": {"ranked": data}, "judge": _judge(model)}
    if folder is not None:
        said["run"] = {"folder": folder}
    begun = [_as_trained(own)] if own.is_file() and recipe is None else []
    loaded = load(first, overrides, [*begun, Layer("lockstep judge-eval", said)])
    require_known_code(loaded, str(own))
    return replace(loaded, name=f"{_model_name(loaded, model)}-{Path(data).stem}", pins=read_pins(own.parent))


def _judge(model: str) -> dict[str, Any]:
    if model.startswith(("http://", "https://")):
        return {"path": None, "sampler": {"backend": "openai", "openai": {"base_url": model}}}
    return {"path": str(weights_of(model))}


def _as_trained(own: Path) -> Layer:
    """A run's computation options, and its judge options if it has any."""
    training = load_run(own.parent).training
    tree, said = training.model_dump(mode="json"), {"seed": training.seed, "learner": computation_of(training)}
    return Layer(str(own), said | ({"judge": tree["judge"]} if "judge" in tree else {}))


def _model_name(loaded: Loaded, model: str) -> str:
    sampler = loaded.expect(JudgeEvalRecipe).judge.sampler
    served = None if sampler is None else sampler.openai
    return Path(model).resolve().name if served is None else served.model.replace("/", "-")
