"""PPO with a critic: Schulman et al. 2017, Algorithm 1, for language models (Ouyang et al. 2022).

A step of the decision process is a token that the policy chose. `ppo_step` is the algorithm; `Rules` holds the options
that successors of the paper added, as values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep import keyed
from lockstep.algorithms.step import StepResult
from lockstep.batch import Batch
from lockstep.experience.rollout import Experience, Rollouts
from lockstep.experience.samples import sample_rows
from lockstep.experience.watch import Watch
from lockstep.learners.base import Learner, train
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.metrics import Mean, Metrics, Sum
from lockstep.objectives.advantage import gae, length_adaptive_lambda
from lockstep.objectives.divergence import KLEstimate
from lockstep.objectives.masks import masked_whiten
from lockstep.objectives.mismatch import Correction, IcePop, SequenceTIS, TokenTIS, agreement, sequence_mismatch
from lockstep.objectives.shaping import OverlongPenalty, ScaleReward, Shaping, TruncationPenalty, token_rewards
from lockstep.recipe import PPO, PPORecipe
from lockstep.types import Phase, SamplingParams


@dataclass(frozen=True)
class PPOWorkers:
    """Who does the work: π, V, π_ref (only where a KL is asked for), the source of rollouts, and who watches them."""

    policy: Learner
    critic: Learner
    reference: Learner | None
    experience: Experience
    phase: Phase
    watch: Watch | None = None


@dataclass(frozen=True)
class Rules:
    """A recipe's options as values, ready for use in the step."""

    ppo: PPO
    sampling: SamplingParams
    seed: int
    num_logged_samples: int
    shaping: tuple[Shaping, ...]
    correction: Correction | None
    kl: KLEstimate
    policy_loss: ClippedSurrogate
    value_loss: ClippedValue


@dataclass(frozen=True)
class Drawn:
    """What a step learns from.

    Attributes:
        rollouts: Responses and their scores.
        position: Behind the last prompt that was drawn.
        metrics: Of the rollouts, and of the refit before them.
    """

    rollouts: Rollouts
    position: int
    metrics: Metrics


def ppo_step(step: int, position: int, workers: PPOWorkers, rules: Rules) -> StepResult:
    """One iteration: sample from the policy as it is, and learn from that."""
    with workers.phase("generate"), workers.experience.engine.at(policy_version(step, rules.ppo)) as refitted:
        drawn = draw(position, refitted, workers, rules)  # y ~ π_old(·|x), r(x, y)
    return learn(step, drawn, workers, rules)


def learn(step: int, drawn: Drawn, workers: PPOWorkers, rules: Rules) -> StepResult:
    """The rest of an iteration: value, estimate advantages, improve critic and policy."""
    version, batch, metrics = policy_version(step, rules.ppo), drawn.rollouts.batch, drawn.metrics
    with workers.phase("values"):
        value_N, final_value_B = workers.critic.values(batch)  # V(x, y_<t)
    with workers.phase("logprobs"):
        old_logprob_N = workers.policy.logprobs(batch)  # log π_old(y_t | x, y_<t)
    batch = batch.with_columns({"old_value": value_N, "old_logprob": old_logprob_N}, {"final_value": final_value_B})
    metrics += agreement(old_logprob_N, batch["sampler_logprob"], batch.mask, batch.lengths).prefixed("agreement")
    age_B = version - batch["version"]
    metrics += Metrics({"agreement/weights_age": Mean(age_B.sum(), len(batch))})
    if workers.watch is not None:
        with workers.phase("watch"):
            metrics += workers.watch(step + 1, version, batch)
    batch, matching = _matched(_judged(batch, rules), rules)
    batch, divergence = _rewarded(batch, workers, rules)
    batch, credit = with_advantages(batch, rules.ppo)
    metrics = metrics + matching + divergence + credit
    for epoch in range(rules.ppo.ppo_epochs):
        metrics += _improved(batch, step, epoch, workers, rules)
    samples = sample_rows(drawn.rollouts, batch, workers.experience, rules.num_logged_samples)
    return StepResult(metrics, drawn.position, batch.tokens.numel(), samples)


