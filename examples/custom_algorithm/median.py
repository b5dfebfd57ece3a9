"""GRPO with a baseline of one's own, and with a loss of one's own. Everything else is inherited."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import lockstep
from lockstep.losses import Denominator, Mean, Outputs


class MedianBaseline(lockstep.PolicyGradient):
    """The baseline is the median reward of a group, which one lucky response does not move."""

    def advantages(self, batch: lockstep.Batch) -> Tensor:
        has_verdict = batch["score"].isfinite()
        rewards = batch["shaped_score"].where(has_verdict, torch.nan)
        groups = rewards.view(-1, self.grpo.num_generations)
        return (groups - groups.nanquantile(0.5, dim=1, keepdim=True)).nan_to_num().flatten()


@dataclass(frozen=True)
class ReinforceLoss:
    """−Σ A·log π over the trained tokens (Williams 1992): no ratio, no clipping."""

    @property
    def denominator(self) -> Denominator:
        return "tokens"

    def __call__(self, outputs: Outputs, batch: lockstep.Batch) -> tuple[Tensor, lockstep.Metrics]:
        assert outputs.logprob is not None
        total = -(batch["advantage"] * outputs.logprob).sum()  # log π is 0 where the mask is off
        return total, lockstep.Metrics(loss=Mean(total.detach(), batch.mask.sum()))


class MedianReinforce(MedianBaseline):
    """The median baseline, trained by REINFORCE."""

    def policy_loss(self) -> ReinforceLoss:
        return ReinforceLoss()
