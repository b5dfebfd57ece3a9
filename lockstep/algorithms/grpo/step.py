"""GRPO (Shao et al. 2024, Algorithm 1), RLOO, Dr. GRPO, DAPO, GSPO, CISPO and REINFORCE++.

PPO without a critic: the baseline of a response is computed from the other responses to its prompt.
"""

from __future__ import annotations

from torch import Tensor

from lockstep.algorithms.grpo.options import PolicyGradient
from lockstep.algorithms.job import StepResult
from lockstep.algorithms.policy_gradient.step import (
    PolicyGradientSettings,
    PolicyGradientWorkers,
    SampledStep,
    adapt_kl,
    measure_advantages,
    prepare_batch,
    require_credit,
    split_minibatches,
    train_policy,
)
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.objectives.masks import masked_whiten
from lockstep.rollouts.samples import sample_rows


def train_on_groups(
    step: int,
    sampled: SampledStep,
    workers: PolicyGradientWorkers,
    settings: PolicyGradientSettings[PolicyGradient],
) -> StepResult:
    """Trains the policy on sampled rollouts: compares responses in groups, then updates."""
    batch, preparation = prepare_batch(step, step, sampled.rollouts.batch, workers, settings)
    recipe = settings.recipe
    batch, credit = with_advantages(batch, recipe)
    require_credit(batch)
    metrics = sampled.metrics + preparation + credit
    for epoch in range(recipe.grpo.ppo_epochs):
        improved = Metrics()
        order = split_minibatches(batch, recipe.grpo.global_batch_size, recipe.seed, step, epoch)
        for number, minibatch in enumerate(order):
            improved += train_policy(step, epoch, number, minibatch, workers, settings)
        metrics += improved
    adapt_kl(batch, settings)
    samples = sample_rows(sampled.rollouts, batch, workers.collector, recipe.run.num_logged_samples)
    return StepResult(metrics, sampled.position, batch.tokens.numel(), samples)


def with_advantages(batch: Batch, recipe: PolicyGradient) -> tuple[Batch, Metrics]:
    """Adds the per-token column `advantage`; its metrics are from before whitening.

    Raises:
        InputError: The recipe's class, possibly user-defined, did not return advantages.
    """
    advantage = recipe.advantages(batch)
    if not isinstance(advantage, Tensor) or advantage.shape not in (
        batch["score"].shape,
        batch.tokens.shape,
    ):
        if isinstance(advantage, Tensor):
            found = tuple(advantage.shape)
        else:
            found = type(advantage).__name__
        raise InputError(
            f"{type(recipe).__name__}.advantages returned {found}; return a tensor of "
            f"{len(batch)} numbers, one per response, or {batch.tokens.numel()}, one per token"
        )
    if advantage.shape == batch.tokens.shape:
        advantage_N = advantage
    else:
        advantage_N = advantage[batch.row]
    advantage_N = advantage_N * batch.mask
    metrics = measure_advantages(batch, advantage_N)
    if recipe.grpo.whiten_advantages:
        advantage_N = masked_whiten(advantage_N, batch.mask)
    return batch.with_columns({"advantage": advantage_N}), metrics
