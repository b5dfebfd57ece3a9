"""GRPO: Shao et al. 2024, Algorithm 1, and its relatives: RLOO, Dr. GRPO, DAPO, GSPO, CISPO, REINFORCE++.

PPO without a critic: what a response is worth is seen beside the other responses to its prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockstep.algorithms.grpo.options import GRPO, GRPORecipe
from lockstep.algorithms.policy_gradient import step as policy_gradient
from lockstep.algorithms.policy_gradient.step import (
    Drawn,
    Rules,
    Workers,
    adapt_kl,
    credited,
    drawn_at,
    minibatches,
    of_epoch,
    policy_loss,
    prepared,
)
from lockstep.algorithms.step import StepResult
from lockstep.batch import Batch
from lockstep.learners.base import train
from lockstep.metrics import Metrics
from lockstep.objectives.group import group_advantage
from lockstep.objectives.masks import masked_whiten, sum_before
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True, kw_only=True)
class GRPORules(Rules):
    """With the options of groups."""

    options: GRPO


def grpo_step(step: int, position: int, workers: Workers, rules: GRPORules) -> StepResult:
    """One iteration: sample a group of responses per prompt from the policy as it is, and learn from that."""
    return learn(step, drawn_at(position, step, workers, rules), workers, rules)  # y_1 … y_G ~ π_old(·|x)


def learn(step: int, drawn: Drawn, workers: Workers, rules: GRPORules) -> StepResult:
    """The rest of an iteration: compare responses within their groups, improve the policy."""
    batch, preparation = prepared(step, step, drawn.rollouts.batch, workers, rules)
    batch, credit = with_advantages(batch, rules.options)
    metrics = drawn.metrics + preparation + credit
    for epoch in range(rules.options.ppo_epochs):
        improved = Metrics()
        for minibatch in minibatches(batch, rules.options.global_batch_size, rules.seed, step, epoch):
            with workers.phase("policy"):
                improved += train(workers.policy, minibatch, policy_loss(rules)).prefixed("policy")
        metrics += of_epoch(improved, epoch, rules)
    adapt_kl(batch, rules)
    samples = sample_rows(drawn.rollouts, batch, workers.experience, rules.num_logged_samples)
    return StepResult(metrics, drawn.position, batch.tokens.numel(), samples)


def with_advantages(batch: Batch, grpo: GRPO) -> tuple[Batch, Metrics]:
    """Each token of a response has the response's advantage.

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
    metrics = credited(batch, advantage_N)
    if grpo.whiten_advantages:
        advantage_N = masked_whiten(advantage_N, batch.mask)
    return batch.with_columns({"advantage": advantage_N}), metrics


def rules(recipe: GRPORecipe, stop_token_ids: tuple[int, ...]) -> GRPORules:
    """Turns a recipe's options into values, once."""
    grpo, shared = recipe.grpo, policy_gradient.rules(recipe, stop_token_ids)
    loss = replace(
        shared.policy_loss,
        mean=grpo.loss_mean,
        max_tokens=recipe.sampling.max_tokens,
        sequence_ratio=grpo.has_sequence_ratio,
        cispo=grpo.is_cispo,
    )
    return GRPORules(
        options=grpo,
        sampling=shared.sampling,
        seed=shared.seed,
        num_logged_samples=shared.num_logged_samples,
        shaping=shared.shaping,
        correction=shared.correction,
        kl=shared.kl,
        policy_loss=loss,
    )
