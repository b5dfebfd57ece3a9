"""What `lockstep eval MODEL DATA` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.config import QuestionSection, Sampling
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import Command, room_of_demonstrations


def eval_recipe(
    model: str, data: str, overrides: Sequence[str] = (), recipe: str | None = None, folder: str | None = None
) -> Loaded:
    """Resolves an evaluation; a run says besides what an answer is worth. Arguments and errors: `Command.resolved`."""
    return _EVAL.resolved(model, data, overrides, recipe, folder)


def _drawn(tree: dict[str, Any]) -> dict[str, Any]:
    """The distribution that a run validates with, or as much room for an answer as its demonstrations had."""
    if "validation_sampling" in tree:
        drawn = {name: tree["validation_sampling"][name] for name in Sampling.model_fields}
        room = {"max_tokens": drawn["max_tokens"]}
        return {"greedy": room, "sampling": drawn if drawn["temperature"] else room}
    room = room_of_demonstrations(tree)
    return {} if room is None else {"greedy": room, "sampling": room}


_EVAL = Command(
    "eval", "eval_gsm8k", "validation", ("seed", "reward", "environment", "sampler"), QuestionSection, _drawn
)
