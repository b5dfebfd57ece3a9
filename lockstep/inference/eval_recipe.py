"""The recipe of `lockstep eval MODEL DATA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.config import QuestionSection, Sampling
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import Command
from lockstep.inference.eval_options import EvalRecipe, Greedy


def eval_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves an evaluation; the reward may come from a run. Arguments and errors: `Command.resolve`."""
    return _EVAL.resolve(model, data, overrides, recipe, folder)


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
