"""Setup of GRPO: policy gradients without a critic."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.grpo.options import PolicyGradient
from lockstep.algorithms.grpo.step import train_on_groups
from lockstep.algorithms.job import Job
from lockstep.algorithms.policy_gradient.job import AlgorithmParts, open_policy_gradient
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers, build_settings
from lockstep.algorithms.setup import Setup


def open_grpo(recipe: PolicyGradient, setup: Setup) -> Job:
    """Opens the models and data of GRPO."""
    settings = build_settings(recipe, setup.source.stop_token_ids)

    def build_parts(workers: PolicyGradientWorkers) -> AlgorithmParts:
        return AlgorithmParts(
            settings, learn=partial(train_on_groups, workers=workers, settings=settings)
        )

    return open_policy_gradient(recipe, setup, build_parts)
