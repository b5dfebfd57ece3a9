"""What PPO and GRPO share: rollouts, what of them is learned from, importance weights, the reference, minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.experience.rollout import Experience, Rollouts
from lockstep.experience.watch import Watch
from lockstep.learners.base import Learner
from lockstep.losses.ppo import ClippedSurrogate
from lockstep.metrics import Mean, Metrics, Sum
from lockstep.objectives.divergence import KLEstimate
from lockstep.objectives.mismatch import Correction, IcePop, SequenceTIS, TokenTIS, agreement, sequence_mismatch
from lockstep.objectives.shaping import OverlongPenalty, ScaleReward, Shaping, TruncationPenalty
from lockstep.recipe import PolicyGradient, PolicyGradientRecipe
from lockstep.types import Phase, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who does the work: π, π_ref (only where a KL is asked for), the source of rollouts, and who watches them."""

    policy: Learner
    reference: Learner | None
    experience: Experience
    phase: Phase
    watch: Watch | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A recipe's options as values, ready for use in the step."""

    options: PolicyGradient
    sampling: SamplingParams
    seed: int
    num_logged_samples: int
    shaping: tuple[Shaping, ...]
    correction: Correction | None
    kl: KLEstimate
    policy_loss: ClippedSurrogate


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


def drawn_at(position: int, version: int, workers: Workers, rules: Rules) -> Drawn:
    """Responses of the policy as it is."""
    with workers.phase("generate"), workers.experience.engine.at(version) as refitted:
        return draw(position, refitted, workers, rules)


def draw(position: int, refitted: Metrics, workers: Workers, rules: Rules) -> Drawn:
    """Responses to a step's prompts; with dynamic sampling only of prompts whose rewards differ."""
    options, sample, sampling = rules.options, workers.experience, rules.sampling
    count, generations = options.num_prompts_per_step, options.num_generations
    if options.dynamic_sampling is None:
        rollouts, end = sample.collect(position, count, sampling, generations), position + count
    else:
        rollouts, end = sample.collect_mixed(position, count, sampling, generations, options.dynamic_sampling)
    metrics = (rollouts.metrics() + Metrics(prompts_drawn=Sum(end - position))).prefixed("train")
    return Drawn(rollouts, end, metrics + refitted)


def prepared(step: int, version: int, batch: Batch, workers: Workers, rules: Rules) -> tuple[Batch, Metrics]:
    """What the policy thinks of its rollouts, which of them it may learn from, and how much each token weighs.

    Args:
        step: So many are done.
        version: Of the policy's weights.
        batch: Scored responses.
        workers: Who is asked.
        rules: Options.

    Returns:
        The batch with `old_logprob`, `shaped_score` and `weight`, and with a reference `ref_logprob` and `kl`; and
        metrics.
    """
    with workers.phase("logprobs"):
        old_logprob_N = workers.policy.logprobs(batch)  # log π_old(y_t | x, y_<t)
    batch = batch.with_columns({"old_logprob": old_logprob_N})
    metrics = agreement(old_logprob_N, batch["sampler_logprob"], batch.mask, batch.lengths).prefixed("agreement")
    age_B = version - batch["version"]
    metrics += Metrics({"agreement/weights_age": Mean(age_B.sum(), len(batch))})
    if workers.watch is not None:
        with workers.phase("watch"):
            metrics += workers.watch(step + 1, version, batch)
    batch, matching = _matched(_judged(batch, rules), rules)
    batch, divergence = _with_reference(batch, workers, rules)
    return batch, metrics + matching + divergence


def minibatches(batch: Batch, size: int, seed: int, *when: int) -> Iterator[Batch]:
    """The sequences of a step in an order that depends on seed and `when`, as many as an optimizer step learns from."""
    order = keyed.permutation(len(batch), seed, "minibatches", *when)
    return (batch.select(rows) for rows in order.split(size))


def of_epoch(metrics: Metrics, epoch: int, rules: Rules) -> Metrics:
    """Metrics of one of several epochs also stand alone."""
    return metrics if rules.options.ppo_epochs == 1 else metrics + metrics.prefixed(f"epoch_{epoch + 1}")


def credited(batch: Batch, advantage_N: Tensor) -> Metrics:
    """What the advantages are like before they are whitened, and how much is learned from."""
    trained = batch.mask.sum()
    return Metrics(
        advantage=Mean(advantage_N.sum(), trained),
        advantage_squared=Mean(advantage_N.square().sum(), trained),
        trained_tokens=Sum(trained),
    ).prefixed("train")


