"""Repetition, presence and frequency penalties, the same for sampling and scoring.

They change logits before temperature and filters, in vLLM's order: first the repetition penalty
divides positive logits and multiplies the others, for all tokens of prompt and response; then the
frequency penalty is subtracted for each occurrence in the response, and the presence penalty once.

Letters: M rows of logits, m scored tokens, v this rank's columns, P pairs, N tokens of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams
from lockstep_logprobs.shard import WHOLE, Shard


@dataclass(frozen=True)
class EarlierTokens:
    """Earlier tokens of each row of logits: unique pairs of a row and a token.

    Attributes:
        row: Index of the row of logits, int64 [P].
        token: Id of the earlier token, int64 [P].
        times: Number of its earlier occurrences in the response, int64 [P]; 0 if only the prompt
            has it.
    """

    row: Tensor
    token: Tensor
    times: Tensor


def find_earlier(batch: Batch, own_m: Tensor) -> EarlierTokens:
    """Finds the tokens before some masked tokens of a batch.

    Args:
        batch: N tokens; the mask is on for all tokens of a response.
        own_m: Indices of the masked tokens, int64 [m], in any order.
    """
    row_N = batch.row
    count = batch.tokens.numel()
    key_N = (row_N << 32) + batch.tokens
    order_N = key_N.argsort(stable=True)
    sorted_N = key_N[order_N]
    begins_N = torch.ones_like(sorted_N, dtype=torch.bool)
    begins_N[1:] = sorted_N[1:] != sorted_N[:-1]
    # A token is the latest of its id for later places, up to the next token of that id or its
    # sequence's end.
    last_N = (torch.cumsum(batch.lengths, 0) - 1).to(row_N.device)[row_N]
    last_N[order_N[:-1]] = torch.where(begins_N[1:], last_N[order_N[:-1]], order_N[1:])
    one_N = batch.mask[order_N].long()
    sum_N = one_N.cumsum(0)
    before_N = (sum_N - one_N)[begins_N]
    within_N = sum_N - before_N[begins_N.long().cumsum(0) - 1]  # restarts where an id begins
    times_N = within_N[order_N.argsort()]
    ordered_m, place_m = own_m.sort()
    start_N = torch.searchsorted(ordered_m, torch.arange(count, device=own_m.device), right=True)
    pairs_N = (torch.searchsorted(ordered_m, last_N, right=True) - start_N).clamp_(min=0)
    source_P = torch.arange(count, device=own_m.device).repeat_interleave(pairs_N)
    within_P = (
        torch.arange(len(source_P), device=own_m.device) - (pairs_N.cumsum(0) - pairs_N)[source_P]
    )
    return EarlierTokens(
        place_m[start_N[source_P] + within_P], batch.tokens[source_P], times_N[source_P]
    )


def apply_penalties(
    logits_Mv: Tensor, earlier: EarlierTokens, sampling: SamplingParams, shard: Shard = WHOLE
) -> Tensor:
    """Logits, fp32 [M, v], with penalties on earlier tokens applied; differentiable.

    Args:
        logits_Mv: Logits of this rank's columns, of any floating type.
        earlier: Earlier tokens of each row.
        sampling: The penalties.
        shard: This rank's columns.
    """
    column_P = earlier.token - shard.start
    here_P = (column_P >= 0) & (column_P < logits_Mv.shape[1])
    cell = earlier.row[here_P], column_P[here_P]
    return _PenaltyFunction.apply(logits_Mv, *cell, earlier.times[here_P], sampling)


class _PenaltyFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_Mv: Tensor,
        row_P: Tensor,
        column_P: Tensor,
        times_P: Tensor,
        sampling: SamplingParams,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        z_P = logits_Mv[row_P, column_P].float()
        penalty = sampling.repetition_penalty
        factor_P = torch.where(z_P > 0, 1.0 / penalty, penalty)
        off_P = (
            sampling.frequency_penalty * times_P.float()
            + sampling.presence_penalty * (times_P > 0).float()
        )
        penalized_Mv = logits_Mv.to(torch.float32, copy=True)
        penalized_Mv[row_P, column_P] = z_P * factor_P - off_P
        ctx.save_for_backward(row_P, column_P, factor_P)
        ctx.dtype = logits_Mv.dtype
        return penalized_Mv

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, None, None, None, None]:
        (gradient_Mv,) = grad_outputs
        if gradient_Mv is None:
            return None, None, None, None, None
        row_P, column_P, factor_P = ctx.saved_tensors
        gradient_Mv = gradient_Mv.clone()
        gradient_Mv[row_P, column_P] *= factor_P
        return gradient_Mv.to(ctx.dtype), None, None, None, None
