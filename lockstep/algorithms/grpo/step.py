"""GRPO: Shao et al. 2024, Algorithm 1, and its relatives: RLOO, Dr. GRPO, DAPO, GSPO, CISPO, REINFORCE++.

PPO without a critic: the baseline of a response is made of the other responses to its prompt.
"""

from __future__ import annotations

from lockstep.algorithms.grpo.options import GRPORecipe, GRPOSection
from lockstep.algorithms.job import StepResult
from lockstep.algorithms.policy_gradient import step as policy_gradient
from lockstep.algorithms.policy_gradient.step import (
    PolicyGradientSettings,
    PolicyGradientWorkers,
    SampledStep,
    adapt_kl,
    measure_advantages,
    minibatches,
    prepare_batch,
    require_credit,
    sample_step,
    train_policy,
)
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.objectives.group import group_advantage
from lockstep.objectives.masks import masked_whiten, sum_before
from lockstep.rollouts.samples import sample_rows

GRPOSettings = PolicyGradientSettings[GRPOSection]


def grpo_step(step: int, position: int, workers: PolicyGradientWorkers, settings: GRPOSettings) -> StepResult:
    """One iteration: sample a group of responses per prompt from the current policy, and learn from them."""
    return learn(step, sample_step(position, step, workers, settings), workers, settings)  # y_1 … y_G ~ π_old(·|x)


def learn(step: int, sampled: SampledStep, workers: PolicyGradientWorkers, settings: GRPOSettings) -> StepResult:
    """The rest of an iteration: compare responses within their groups, and improve the policy."""
    batch, preparation = prepare_batch(step, step, sampled.rollouts.batch, workers, settings)
    batch, credit = with_advantages(batch, settings.options)
    require_credit(batch)
    metrics = sampled.metrics + preparation + credit
    for epoch in range(settings.options.ppo_epochs):
        improved = Metrics()
        order = minibatches(batch, settings.options.global_batch_size, settings.seed, step, epoch)
        for place, minibatch in enumerate(order):
            improved += train_policy(step, epoch, place, minibatch, workers, settings)
        metrics += improved
    adapt_kl(batch, settings)
    samples = sample_rows(sampled.rollouts, batch, workers.collector, settings.num_logged_samples)
    return StepResult(metrics, sampled.position, batch.tokens.numel(), samples)


def with_advantages(batch: Batch, grpo: GRPOSection) -> tuple[Batch, Metrics]:
    """Computes advantages: every token of a response gets the advantage of the response.

    Where the KL is part of the reward, a token pays for itself and what follows it, A_t = (r − β·Σ_(i≥t) KL_i − b)/s,
    because it decides nothing about what came before (REINFORCE++, Hu 2025). Its baseline b and deviation s are
    of whole responses, r − β·Σ_i KL_i.
    """
    score_B = batch["shaped_score"]
    if "kl_penalty" in batch.token:
        score_B = score_B - batch.per_sample(batch["kl_penalty"])
    advantage_B, slope_B = group_advantage(
        score_B, batch["score"].isfinite(), grpo.num_generations, baseline=grpo.baseline, scale=grpo.scale_rewards
    )
    advantage_N = advantage_B[batch.row] * batch.mask
    if "kl_penalty" in batch.token:
        paid_N = sum_before(batch["kl_penalty"], batch.lengths)
        advantage_N = advantage_N + slope_B[batch.row] * paid_N * batch.mask
    metrics = measure_advantages(batch, advantage_N)
    if grpo.whiten_advantages:
        advantage_N = masked_whiten(advantage_N, batch.mask)
    return batch.with_columns({"advantage": advantage_N}), metrics


def build_settings(recipe: GRPORecipe, stop_token_ids: tuple[int, ...]) -> GRPOSettings:
    """Converts a recipe's options to values, once."""
    grpo = recipe.grpo
    return policy_gradient.build_settings(
        recipe,
        grpo,
        stop_token_ids,
        mean=grpo.loss_mean,
        max_tokens=recipe.sampling.max_tokens,
        sequence_ratio=grpo.has_sequence_ratio,
        cispo=grpo.is_cispo,
    )
