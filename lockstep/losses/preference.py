"""Losses over pairs of answers; the math is in `objectives.preference`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, assert_never

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics, StandardDeviation
from lockstep.core.types import PreferenceLoss, ValuePositions
from lockstep.losses.base import Denominator, Outputs, active_pairs, split_pairs
from lockstep.objectives import preference
from lockstep.objectives.estimates import share
from lockstep.objectives.masks import zero_outside_mask


@dataclass(frozen=True)
class Preference:
    """Σ w_p·L(Δ) + w_s·(−log π(y_w)) over pairs in which both answers have trainable tokens.

    A pair is two neighboring sequences of a batch with `group_size` 2, the chosen one first; only
    the answers are trainable, including the stop token. Reads the per-token column `ref_logprob`,
    and the per-sequence column `score` if `kind` uses scores. Pairs of judgments (`judge_pair`) are
    trained on like other pairs, with separate metrics.

    Attributes:
        kind: L, see `objectives.preference`.
        beta: β.
        length_normalized: True to use means over an answer's tokens in L instead of sums.
        gt_reward_scale: η of the RPO losses, which aim at β·Δ = η·(s_w − s_l).
        preference_coef: w_p.
        sft_coef: w_s, the weight of the negative log-likelihood of chosen answers.
        sft_length_normalized: True to average that log-likelihood over an answer's tokens.
        label_smoothing: ε of `dpo` and `robust`.
    """

    kind: PreferenceLoss = "dpo"
    beta: float = 0.1
    length_normalized: bool = False
    gt_reward_scale: float = 1.0
    preference_coef: float = 1.0
    sft_coef: float = 0.0
    sft_length_normalized: bool = False
    label_smoothing: float = 0.0
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.logprob is not None, (
            "a preference loss needs a head that gives log-probabilities"
        )
        mask_N = batch.mask
        logprob_N = zero_outside_mask(outputs.logprob, mask_N)
        length_B = batch.per_sample(mask_N.long())
        ratio_B = batch.per_sample(logprob_N - zero_outside_mask(batch["ref_logprob"], mask_N))  # d
        if self.length_normalized:
            ratio_B = ratio_B / length_B.clamp(min=1)
        chosen_P, rejected_P = split_pairs(batch, ratio_B)
        preference_P = self._compute_pair_losses(chosen_P - rejected_P, batch)
        surprise_P, _ = split_pairs(batch, -batch.per_sample(logprob_N))
        if self.sft_length_normalized:
            surprise_P = surprise_P / split_pairs(batch, length_B)[0].clamp(min=1)
        total, metrics = _sum_losses(
            batch, preference_P, surprise_P, (self.preference_coef, self.sft_coef)
        )
        rewards = (self.beta * chosen_P, self.beta * rejected_P)
        active_P = active_pairs(batch)
        if "judge_pair" not in batch.sample:
            return total, metrics + _measure_answers(batch, rewards, active_P)
        judge_P, _ = split_pairs(batch, batch["judge_pair"])
        metrics += _measure_answers(batch, rewards, active_P & ~judge_P)
        judged_P = active_P & judge_P
        learned = Metrics(
            preference_loss=Mean(
                zero_outside_mask(preference_P.detach(), judged_P).sum(), judged_P.sum()
            )
        )
        return total, metrics + (learned + measure_pairs(batch, rewards, judged_P)).with_prefix(
            "judge_pairs"
        )

    def _compute_pair_losses(self, gap_P: Tensor, batch: Batch) -> Tensor:
        """Computes L of each pair from Δ. Returns [P]."""
        match self.kind:
            case "dpo":
                return preference.conservative_dpo(gap_P, self.beta, self.label_smoothing)
            case "robust":
                return preference.robust_dpo(gap_P, self.beta, self.label_smoothing)
            case "ipo":
                return preference.ipo_loss(gap_P, self.beta)
            case "scale":
                return preference.dpo_scaled_by_scores(gap_P, self.beta, _score_gap(batch))
            case "rpo_sq":
                return preference.rpo_squared(
                    gap_P, self.beta, self.gt_reward_scale * _score_gap(batch)
                )
            case "rpo_bwd_kl":
                return preference.rpo_backward_kl(
                    gap_P, self.beta, self.gt_reward_scale * _score_gap(batch)
                )
            case "rpo_fwd_kl":
                return preference.rpo_forward_kl(
                    gap_P, self.beta, self.gt_reward_scale * _score_gap(batch)
                )
            case _:
                assert_never(self.kind)


def _score_gap(batch: Batch) -> Tensor:
    """Score of the chosen answer minus the score of the rejected one [P]."""
    better_P, worse_P = split_pairs(batch, batch["score"])
    # A pair that is not trained on may lack scores, and NaN must not reach other pairs' gradients.
    return zero_outside_mask(better_P - worse_P, active_pairs(batch))


def _measure_answers(batch: Batch, rewards: tuple[Tensor, Tensor], active_P: Tensor) -> Metrics:
    """Metrics of pairs of answers, including their judge's scores."""
    metrics = measure_pairs(batch, rewards, active_P)
    if "score" in batch.sample:
        names = ("chosen_generated_rewards", "rejected_generated_rewards")
        metrics += _average_pairs(names, split_pairs(batch, batch["score"]), active_P)
    return metrics


def measure_pairs(batch: Batch, rewards: tuple[Tensor, Tensor], active_P: Tensor) -> Metrics:
    """Measures the rewards and lengths of both answers of each pair."""
    length_B = batch.per_sample(batch.mask.long())
    lengths = _average_pairs(
        ("chosen_lengths", "reject_lengths"), split_pairs(batch, length_B), active_P
    )
    return measure_implicit_rewards(*rewards, active_P) + lengths


