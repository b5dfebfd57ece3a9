"""The two losses of PPO, over one micro-batch; their mathematics is in `objectives.policy` and `objectives.value`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.losses.base import Denominator, Outputs
from lockstep.metrics import ExplainedVariance, Max, Mean, Metrics, Min
from lockstep.objectives.divergence import KLEstimate
from lockstep.objectives.masks import trainable
from lockstep.objectives.policy import clipped_surrogate, probability_ratio
from lockstep.objectives.value import clipped_value_loss

_OLD_KL = KLEstimate("k3", clamp_logratio=20.0)


@dataclass(frozen=True)
class ClippedSurrogate:
    """Σ_t w_t·surrogate_t + β·KL_t − c·H_t over trainable tokens.

    Reads the columns `old_logprob`, `advantage` and `weight` (w, importance correction; ones where there is none), and
    `ref_logprob` where β > 0.

    Attributes:
        clip_low: The ratio is clipped below at 1 − this.
        clip_high: The ratio is clipped above at 1 + this.
        dual_clip: Bound on the ratio where the advantage is negative; None: none.
        kl_coef: β.
        kl: Estimator of KL(π ‖ π_ref); needed where β > 0.
        entropy_coef: c, of the entropy bonus (Schulman et al. 2017, eq. 9).
    """

    clip_low: float
    clip_high: float
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl: KLEstimate | None = None
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        if (self.kl_coef > 0) != (self.kl is not None):
            raise ValueError(f"kl_coef > 0 and a KL estimator go together: kl_coef is {self.kl_coef}, kl is {self.kl}")

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None, "the policy's loss needs a head that gives log-probabilities"
        assert outputs.entropy is not None or not self.entropy_coef, (
            "an entropy bonus needs a head that gives entropies"
        )
        mask_N = batch.mask
        logprob_N = trainable(outputs.logprob, mask_N)
        old_N = trainable(batch["old_logprob"], mask_N)
        surrogate_N, clipped_N = clipped_surrogate(
            logprob_N,
            old_N,
            trainable(batch["advantage"], mask_N),
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
        total = (surrogate_N * trainable(batch["weight"], mask_N)).sum()
        metrics = _policy_metrics(logprob_N.detach(), old_N, clipped_N, mask_N)
        if self.kl is not None:
            kl = self.kl(logprob_N, trainable(batch["ref_logprob"], mask_N)).sum()
            total = total + self.kl_coef * kl
            metrics["kl"] = Mean(kl.detach(), mask_N.sum())
        if outputs.entropy is not None:
            entropy = trainable(outputs.entropy, mask_N).sum()
            if self.entropy_coef:  # without it the entropy has no gradient to compute
                total = total - self.entropy_coef * entropy
            metrics["entropy"] = Mean(entropy.detach(), mask_N.sum())
        metrics["loss"] = Mean(total.detach(), mask_N.sum())
        return total, metrics


@dataclass(frozen=True)
class ClippedValue:
    """Σ_t ½·max((V − R)², (V_clip − R)²) over trainable tokens.

    Reads the columns `old_value`, V at the time of the rollout, and `return`. The explained variance is that of
    `old_value`: what the critic knew before it saw these returns.

    Attributes:
        clip: V moves from `old_value` by at most this before its gradient stops; None: plain squared error.
    """

    clip: float | None

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.value is not None, "the critic's loss needs a head that gives values"
        mask_N = batch.mask
        value_N, old_N, return_N = (
            trainable(column, mask_N) for column in (outputs.value, batch["old_value"], batch["return"])
        )
        loss_N, clipped_N = clipped_value_loss(value_N, old_N, return_N, self.clip)
        total, count, error_N = loss_N.sum(), mask_N.sum(), (return_N - old_N).double()
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


def _policy_metrics(logprob_N: Tensor, old_N: Tensor, clipped_N: Tensor, mask_N: Tensor) -> Metrics:
    """How far the policy has moved since the rollout was scored. Log-probabilities are 0 off the mask."""
    ratio_N, count = probability_ratio(logprob_N, old_N), mask_N.sum()
    return Metrics(
        probs_ratio=Mean(trainable(ratio_N, mask_N).sum(), count),
        probs_ratio_min=Min(torch.where(mask_N, ratio_N, torch.inf).min()),
        probs_ratio_max=Max(torch.where(mask_N, ratio_N, -torch.inf).max()),
        clip_fraction=Mean(clipped_N.sum(), count),
        approx_kl=Mean(_OLD_KL(old_N, logprob_N).sum(), count),
        approx_entropy=Mean(-logprob_N.sum(), count),
    )
