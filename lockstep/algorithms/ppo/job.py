"""Setup of PPO: policy gradients, with a critic V."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.job import Job
from lockstep.algorithms.policy_gradient.job import AlgorithmParts, open_policy_gradient
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.ppo.step import PPOWorkers, build_settings, learn, policy_version, ppo_step
from lockstep.algorithms.setup import Setup


def open_ppo(recipe: PPORecipe, setup: Setup) -> Job:
    """Opens the models and data of PPO."""
    critic, options = setup.learner(recipe.critic_role), build_settings(recipe, setup.source.stop_token_ids)

    def program(shared: PolicyGradientWorkers) -> AlgorithmParts:
        workers = PPOWorkers(
            policy=shared.policy,
            reference=shared.reference,
            collector=shared.collector,
            phase=shared.phase,
            agreement=shared.agreement,
            critic=critic,
        )
        return AlgorithmParts(
            options,
            step=partial(ppo_step, workers=workers, settings=options),
            learn=partial(learn, workers=workers, settings=options),
            version=partial(policy_version, ppo=recipe.ppo),
            state={"critic": critic},
        )

    return open_policy_gradient(recipe, setup, program)