def _judged(batch: Batch, rules: Rules) -> Batch:
    """Shapes scores; responses without a verdict, and truncated ones where the recipe says so, leave the training."""
    score_B, keep_B = batch["score"], batch["score"].isfinite()
    if rules.options.overlong_filtering:
        keep_B = keep_B & ~batch["truncated"]
    length_B = batch.per_sample(batch.mask.long())
    for shape in rules.shaping:
        score_B = shape(score_B, length_B, batch["truncated"])
    batch = batch.with_columns(sample={"shaped_score": score_B.nan_to_num(0.0)})
    return _keeping(batch, keep_B)


def _matched(batch: Batch, rules: Rules) -> tuple[Batch, Metrics]:
    """Drops responses that sampler and learner disagree on, and weighs the rest where the recipe says so."""
    metrics = Metrics()
    if rules.options.max_sequence_mismatch is not None:
        error_B = sequence_mismatch(batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths)
        keep_B = error_B <= rules.options.max_sequence_mismatch
        batch = _keeping(batch, keep_B)
        metrics += Metrics({"agreement/sequences_masked": Sum((~keep_B).sum())})
    weight_N = torch.ones_like(batch["old_logprob"])
    if rules.correction is not None:
        weight_N = rules.correction(batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths)
        metrics += Metrics({"agreement/weight": Mean(weight_N[batch.mask].sum(), batch.mask.sum())})
    return batch.with_columns({"weight": weight_N}), metrics


def _with_reference(batch: Batch, workers: Workers, rules: Rules) -> tuple[Batch, Metrics]:
    if workers.reference is None:
        return batch, Metrics()
    with workers.phase("reference"):
        ref_logprob_N = workers.reference.logprobs(batch)  # log π_ref(y_t | x, y_<t)
    kl_N = rules.kl(batch["old_logprob"], ref_logprob_N) * batch.mask
    metrics = Metrics({"train/kl": Mean(kl_N.sum(), batch.mask.sum())})
    return batch.with_columns({"ref_logprob": ref_logprob_N, "kl": kl_N}), metrics


def penalty(batch: Batch, options: PolicyGradient) -> Tensor | None:
    """β·KL of each token [N], where the KL is part of the reward."""
    if "kl" not in batch.token or options.kl.placement != "reward":
        return None
    return options.kl.coef * batch["kl"]


def _keeping(batch: Batch, keep_B: Tensor) -> Batch:
    """Takes the other sequences out of the training; they stay in the batch, so minibatches keep their sizes."""
    return batch.with_columns({"mask": batch.mask & keep_B[batch.row]})


def rules(recipe: PolicyGradientRecipe, stop_token_ids: tuple[int, ...]) -> Rules:
    """Turns a recipe's options into values, once; the loss is the clipped objective over tokens."""
    options, kl = recipe.options, recipe.options.kl
    estimate = KLEstimate(kl.estimator, kl.clamp_logratio, kl.clamp)
    in_loss = kl.coef if kl.placement == "loss" else 0.0
    return Rules(
        options=options,
        sampling=SamplingParams(**recipe.sampling.model_dump(), stop_token_ids=stop_token_ids),
        seed=recipe.seed,
        num_logged_samples=recipe.run.num_logged_samples,
        shaping=_shaping(options, recipe.sampling.max_tokens),
        correction=_correction(options),
        kl=estimate,
        policy_loss=ClippedSurrogate(
            options.clip,
            options.clip if options.clip_high is None else options.clip_high,
            options.dual_clip,
            in_loss,
            estimate if in_loss else None,
            options.entropy_coef,
        ),
    )


def _shaping(options: PolicyGradient, max_tokens: int) -> tuple[Shaping, ...]:
    shaping: list[Shaping] = []
    if options.reward_scaling is not None:
        shaping.append(ScaleReward(options.reward_scaling.source, options.reward_scaling.target))
    if options.overlong_penalty is not None:
        shaping.append(OverlongPenalty(max_tokens, options.overlong_penalty.buffer, options.overlong_penalty.penalty))
    if options.truncation_penalty:
        shaping.append(TruncationPenalty(options.truncation_penalty))
    return tuple(shaping)


def _correction(options: PolicyGradient) -> Correction | None:
    match options.correction:
        case None:
            return None
        case option if option.low is not None:
            return IcePop(option.low, option.high)
        case option if option.kind == "token_tis":
            return TokenTIS(option.high)
        case option:
            return SequenceTIS(option.high)