def policy_version(step: int, ppo: PPO) -> int:
    """Steps in which the policy learned, of the first `step`: the version of its weights."""
    return max(0, step - ppo.critic_warmup_steps)


def draw(position: int, refitted: Metrics, workers: PPOWorkers, rules: Rules) -> Drawn:
    """Responses to a step's prompts; with dynamic sampling only of prompts whose rewards differ."""
    ppo, sample, sampling = rules.ppo, workers.experience, rules.sampling
    count, generations = ppo.num_prompts_per_step, ppo.num_generations
    if ppo.dynamic_sampling is None:
        rollouts, end = sample.collect(position, count, sampling, generations), position + count
    else:
        rollouts, end = sample.collect_mixed(position, count, sampling, generations, ppo.dynamic_sampling)
    metrics = (rollouts.metrics() + Metrics(prompts_drawn=Sum(end - position))).prefixed("train")
    return Drawn(rollouts, end, metrics + refitted)


def _judged(batch: Batch, rules: Rules) -> Batch:
    """Shapes scores; responses without a verdict, and truncated ones where the recipe says so, leave the training."""
    score_B, keep_B = batch["score"], batch["score"].isfinite()
    if rules.ppo.overlong_filtering:
        keep_B = keep_B & ~batch["truncated"]
    length_B = batch.per_sample(batch.mask.long())
    for shape in rules.shaping:
        score_B = shape(score_B, length_B, batch["truncated"])
    batch = batch.with_columns(sample={"shaped_score": score_B.nan_to_num(0.0)})
    return _keeping(batch, keep_B)


def _matched(batch: Batch, rules: Rules) -> tuple[Batch, Metrics]:
    """Drops responses that sampler and learner disagree on, and weighs the rest where the recipe says so."""
    metrics = Metrics()
    if rules.ppo.max_sequence_mismatch is not None:
        error_B = sequence_mismatch(batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths)
        keep_B = error_B <= rules.ppo.max_sequence_mismatch
        batch = _keeping(batch, keep_B)
        metrics += Metrics({"agreement/sequences_masked": Sum((~keep_B).sum())})
    weight_N = torch.ones_like(batch["old_logprob"])
    if rules.correction is not None:
        weight_N = rules.correction(batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths)
        metrics += Metrics({"agreement/weight": Mean(weight_N[batch.mask].sum(), batch.mask.sum())})
    return batch.with_columns({"weight": weight_N}), metrics


def _rewarded(batch: Batch, workers: PPOWorkers, rules: Rules) -> tuple[Batch, Metrics]:
    """Per-token rewards: the score at the last token, less β·KL at every token where the KL is part of the reward."""
    reward_N = token_rewards(batch["shaped_score"], batch.mask, batch.lengths)
    if workers.reference is None:
        return batch.with_columns({"reward": reward_N}), Metrics()
    with workers.phase("reference"):
        ref_logprob_N = workers.reference.logprobs(batch)  # log π_ref(y_t | x, y_<t)
    kl_N = rules.kl(batch["old_logprob"], ref_logprob_N) * batch.mask
    if rules.ppo.kl.placement == "reward":
        reward_N = reward_N - rules.ppo.kl.coef * kl_N
    metrics = Metrics({"train/kl": Mean(kl_N.sum(), batch.mask.sum())})
    return batch.with_columns({"reward": reward_N, "ref_logprob": ref_logprob_N, "kl": kl_N}), metrics


