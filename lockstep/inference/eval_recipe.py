"""The recipe of `lockstep eval MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.config import QuestionSection, Sampling, registry
from lockstep.config.loading import Loaded, algorithm_of
from lockstep.config.model_recipe import Command, weights_of
from lockstep.inference.eval_judge_options import EvalJudgeRecipe
from lockstep.inference.eval_options import EvalRecipe, Greedy
from lockstep.paths import expand


def eval_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves an evaluation of a model's answers, or of a judge where the recipe has its options.

    The reward, or the judge, may come from a run. Arguments and errors: `Command.resolve`; a judge's model may have a
    server's address, `http://…/v1`.
    """
    if recipe is None or registry.find(str(algorithm_of(recipe))) is not EvalJudgeRecipe:
        if _is_address(model):
            expand(model)  # raises
        return _EVAL.resolve(model, data, overrides, recipe, folder)
    begin = None if recipe == _EVAL_JUDGE.recipe else recipe  # with the judge of a run, where the model is one
    loaded = _EVAL_JUDGE.resolve(model, data, overrides, begin, folder)
    sampler = loaded.expect(EvalJudgeRecipe).judge.sampler
    served = None if sampler is None else sampler.openai
    if served is None:
        return loaded
    return replace(loaded, name=f"{served.model.replace('/', '-')}-{Path(data).stem}")


def _sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    """The distribution of a run's validation, or as much room for an answer as its demonstrations had."""
    validation = tree.get("validation_sampling")
    if validation is not None:
        sampled, greedy = ({name: validation[name] for name in kind.model_fields} for kind in (Sampling, Greedy))
        return {"greedy": greedy, "sampling": sampled if sampled["temperature"] else greedy}
    return {} if room is None else {"greedy": room, "sampling": room}


_EVAL = Command(
    "eval",
    EvalRecipe,
    "eval_gsm8k",
    "validation",
    ("seed", "reward", "environment", "sampler"),
    QuestionSection,
    _sampling,
)


def _is_address(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def _name_judge(model: str) -> dict[str, Any]:
    if _is_address(model):
        return {"judge": {"path": None, "sampler": {"backend": "openai", "openai": {"base_url": model}}}}
    return {"judge": {"path": str(weights_of(model))}}


def _no_sampling(tree: dict[str, Any], room: dict[str, int] | None) -> dict[str, Any]:
    return {}


_EVAL_JUDGE = Command(
    "eval", EvalJudgeRecipe, "eval_judge", "ranked", ("seed", "judge"), None, _no_sampling, _name_judge
)
