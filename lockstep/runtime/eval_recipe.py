"""What `lockstep eval MODEL DATA` asks for: an evaluation's recipe, begun from a run's own where MODEL is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.config import Layer, Loaded, RecipeError, load
from lockstep.recipe import Computation, PromptSection, Sampling

_DEFAULT = "eval_gsm8k"


def eval_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves an evaluation.

    Args:
        model: A Hugging Face folder, or the folder of a finished run, which then says how questions become prompts,
            what an answer is worth, and from which distribution it is drawn.
        data: A file of rows.
        overrides: `key.sub=value` each.
        recipe: Where to begin; None: the recipe that ships, and over it what a run says.
        folder: Of the results.

    Raises:
        RecipeError: One sentence for each thing that is wrong.
    """
    own = Path(model) / "recipe.yaml"
    said: dict[str, Any] = {"model": {"path": str(_weights(own))}, "data": {"validation": data}}
    if folder is not None:
        said["run"] = {"folder": folder}
    begun = [_as_trained(own)] if own.is_file() and recipe is None else []
    loaded = load(recipe or _DEFAULT, overrides, [*begun, Layer("lockstep eval", said)])
    return replace(loaded, name=f"{Path(model).resolve().name}-{Path(data).stem}")


def _weights(own: Path) -> Path:
    """The folder with the weights: the run's last, or the one that was named."""
    run = own.parent
    if not own.is_file():
        return run
    if not (run / "final").is_dir():
        raise RecipeError(f"{run} is a run that has no final/ yet; let it finish, or say lockstep export {run} MODEL")
    return run / "final"


def _as_trained(own: Path) -> Layer:
    """What a run's recipe says that an evaluation needs too, under the same words."""
    tree = load(str(own)).training.model_dump(mode="json")
    names = PromptSection.model_fields.keys() - {"max_validation_samples"}
    said: dict[str, Any] = {name: tree[name] for name in ("seed", "reward", "sampler") if name in tree}
    said["data"] = {name: tree["data"][name] for name in names}
    said["learner"] = {name: tree["learner"][name] for name in Computation.model_fields}
    return Layer(str(own), said | _sampling(tree))


def _sampling(tree: dict[str, Any]) -> dict[str, Any]:
    """The distribution that a run validates with, or as much room for an answer as its demonstrations had."""
    if "validation_sampling" in tree:
        drawn = {name: tree["validation_sampling"][name] for name in Sampling.model_fields}
        room = {"max_tokens": drawn["max_tokens"]}
        return {"greedy": room, "sampling": drawn if drawn["temperature"] else room}
    if "sft" in tree and tree["sft"]["max_tokens"] > tree["data"]["max_prompt_tokens"]:
        room = {"max_tokens": tree["sft"]["max_tokens"] - tree["data"]["max_prompt_tokens"]}
        return {"greedy": room, "sampling": room}
    return {}
