"""Setup of PPO: policy gradients with a critic V."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.job import Job
from lockstep.algorithms.policy_gradient.job import AlgorithmParts, open_policy_gradient
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers, build_settings
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.ppo.step import PPOWorkers, policy_version, train_actor_and_critic
from lockstep.algorithms.setup import Setup
from lockstep.core.errors import InputError
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episodes import EpisodeRunner


def open_ppo(recipe: PPORecipe, setup: Setup) -> Job:
    """Opens the models and data of PPO."""
    critic = setup.learner(recipe.critic_role)
    settings = build_settings(recipe, setup.source.stop_token_ids)

    def build_parts(shared: PolicyGradientWorkers) -> AlgorithmParts:
        if recipe.ppo.bootstrap_truncated and recipe.episode_judge is None:
            setup.try_build(partial(_require_rewards_so_far, shared.collector.environment), None)
        workers = PPOWorkers(**vars(shared), critic=critic)
        return AlgorithmParts(
            settings,
            learn=partial(train_actor_and_critic, workers=workers, settings=settings),
            version=partial(policy_version, ppo=recipe.ppo),
            state={"critic": critic},
        )

    return open_policy_gradient(recipe, setup, build_parts)


def _require_rewards_so_far(episodes: EpisodeRunner | AgentRunner | None) -> None:
    """Raises InputError if truncated episodes have a final reward but are bootstrapped."""
    if isinstance(episodes, EpisodeRunner) and not episodes.keeps_rewards:
        raise InputError(
            "ppo.bootstrap_truncated adds the critic's value to the rewards so far, but "
            f"{episodes.describe_cut_off()}"
            "; set it to false, or the environment class's attribute cut_off_reward to "
            '"as_is"'
        )
