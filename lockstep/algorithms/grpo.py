"""GRPO: Shao et al. 2024, Algorithm 1, and its relatives: RLOO, Dr. GRPO, DAPO, GSPO, CISPO, REINFORCE++.

PPO without a critic: what a response is worth is seen beside the other responses to its prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockstep.algorithms import policy_gradient
from lockstep.algorithms.policy_gradient import (
    Drawn,
    Rules,
    Workers,
    credited,
    drawn_at,
    minibatches,
    of_epoch,
    penalty,
    prepared,
)
from lockstep.algorithms.step import StepResult
from lockstep.batch import Batch
from lockstep.experience.samples import sample_rows
from lockstep.learners.base import train
from lockstep.metrics import Mean, Metrics
from lockstep.objectives.group import group_advantage
from lockstep.objectives.masks import masked_whiten
from lockstep.recipe import GRPO, GRPORecipe


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
                improved += train(workers.policy, minibatch, rules.policy_loss).prefixed("policy")
        metrics += of_epoch(improved, epoch, rules)
    samples = sample_rows(drawn.rollouts, batch, workers.experience, rules.num_logged_samples)
    return StepResult(metrics, drawn.position, batch.tokens.numel(), samples)


def with_advantages(batch: Batch, grpo: GRPO) -> tuple[Batch, Metrics]:
    """Each token of a response has the response's advantage; β·KL of all its tokens may be part of its reward."""
    score_B, kl_N = batch["shaped_score"], penalty(batch, grpo)
    if kl_N is not None:
        score_B = score_B - batch.per_sample(kl_N)
    advantage_B = group_advantage(
        score_B, batch["score"].isfinite(), grpo.num_generations, baseline=grpo.baseline, scale=grpo.scale_rewards
    )
    advantage_N = advantage_B[batch.row] * batch.mask
    trained_B = batch.per_sample(batch.mask.float()) > 0
    rewarded = Mean((score_B * trained_B).sum(), trained_B.sum())
    metrics = credited(batch, advantage_N) + Metrics({"train/shaped_reward": rewarded})
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
        sequence_ratio=grpo.importance_sampling_level == "sequence",
        cispo=grpo.loss == "cispo",
    )
    return GRPORules(**vars(shared) | {"options": grpo, "policy_loss": loss})
