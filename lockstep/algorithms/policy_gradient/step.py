"""The step shared by PPO and GRPO: rollouts, shaping, importance weights, minibatches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar, assert_never

import torch
from torch import Tensor

from lockstep.algorithms.policy_gradient.options import (
    KL,
    CorrectionSection,
    PolicyGradientRecipe,
    PolicyGradientSection,
)
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite, require_logprobs
from lockstep.core.metrics import Mean, Metrics, Sum
from lockstep.core.types import PhaseTimer, SamplingParams
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Loss
from lockstep.losses.policy import ComparedLoss, KLPenalizedLoss
from lockstep.losses.ppo import ClippedSurrogate
from lockstep.monitor.agreement import Agreement
from lockstep.objectives.divergence import k1
from lockstep.objectives.masks import zero_outside_mask
from lockstep.objectives.mismatch import (
    icepop,
    measure_agreement,
    sequence_mismatch,
    sequence_tis,
    token_tis,
)
from lockstep.objectives.shaping import overlong_penalty, scale_reward
from lockstep.objectives.tally import MismatchTally
from lockstep.rollouts.rollout import RolloutCollector, Rollouts

_FILE = "kl.json"
# limit on the relative error, so that the coefficient changes slowly
_MAX_ERROR = 0.2


class KLCoefficient:
    """The KL coefficient β, which is checkpointed if adaptive.

    Attributes:
        section: The KL's options.
        value: β of the current step.
    """

    def __init__(self, section: KL) -> None:
        self.section = section
        self.value = section.coef

    def adapt_to_kl(self, kl: float) -> None:
        """Sets β of the next step.

        Args:
            kl: KL(π ‖ π_ref) per token of this step's responses, nats.
        """
        adaptive = self.section.adaptive
        if adaptive is not None:
            error = max(-_MAX_ERROR, min(_MAX_ERROR, kl / adaptive.target - 1.0))
            self.value *= 1.0 + adaptive.gain * error

    def save(self, folder: Path) -> None:
        """Saves β; see `Learner.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        # JSON keeps the shortest digits that read back as the same number.
        (folder / _FILE).write_text(json.dumps({"coef": self.value}), encoding="utf-8")

    def poll_save(self, wait: bool) -> bool:
        return True

    def load(self, folder: Path) -> None:
        """Restores β; see `Learner.load`.

        A run whose coefficient was fixed has none; the recipe's β is used.
        """
        if folder.exists():
            self.value = float(json.loads((folder / _FILE).read_text(encoding="utf-8"))["coef"])


@dataclass(frozen=True, kw_only=True)
class PolicyGradientWorkers:
    """Models and data of a step: π, π_ref (only with a KL), collector and agreement.

    Attributes:
        agreement: Compares learner and sampler; None if sampling one step ahead, which compares
            rollouts separately.
    """

    policy: Learner
    reference: Learner | None
    collector: RolloutCollector
    phase: PhaseTimer
    agreement: Agreement | None = None


RecipeT = TypeVar("RecipeT", bound=PolicyGradientRecipe, covariant=True)


@dataclass(frozen=True)
class PolicyGradientSettings(Generic[RecipeT]):
    """A recipe, and the values that a step computes with.

    Attributes:
        recipe: The recipe.
        sampling: The sampling distribution of training rollouts.
        kl: The coefficient of the KL to the reference policy; None: no reference policy.
        policy_loss: The loss without the KL.
    """

    recipe: RecipeT
    sampling: SamplingParams
    kl: KLCoefficient | None
    policy_loss: Loss

    @property
    def options(self) -> PolicyGradientSection:
        """The algorithm's own section."""
        return self.recipe.options


AnyPolicySettings = PolicyGradientSettings[PolicyGradientRecipe]


@dataclass(frozen=True)
class SampledStep:
    """The rollouts that a step trains on.

    Attributes:
        rollouts: Responses and their scores.
        position: Position in the data after the last prompt.
        metrics: Metrics of the rollouts, and of the weight sync before them.
        read_N: The sampler's rescored log-probabilities of some responses, see
            `Agreement.read_back`; None: not rescored.
    """

    rollouts: Rollouts
    position: int
    metrics: Metrics
    read_N: Tensor | None = None


def sample_step(
    position: int, version: int, workers: PolicyGradientWorkers, settings: AnyPolicySettings
) -> SampledStep:
    """Samples responses from the current policy."""
    with workers.phase("generate"), workers.collector.engine.at(version) as sync_metrics:
        return draw_rollouts(position, sync_metrics, workers, settings)


def draw_rollouts(
    position: int,
    sync_metrics: Metrics,
    workers: PolicyGradientWorkers,
    settings: AnyPolicySettings,
) -> SampledStep:
    """Samples responses; dynamic sampling keeps only prompts whose rewards differ."""
    options = settings.options
    sample = workers.collector
    sampling = settings.sampling
    count = options.num_prompts_per_step
    generations = options.num_generations
    if options.dynamic_sampling is None:
        rollouts = sample.collect(position, count, sampling, generations)
        end = position + count
    else:
        rollouts, end = sample.collect_mixed(
            position, count, sampling, generations, options.dynamic_sampling.max_batches
        )
    metrics = (rollouts.metrics() + Metrics(prompts_drawn=Sum(end - position))).with_prefix("train")
    return SampledStep(rollouts, end, metrics + rollouts.rewards() + sync_metrics)


def prepare_batch(
    step: int,
    version: int,
    batch: Batch,
    workers: PolicyGradientWorkers,
    settings: AnyPolicySettings,
) -> tuple[Batch, Metrics]:
    """Adds log-probabilities and importance weights, and masks excluded responses.

    Args:
        step: Number of finished steps.
        version: Version of the policy's weights.
        batch: Scored responses.
        workers: The models.
        settings: Options.

    Returns:
        The batch with `old_logprob`, `shaped_score` and `weight`; with a reference policy also
        `ref_logprob` and `kl`, and `kl_penalty` if the KL is part of the reward. And metrics.
    """
    with workers.phase("logprobs"):  # log π_old(y_t | x, y_<t)
        if workers.agreement is None:
            batch = batch.with_columns({"old_logprob": workers.policy.logprobs(batch)})
        else:
            batch = workers.agreement.score_recomputed(batch, settings.recipe.seed, step)
    require_logprobs("the policy", batch, batch["old_logprob"])
    age_B = version - batch["version"]
    metrics = Metrics({"agreement/weights_age": Mean(age_B.sum(), len(batch))})
    if bool(age_B.any()):
        stale = measure_agreement(
            batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths
        )
        metrics += stale.with_prefix("staleness")
    if workers.agreement is not None:
        with workers.phase("watch"):
            metrics += workers.agreement.compare(step + 1, version, batch)
    batch, matching = _correct_mismatch(_shape_scores(batch, settings), settings)
    batch, divergence = _with_reference(batch, workers, settings)
    return batch, metrics + matching + divergence + _measure_objective(batch, settings)


def train_policy(
    step: int,
    epoch: int,
    number: int,
    batch: Batch,
    workers: PolicyGradientWorkers,
    settings: AnyPolicySettings,
) -> Metrics:
    """Runs one optimizer step of the policy: number `number` of epoch `epoch`.

    The first optimizer step still has the weights that sampled, so it compares the tokens that were
    not recomputed.
    """
    agreement = workers.agreement
    loss = build_step_loss(settings)
    compared = Metrics()
    if agreement is None or epoch or number or bool(batch["recomputed"].all()):
        with workers.phase("policy"):
            metrics = train(workers.policy, batch, loss)
        return add_epoch_metrics(metrics.with_prefix("policy"), epoch, settings)

    def compare_trained_tokens(metrics: Metrics) -> None:
        tally = metrics.pop("compared", MismatchTally())
        assert isinstance(tally, MismatchTally), "which the loss counts"
        compared.update(agreement.compare_trained(step + 1, tally))

    with workers.phase("policy"):
        metrics = train(workers.policy, batch, ComparedLoss(loss), compare_trained_tokens)
    return add_epoch_metrics(metrics.with_prefix("policy"), epoch, settings) + compared


def split_minibatches(batch: Batch, size: int, seed: int, *when: int) -> Iterator[Batch]:
    """Shuffles a step's sequences by seed and `when`, and splits them into minibatches."""
    order = keyed.draw_permutation(len(batch), seed, "minibatches", *when)
    return map(batch.select, order.split(size))


def add_epoch_metrics(metrics: Metrics, epoch: int, settings: AnyPolicySettings) -> Metrics:
    """Metrics of an epoch; with several epochs, also under the epoch's own name."""
    if settings.options.ppo_epochs == 1:
        return metrics
    return metrics + metrics.with_prefix(f"epoch_{epoch + 1}")


def require_credit(batch: Batch) -> None:
    """Raises NotFiniteError if advantages or squared returns are NaN or infinite."""
    columns = [batch.token["advantage"]]
    if "return" in batch.token:
        columns.append(batch.token["return"].square())  # as the critic's loss takes them
    require_finite(
        "advantages", batch, *columns, cure="check the magnitudes of rewards, values and kl.coef"
    )


def measure_advantages(batch: Batch, advantage_N: Tensor) -> Metrics:
    """Metrics of the advantages before whitening, and the number of trained tokens."""
    trained = batch.mask.sum()
    return Metrics(
        advantage=Mean(advantage_N.sum(), trained),
        advantage_squared=Mean(advantage_N.square().sum(), trained),
        trained_tokens=Sum(trained),
    ).with_prefix("train")


def _shape_scores(batch: Batch, settings: AnyPolicySettings) -> Batch:
    """Shapes scores; masks responses without a verdict and, if set, truncated ones."""
    options = settings.options
    score_B = batch["score"]
    keep_B = batch["score"].isfinite()
    if options.overlong_filtering:
        keep_B = keep_B & ~batch["truncated"]
    scaling = options.reward_scaling
    overlong = options.overlong_penalty
    if scaling is not None:
        score_B = scale_reward(score_B, scaling.source, scaling.target)
    if overlong is not None:
        length_B = batch.per_sample(batch.mask.long())
        limit = settings.sampling.max_tokens
        score_B = score_B - overlong_penalty(length_B, limit, overlong.buffer, overlong.penalty)
    score_B = score_B - options.truncation_penalty * batch["truncated"].to(score_B)
    batch = batch.with_columns(sample={"shaped_score": score_B.nan_to_num(0.0)})
    return _mask_other_sequences(batch, keep_B)


def _correct_mismatch(batch: Batch, settings: AnyPolicySettings) -> tuple[Batch, Metrics]:
    """Masks responses with a large mismatch and weighs the rest, as the recipe sets."""
    metrics = Metrics()
    if settings.options.max_sequence_mismatch is not None:
        error_B = sequence_mismatch(
            batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths
        )
        keep_B = error_B <= settings.options.max_sequence_mismatch
        batch = _mask_other_sequences(batch, keep_B)
        metrics += Metrics({"agreement/sequences_masked": Sum((~keep_B).sum())})
    weight_N = torch.ones_like(batch["old_logprob"])
    if settings.options.correction is not None:
        weight_N = _weigh_tokens(settings.options.correction, batch)
        metrics += Metrics({"agreement/weight": Mean(weight_N[batch.mask].sum(), batch.mask.sum())})
    return batch.with_columns({"weight": weight_N}), metrics


def _with_reference(
    batch: Batch, workers: PolicyGradientWorkers, settings: AnyPolicySettings
) -> tuple[Batch, Metrics]:
    coef = settings.kl
    if coef is None:
        return batch, Metrics()
    assert workers.reference is not None, "a KL needs a reference policy"
    with workers.phase("reference"):
        # log π_ref(y_t | x, y_<t)
        ref_logprob_N = compute_logprobs(workers.reference, batch, "the reference policy")
    kl_N = zero_outside_mask(k1(batch["old_logprob"], ref_logprob_N), batch.mask)
    columns = {"ref_logprob": ref_logprob_N, "kl": kl_N}
    if not coef.section.in_loss:
        columns["kl_penalty"] = coef.value * kl_N
    metrics = Metrics({"train/kl": Mean(kl_N.sum(), batch.mask.sum())})
    if coef.section.adaptive is not None:
        metrics["train/kl_coef"] = Mean(coef.value)
    return batch.with_columns(columns), metrics


def _measure_objective(batch: Batch, settings: AnyPolicySettings) -> Metrics:
    """Metrics of the objective, shaped score − β·KL per response, and of clamping."""
    objective_B = batch["shaped_score"]
    if settings.kl is not None:
        objective_B = objective_B - settings.kl.value * batch.per_sample(batch["kl"])
    trained_B = batch.per_sample(batch.mask.float()) > 0
    metrics = Metrics(
        {"train/shaped_reward": Mean((objective_B * trained_B).sum(), trained_B.sum())}
    )
    if settings.options.reward_scaling is not None:
        low, high = settings.options.reward_scaling.source
        clamped_B = trained_B & ((batch["score"] < low) | (batch["score"] > high))
        metrics["train/clamped"] = Mean(clamped_B.sum(), trained_B.sum())
    return metrics


def build_step_loss(settings: AnyPolicySettings) -> Loss:
    """The policy's loss in the current step."""
    if settings.kl is None or not settings.kl.section.in_loss:
        return settings.policy_loss
    estimator = settings.kl.section.estimator
    # which weighs and corrects both terms as one
    if isinstance(settings.policy_loss, ClippedSurrogate):
        return replace(settings.policy_loss, kl_coef=settings.kl.value, kl_estimator=estimator)
    return KLPenalizedLoss(settings.policy_loss, settings.kl.value, estimator)


def adapt_kl(batch: Batch, settings: AnyPolicySettings) -> None:
    """Adapts the KL coefficient to its target, at the end of a step."""
    if settings.kl is not None and settings.kl.section.adaptive is not None and batch.mask.any():
        settings.kl.adapt_to_kl(float(batch["kl"].sum() / batch.mask.sum()))


def _mask_other_sequences(batch: Batch, keep_B: Tensor) -> Batch:
    """Masks sequences that are not kept; they stay in the batch, which keeps minibatch sizes."""
    return batch.with_columns({"mask": batch.mask & keep_B[batch.row]})


def build_settings(
    recipe: RecipeT, stop_token_ids: tuple[int, ...]
) -> PolicyGradientSettings[RecipeT]:
    """Builds the settings of a recipe; `stop_token_ids` end a response."""
    section = recipe.options.kl
    kl = None if section is None or not section.coef else KLCoefficient(section)
    sampling = recipe.sampling.params(stop_token_ids)
    return PolicyGradientSettings(recipe, sampling, kl, recipe.policy_loss())


def _weigh_tokens(section: CorrectionSection, batch: Batch) -> Tensor:
    """Importance weights from sampler to learner [N]."""
    logprobs = batch["old_logprob"], batch["sampler_logprob"]
    match section.kind:
        case "token_tis":
            return token_tis(*logprobs, batch.mask, section.high)
        case "sequence_tis":
            return sequence_tis(*logprobs, batch.mask, batch.lengths, section.high)
        case "icepop":
            assert section.low is not None, "IcePop's range has two ends"
            return icepop(*logprobs, batch.mask, section.low, section.high)
        case _:
            assert_never(section.kind)
