"""PPO's policy and value losses; the math is in `objectives.policy` and `objectives.value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, assert_never

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import ExplainedVariance, Max, Mean, Metrics, Min
from lockstep.core.types import KLEstimator, LossMean, ValuePositions
from lockstep.losses.base import Denominator, Outputs, count_active
from lockstep.objectives.divergence import k3, kl_loss
from lockstep.objectives.masks import zero_outside_mask
from lockstep.objectives.policy import cispo_loss, clip_surrogate, probability_ratio
from lockstep.objectives.value import clip_value_loss

_MAX_LOGRATIO = 20.0  # nats: keeps a metric of a broken step finite


@dataclass(frozen=True)
class ClippedSurrogate:
    """Σ_t s_t·(w_t·(surrogate_t + β·KL_t) − c·H_t) over trainable tokens.

    With the mean over tokens, s_t is 1 and the denominator is the number of tokens; with a mean
    over responses, s_t is 1 / length or 1 / `max_tokens`, and the denominator is the number of
    responses. Reads the columns `old_logprob`, `advantage` and `weight` (w, importance weights; 1
    without a correction), and `ref_logprob` if β > 0.

    Attributes:
        clip_low: Lower clip range: the ratio is at least 1 − clip_low.
        clip_high: Upper clip range: the ratio is at most 1 + clip_high.
        dual_clip: Bound on the ratio for negative advantages; None: no bound.
        kl_coef: β, the coefficient of KL(π ‖ π_ref); the term is `objectives.divergence.kl_loss`,
            weighted like the surrogate.
        kl_estimator: Formula of that term.
        entropy_coef: c, the coefficient of the entropy bonus (Schulman et al. 2017, eq. 9).
        mean: Mean over tokens, over responses of their token means, or "constant": over responses
            of sums divided by `max_tokens` (Dr. GRPO, Liu et al. 2025).
        max_tokens: Maximum response length, tokens.
        sequence_ratio: True to use the geometric mean of a response's ratios for each of its
            tokens, with the gradient through the token's own log π alone (GSPO-token, Zheng et al.
            2025, eq. 13), so each token may have its own advantage; if a response's advantages are
            equal, this is GSPO (eq. 5).
        cispo: True to use log π weighted by the ratio, clipped above, as the surrogate (CISPO,
            MiniMax 2025).
    """

    clip_low: float
    clip_high: float
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k2"
    entropy_coef: float = 0.0
    mean: LossMean = "tokens"
    max_tokens: int = 1
    sequence_ratio: bool = False
    cispo: bool = False

    @property
    def denominator(self) -> Denominator:
        match self.mean:
            case "tokens":
                return "tokens"
            case "responses" | "constant":
                return "rows"
            case _:
                assert_never(self.mean)

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None, (
            "the policy's loss needs a head that gives log-probabilities"
        )
        assert outputs.entropy is not None or not self.entropy_coef, (
            "an entropy bonus needs a head that gives entropies"
        )
        mask_N = batch.mask
        logprob_N = zero_outside_mask(outputs.logprob, mask_N)
        old_N = zero_outside_mask(batch["old_logprob"], mask_N)
        surrogate_N, clipped_N = self._compute_surrogate(logprob_N, old_N, batch)
        # the policy's change since the rollout was scored; log-probabilities are 0 off the mask
        now_N = logprob_N.detach()
        ratio_N = probability_ratio(now_N, old_N)
        count = mask_N.sum()
        metrics = Metrics(
            probs_ratio=Mean(zero_outside_mask(ratio_N, mask_N).sum(), count),
            probs_ratio_min=Min(torch.where(mask_N, ratio_N, torch.inf).min()),
            probs_ratio_max=Max(torch.where(mask_N, ratio_N, -torch.inf).max()),
            clip_fraction=Mean(clipped_N.sum(), count),
            approx_kl=Mean(_bound_k3(old_N, now_N).sum(), count),
            approx_entropy=Mean(-now_N.sum(), count),
        )
        if self.kl_coef:
            ref_N = zero_outside_mask(batch["ref_logprob"], mask_N)
            kl_N = kl_loss(logprob_N, old_N, ref_N, self.kl_estimator)
            surrogate_N = surrogate_N + self.kl_coef * kl_N
            metrics["kl"] = Mean(estimate_divergence(now_N, old_N, ref_N).sum(), count)
        term_N = surrogate_N * zero_outside_mask(batch["weight"], mask_N)
        if outputs.entropy is not None:
            entropy_N = zero_outside_mask(outputs.entropy, mask_N)
            if self.entropy_coef:  # the entropy needs no gradient without a coefficient
                term_N = term_N - self.entropy_coef * entropy_N
            metrics["entropy"] = Mean(entropy_N.detach().sum(), count)
        total = self._sum_terms(term_N, batch)
        metrics["loss"] = Mean(total.detach(), count_active(batch, self.denominator))
        return total, metrics

    def _compute_surrogate(
        self, logprob_N: Tensor, old_N: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        advantage_N = zero_outside_mask(batch["advantage"], batch.mask)
        if self.cispo:
            return cispo_loss(logprob_N, old_N, advantage_N, self.clip_high)
        if self.sequence_ratio:
            own_N = logprob_N - logprob_N.detach()
            logprob_N = _average_response(logprob_N.detach(), batch) + own_N
            old_N = _average_response(old_N, batch)
        return clip_surrogate(
            logprob_N,
            old_N,
            advantage_N,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )

    def _sum_terms(self, term_N: Tensor, batch: Batch) -> Tensor:
        match self.mean:
            case "tokens":
                return term_N.sum()
            case "responses":
                return (
                    batch.per_sample(term_N) / batch.per_sample(batch.mask.float()).clamp(min=1)
                ).sum()
            case "constant":
                return term_N.sum() / self.max_tokens
            case _:
                assert_never(self.mean)


@dataclass(frozen=True)
class ClippedValue:
    """Σ_t ½·max((V − R)², (V_clip − R)²) over trainable tokens.

    Reads the columns `old_value`, V at the time of the rollout, and `return`. The explained
    variance is measured on `old_value`, from before the critic saw these returns.

    Attributes:
        clip: Distance of V from `old_value` at which its gradient stops; None: plain squared error.
    """

    clip: float | None
    reads_values: ClassVar[ValuePositions] = "masked"

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.value is not None, "the critic's loss needs a head that gives values"
        mask_N = batch.mask
        value_N = zero_outside_mask(outputs.value, mask_N)
        old_N = zero_outside_mask(batch["old_value"], mask_N)
        return_N = zero_outside_mask(batch["return"], mask_N)
        loss_N, clipped_N = clip_value_loss(value_N, old_N, return_N, self.clip)
        total = loss_N.sum()
        count = mask_N.sum()
        error_N = (return_N - old_N).double()
        wide_N = return_N.double()  # sums of squares of a large, nearly constant return cancel
        return total, Metrics(
            loss=Mean(total.detach(), count),
            vf_clipfrac=Mean(clipped_N.sum(), count),
            values_mean=Mean(value_N.detach().sum(), count),
            returns_mean=Mean(return_N.sum(), count),
            explained_variance=ExplainedVariance(
                count, wide_N.sum(), wide_N.square().sum(), error_N.sum(), error_N.square().sum()
            ),
        )


def _average_response(x_N: Tensor, batch: Batch) -> Tensor:
    """Gives each trainable token the mean over its response's trainable tokens [N]."""
    mean_B = batch.per_sample(x_N) / batch.per_sample(batch.mask.float()).clamp(min=1)
    return zero_outside_mask(mean_B[batch.row], batch.mask)


def estimate_divergence(logprob_N: Tensor, old_N: Tensor, ref_N: Tensor) -> Tensor:
    """Estimates KL(π ‖ π_ref) of each token that π_old sampled: ρ·k3, never negative.

    Returns [N], nats.
    """
    return probability_ratio(logprob_N, old_N) * _bound_k3(logprob_N, ref_N)


def _bound_k3(logprob_N: Tensor, other_N: Tensor) -> Tensor:
    """Computes k3 with a bounded log-ratio, for metrics only."""
    return k3((logprob_N - other_N).clamp(-_MAX_LOGRATIO, _MAX_LOGRATIO), torch.zeros_like(other_N))
