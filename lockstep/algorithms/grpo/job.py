"""Setup of GRPO: policy gradients with no further model."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.grpo.step import build_settings, grpo_step, learn
from lockstep.algorithms.job import Job
from lockstep.algorithms.policy_gradient.job import AlgorithmParts, open_policy_gradient
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers
from lockstep.algorithms.setup import Setup


def open_grpo(recipe: GRPORecipe, setup: Setup) -> Job:
    """Opens the models and data of GRPO."""
    options = build_settings(recipe, setup.source.stop_token_ids)

    def program(workers: PolicyGradientWorkers) -> AlgorithmParts:
        return AlgorithmParts(
            options,
            step=partial(grpo_step, workers=workers, settings=options),
            learn=partial(learn, workers=workers, settings=options),
        )

    return open_policy_gradient(recipe, setup, program)
