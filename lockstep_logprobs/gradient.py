"""Gradients of logits from those of log-probabilities and entropies; no communication.

Letters: M rows, v this rank's columns, K wanted tokens in each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lockstep_logprobs.softmax import (
    LOG2_E,
    NOTHING,
    RowScores,
    Scoring,
    locate_tokens,
    support_mask,
    to_fp32,
    write_log2_probability,
)


@dataclass(frozen=True)
class RowGradient:
    """The few numbers per row that turn the row's logits into their gradient.

    For the gradient g of log p of the tokens and h of the entropy,

        ∂/∂z_j  =  [Σ_k g_k 1[j = t_k]  +  p_j · (c − h·log p_j)] / T,    c = −Σ_k g_k − h·H

    Attributes:
        maximum: m [M].
        log_total: log Σ exp d [M].
        slope: h/T [M], or None.
        offset: c/T [M].
        token: Tokens, −1 for those in no shard [M, K].
        own: Addition to the tokens' own columns [M, K].
        floor: The support is {z ≥ floor} [M], or None.
        temperature: T.
    """

    SCHEMA: ClassVar = (
        "Tensor maximum, Tensor log_total, Tensor? slope, Tensor offset, Tensor "
        "token, Tensor own, Tensor? floor"
    )
    """The tensors in a kernel's signature."""

    maximum: Tensor
    log_total: Tensor
    slope: Tensor | None
    offset: Tensor
    token: Tensor
    own: Tensor
    floor: Tensor | None
    temperature: float

    @classmethod
    def from_scores(
        cls,
        scores: RowScores,
        scoring: Scoring,
        floor_M: Tensor | None,
        gradient_MK: Tensor | None,
        gradient_M: Tensor | None,
    ) -> RowGradient:
        """The numbers for the gradients of log p and the entropy; None if no loss uses one."""
        if gradient_MK is None:
            own_MK = torch.zeros_like(scores.logprob)
        else:
            own_MK = gradient_MK.float()
        own_MK = own_MK.masked_fill(scores.token < 0, 0.0).div_(scoring.temperature)
        offset = -own_MK.sum(-1)
        slope = None
        if scores.entropy is not None and gradient_M is not None:
            slope = gradient_M.float() / scoring.temperature
            offset = offset - slope * scores.entropy
        if scores.outside is not None and not scoring.sampled:
            own_MK = own_MK.masked_fill(scores.outside, 0.0)
        elif scores.outside is not None:
            if slope is None:
                force_M = offset
            else:
                force_M = offset - slope * scores.logprob[:, 0].clamp(min=NOTHING)
            own_MK = own_MK + torch.where(
                scores.outside, scores.logprob.exp() * force_M[:, None], 0.0
            )
        return cls(
            scores.maximum,
            scores.log_total,
            slope,
            offset,
            scores.token,
            own_MK,
            floor_M,
            scoring.temperature,
        )

    @property
    def schema_tensors(
        self,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor | None]:
        """The tensors in the order of `SCHEMA`."""
        return (
            self.maximum,
            self.log_total,
            self.slope,
            self.offset,
            self.token,
            self.own,
            self.floor,
        )

    def __getitem__(self, rows: slice) -> RowGradient:
        """The numbers of a subset of rows."""
        return RowGradient(
            self.maximum[rows],
            self.log_total[rows],
            None if self.slope is None else self.slope[rows],
            self.offset[rows],
            self.token[rows],
            self.own[rows],
            None if self.floor is None else self.floor[rows],
            self.temperature,
        )

    def write_gradient_(self, work: Tensor, z: Tensor, start: int) -> None:
        """Writes ∂/∂z into `work`, fp32, for logits z of these rows and columns from `start` on."""
        z = to_fp32(z, work)
        inside = support_mask(z, self.floor)
        write_log2_probability(work, z, self.maximum, self.log_total, self.temperature)
        if self.slope is None:
            work.exp2_().mul_(self.offset[:, None])
        else:
            probability = work.clamp_(min=NOTHING).exp2()
            work.mul_(-self.slope[:, None] / LOG2_E).add_(self.offset[:, None]).mul_(probability)
        if inside is not None:
            work.mul_(inside)
        column_MK, inside_MK = locate_tokens(self.token, start, work.shape[1])
        work.scatter_add_(1, column_MK, self.own.masked_fill(~inside_MK, 0.0))


def save_for_gradient(
    ctx: Any, scores: RowScores, scoring: Scoring, floor_M: Tensor | None, *inputs: Tensor
) -> None:
    """Saves the inputs and a few numbers per row on an autograd context, for the gradient.

    The scores are saved without a copy: return clones of them, which a caller may change in place.
    """
    ctx.scoring = scoring
    ctx.save_for_backward(
        scores.logprob,
        scores.entropy,
        scores.maximum,
        scores.log_total,
        scores.token,
        scores.outside,
        floor_M,
        *inputs,
    )


def load_gradient(
    ctx: Any, gradient_MK: Tensor | None, gradient_M: Tensor | None
) -> tuple[RowGradient, list[Tensor]]:
    """Loads the inputs of `save_for_gradient`, and the `RowGradient` of the incoming gradients.

    Reads `ctx.saved_tensors` once: each read runs the unpack hooks, and activation checkpointing
    allows only one.
    """
    *numbers, floor_M = (saved := ctx.saved_tensors)[:7]
    return RowGradient.from_scores(
        RowScores(*numbers), ctx.scoring, floor_M, gradient_MK, gradient_M
    ), list(saved[7:])
