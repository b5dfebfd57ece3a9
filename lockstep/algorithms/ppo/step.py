"""PPO with a critic: Schulman et al. 2017, Algorithm 1, for language models (Ouyang et al. 2022).

A step of the decision process is a token sampled by the policy. `train_actor_and_critic` is the
algorithm; `PPOSection` has its options, including extensions from later papers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.algorithms.job import StepResult
from lockstep.algorithms.policy_gradient.step import (
    PolicyGradientSettings,
    PolicyGradientWorkers,
    SampledStep,
    adapt_kl,
    add_epoch_metrics,
    measure_advantages,
    prepare_batch,
    require_credit,
    split_minibatches,
    train_policy,
)
from lockstep.algorithms.ppo.options import PPORecipe, PPOSection
from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite
from lockstep.core.metrics import Metrics
from lockstep.learners.base import Learner, train
from lockstep.losses.ppo import ClippedValue
from lockstep.objectives.advantage import gae, length_adaptive_lambda
from lockstep.objectives.masks import masked_whiten
from lockstep.objectives.shaping import token_rewards
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True, kw_only=True)
class PPOWorkers(PolicyGradientWorkers):
    """Models and data of a step, including the critic V."""

    critic: Learner


PPOSettings = PolicyGradientSettings[PPORecipe]


def train_actor_and_critic(
    step: int, sampled: SampledStep, workers: PPOWorkers, settings: PPOSettings
) -> StepResult:
    """Trains on sampled rollouts: values, advantages, then critic and policy updates."""
    recipe = settings.recipe
    ppo = recipe.ppo
    batch = sampled.rollouts.batch
    with workers.phase("values"):
        value_N, final_value_B = workers.critic.values(batch)  # V(x, y_<t)
    require_finite("the critic's values", batch, value_N, final_value_B)
    batch = batch.with_columns({"old_value": value_N}, {"final_value": final_value_B})
    version = policy_version(step, ppo)
    batch, preparation = prepare_batch(step, version, batch, workers, settings)
    batch, credit = with_advantages(batch, ppo)
    require_credit(batch)
    metrics = sampled.metrics + preparation + credit
    for epoch in range(ppo.ppo_epochs):
        improved = Metrics()
        order = split_minibatches(batch, ppo.global_batch_size, recipe.seed, step, epoch)
        for number, minibatch in enumerate(order):
            # the policy first, since its comparison with the sampler may reject the step
            if step >= ppo.critic_warmup_steps:
                improved += train_policy(step, epoch, number, minibatch, workers, settings)
            with workers.phase("critic"):
                fitted = train(workers.critic, minibatch, ClippedValue(ppo.value_clip))
            improved += add_epoch_metrics(fitted.with_prefix("critic"), epoch, settings)
        metrics += improved
    if step >= ppo.critic_warmup_steps:
        adapt_kl(batch, settings)
    samples = sample_rows(sampled.rollouts, batch, workers.collector, recipe.run.num_logged_samples)
    return StepResult(metrics, sampled.position, batch.tokens.numel(), samples)


def policy_version(step: int, ppo: PPOSection) -> int:
    """Version of the policy's weights: number of the first `step` steps that trained it."""
    return max(0, step - ppo.critic_warmup_steps)


def with_advantages(batch: Batch, ppo: PPOSection) -> tuple[Batch, Metrics]:
    """Computes advantages and returns by GAE (Schulman et al. 2016, eq. 16).

    Each can have its own λ (VAPO, 2025). The score is the reward of the last token, minus β·KL of
    every token if the KL is part of the reward.
    """
    reward_N = token_rewards(batch["shaped_score"], batch.mask, batch.lengths)
    if "kl_penalty" in batch.token:
        reward_N = reward_N - batch["kl_penalty"]
    final_value_B = torch.zeros_like(batch["final_value"])
    if ppo.bootstrap_truncated:
        final_value_B = torch.where(batch["truncated"], batch["final_value"], final_value_B)

    def estimate_advantages(lam: float | Tensor) -> Tensor:
        value_N = batch["old_value"]
        return gae(
            reward_N,
            value_N,
            batch.mask,
            batch.lengths,
            gamma=ppo.gamma,
            lam=lam,
            final_value_B=final_value_B,
        )

    lam_value = ppo.gae_lambda if ppo.gae_lambda_value is None else ppo.gae_lambda_value
    lam_policy: float | Tensor = (
        ppo.gae_lambda if ppo.gae_lambda_policy is None else ppo.gae_lambda_policy
    )
    if ppo.length_adaptive_alpha:
        lam_policy = length_adaptive_lambda(batch.mask, batch.lengths, ppo.length_adaptive_alpha)
    return_N = (estimate_advantages(lam_value) + batch["old_value"]) * batch.mask
    advantage_N = estimate_advantages(lam_policy)
    metrics = measure_advantages(batch, advantage_N)
    if ppo.whiten_advantages:
        advantage_N = masked_whiten(advantage_N, batch.mask)
    return batch.with_columns(
        {"reward": reward_N, "advantage": advantage_N, "return": return_N}
    ), metrics