def with_advantages(batch: Batch, ppo: PPO) -> tuple[Batch, Metrics]:
    """Advantages and returns by GAE (Schulman et al. 2016, eq. 16), each with its own λ where asked (VAPO, 2025)."""
    final_value_B = torch.zeros_like(batch["final_value"])
    if ppo.bootstrap_truncated:
        final_value_B = torch.where(batch["truncated"], batch["final_value"], final_value_B)

    def estimate(lam: float | Tensor) -> Tensor:
        reward_N, value_N = batch["reward"], batch["old_value"]
        return gae(reward_N, value_N, batch.mask, batch.lengths, gamma=ppo.gamma, lam=lam, final_value_B=final_value_B)

    lam_value = ppo.gae_lambda if ppo.gae_lambda_value is None else ppo.gae_lambda_value
    lam_policy: float | Tensor = ppo.gae_lambda if ppo.gae_lambda_policy is None else ppo.gae_lambda_policy
    if ppo.length_adaptive_alpha:
        lam_policy = length_adaptive_lambda(batch.mask, batch.lengths, ppo.length_adaptive_alpha)
    return_N = (estimate(lam_value) + batch["old_value"]) * batch.mask
    advantage_N = estimate(lam_policy)
    metrics = Metrics(
        shaped_reward=Mean(batch["reward"].sum(), (batch.per_sample(batch.mask.float()) > 0).sum()),
        advantage=Mean(advantage_N.sum(), batch.mask.sum()),
        advantage_squared=Mean(advantage_N.square().sum(), batch.mask.sum()),
        trained_tokens=Sum(batch.mask.sum()),
    ).prefixed("train")
    if ppo.whiten_advantages:
        advantage_N = masked_whiten(advantage_N, batch.mask)
    return batch.with_columns({"advantage": advantage_N, "return": return_N}), metrics


def _improved(batch: Batch, step: int, epoch: int, workers: PPOWorkers, rules: Rules) -> Metrics:
    """One epoch over the rollouts, the critic before the policy; metrics of several epochs also stand alone."""
    metrics = Metrics()
    for minibatch in _minibatches(batch, rules, step, epoch):
        with workers.phase("critic"):
            metrics += train(workers.critic, minibatch, rules.value_loss).prefixed("critic")
        if step >= rules.ppo.critic_warmup_steps:
            with workers.phase("policy"):
                metrics += train(workers.policy, minibatch, rules.policy_loss).prefixed("policy")
    if rules.ppo.ppo_epochs == 1:
        return metrics
    return metrics + metrics.prefixed(f"epoch_{epoch + 1}")


def _minibatches(batch: Batch, rules: Rules, step: int, epoch: int) -> Iterator[Batch]:
    order = keyed.permutation(len(batch), rules.seed, "minibatches", step, epoch)
    return (batch.select(rows) for rows in order.split(rules.ppo.global_batch_size))


def _keeping(batch: Batch, keep_B: Tensor) -> Batch:
    """Takes the other sequences out of the training; they stay in the batch, so minibatches keep their sizes."""
    return batch.with_columns({"mask": batch.mask & keep_B[batch.row]})


def rules(recipe: PPORecipe, stop_token_ids: tuple[int, ...]) -> Rules:
    """Turns a recipe's options into values, once."""
    ppo, kl = recipe.ppo, recipe.ppo.kl
    estimate = KLEstimate(kl.estimator, kl.clamp_logratio, kl.clamp)
    high = ppo.clip if ppo.clip_high is None else ppo.clip_high
    in_loss = kl.coef if kl.placement == "loss" else 0.0
    return Rules(
        ppo=ppo,
        sampling=SamplingParams(**recipe.sampling.model_dump(), stop_token_ids=stop_token_ids),
        seed=recipe.seed,
        num_logged_samples=recipe.run.num_logged_samples,
        shaping=_shaping(ppo, recipe.sampling.max_tokens),
        correction=_correction(ppo),
        kl=estimate,
        policy_loss=ClippedSurrogate(
            ppo.clip, high, ppo.dual_clip, in_loss, estimate if in_loss else None, ppo.entropy_coef
        ),
        value_loss=ClippedValue(ppo.value_clip),
    )


def _shaping(ppo: PPO, max_tokens: int) -> tuple[Shaping, ...]:
    shaping: list[Shaping] = []
    if ppo.reward_scaling is not None:
        shaping.append(ScaleReward(ppo.reward_scaling.source, ppo.reward_scaling.target))
    if ppo.overlong_penalty is not None:
        shaping.append(OverlongPenalty(max_tokens, ppo.overlong_penalty.buffer, ppo.overlong_penalty.penalty))
    if ppo.truncation_penalty:
        shaping.append(TruncationPenalty(ppo.truncation_penalty))
    return tuple(shaping)


def _correction(ppo: PPO) -> Correction | None:
    match ppo.correction:
        case None:
            return None
        case option if option.low is not None:
            return IcePop(option.low, option.high)
        case option if option.kind == "token_tis":
            return TokenTIS(option.high)
        case option:
            return SequenceTIS(option.high)