def measure_implicit_rewards(chosen_P: Tensor, rejected_P: Tensor, active_P: Tensor) -> Metrics:
    """Measures rewards (DPO: β·d, the implicit reward) and how often they rank pairs as labeled."""
    chosen_P = chosen_P.detach()
    rejected_P = rejected_P.detach()
    both = zero_outside_mask(torch.cat([chosen_P, rejected_P]).double(), active_P.repeat(2))
    count = 2 * active_P.sum()
    right = zero_outside_mask((chosen_P > rejected_P).float(), active_P).sum()
    return _average_pairs(
        ("rewards_chosen_mean", "rewards_rejected_mean"), (chosen_P, rejected_P), active_P
    ) + Metrics(
        acc=Mean(right, active_P.sum()),
        rewards_all_mean=Mean(both.sum(), count),
        rewards_all_std=StandardDeviation(count, both.sum(), both.square().sum()),
    )


def measure_acc_interval(metrics: Metrics) -> Metrics:
    """The 95 % interval of `acc`, over pairs: `acc_low` and `acc_high`."""
    acc = metrics["acc"]
    assert isinstance(acc, Mean), "acc is the share of correctly ranked pairs"
    right = int(acc.total)
    pairs = int(acc.count)
    return share([1.0] * right + [0.0] * (pairs - right)).build_interval_metrics("acc")


def _average_pairs(
    names: tuple[str, str], pair: tuple[Tensor, Tensor], active_P: Tensor
) -> Metrics:
    """Means of a column over the chosen and the rejected answers of active pairs."""
    totals = (zero_outside_mask(column_P.float(), active_P).sum() for column_P in pair)
    return Metrics(
        {name: Mean(total, active_P.sum()) for name, total in zip(names, totals, strict=True)}
    )


@dataclass(frozen=True)
class SimPOLoss:
    """Σ −log σ(β·Δ − γ) − w_s·log π(y_w) over pairs, with token means for Δ and log π(y_w).

    Attributes:
        beta: β.
        margin: γ.
        sft_coef: w_s; 0 in the paper.
    """

    beta: float = 2.0
    margin: float = 1.0
    sft_coef: float = 0.0
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        chosen_P, rejected_P = _means_of_pairs(outputs, batch)
        loss_P = preference.simpo_loss(chosen_P - rejected_P, self.beta, self.margin)
        total, metrics = _sum_losses(batch, loss_P, -chosen_P, (1.0, self.sft_coef))
        rewards = self.beta * chosen_P, self.beta * rejected_P
        return total, metrics + measure_pairs(batch, rewards, active_pairs(batch))


@dataclass(frozen=True)
class ORPOLoss:
    """Σ −log π(y_w) − λ·log σ(log odds(y_w) − log odds(y_l)) over pairs, with means over tokens.

    Attributes:
        odds_ratio_coef: λ.
    """

    odds_ratio_coef: float = 0.1
    reads_entropy: ClassVar = False

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        chosen_P, rejected_P = _means_of_pairs(outputs, batch)
        loss_P = preference.odds_ratio(chosen_P, rejected_P)
        total, metrics = _sum_losses(batch, loss_P, -chosen_P, (self.odds_ratio_coef, 1.0))
        return total, metrics + measure_pairs(batch, (chosen_P, rejected_P), active_pairs(batch))


def _means_of_pairs(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean token log-probability of the chosen and the rejected answers, [P] each."""
    assert outputs.logprob is not None, "a loss of pairs needs a head that gives log-probabilities"
    length_B = batch.per_sample(batch.mask.long()).clamp(min=1)
    return split_pairs(
        batch, batch.per_sample(zero_outside_mask(outputs.logprob, batch.mask)) / length_B
    )


def _sum_losses(
    batch: Batch, preference_P: Tensor, surprise_P: Tensor, coefs: tuple[float, float]
) -> tuple[Tensor, Metrics]:
    """Sums a pair loss and the weighted NLL of the chosen answers over active pairs."""
    active_P = active_pairs(batch)
    sums = [zero_outside_mask(loss_P, active_P).sum() for loss_P in (preference_P, surprise_P)]
    total = coefs[0] * sums[0] + coefs[1] * sums[1]
    count = active_P.sum()
    named = {"preference_loss": sums[0], "sft_loss": sums[1], "loss": total}
    return total, Metrics({name: Mean(one.detach(), count) for name, one in named.items()})


@dataclass(frozen=True)
class BradleyTerry:
    """Σ −log σ(r_w − r_l − m) + c·(r_w + r_l)² over pairs whose answers have trainable tokens.

    A pair is two neighboring sequences of a batch with `group_size` 2, the chosen one first. r is
    the head's output at the last token of a sequence.

    Attributes:
        margin: True to use the difference of the pair's `score` column as m; else m = 0.
        center_rewards_coefficient: c.
    """

    margin: bool = False
    center_rewards_coefficient: float = 0.0
    reads_values: ClassVar[ValuePositions] = "final"

    @property
    def denominator(self) -> Denominator:
        return "pairs"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        assert outputs.final_value is not None, "a reward model needs a head that gives values"
        active_P = active_pairs(batch)
        chosen_P, rejected_P = split_pairs(batch, outputs.final_value)
        if self.margin:
            margin_P = _score_gap(batch)
        else:
            margin_P = chosen_P.new_zeros(chosen_P.shape)
        loss_P = preference.bradley_terry(chosen_P - rejected_P, margin_P)
        loss_P = loss_P + self.center_rewards_coefficient * (chosen_P + rejected_P).square()
        total = zero_outside_mask(loss_P, active_P).sum()
        rewards = measure_implicit_rewards(chosen_P, rejected_P, active_P)
        return total, Metrics(loss=Mean(total.detach(), active_P.sum())) + rewards
