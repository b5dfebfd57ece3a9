"""Log-probabilities and entropy from hidden states: the logits are multiplied out tile by tile and never exist whole.

The sums, exchange and gradient are those of `softmax`. Forward takes one matrix product; backward three, one of which
makes the logits anew. A tile is some rows by some columns, so memory does not grow with the vocabulary; columns are the
outer loop, so that each piece of the head has its gradient finished in fp32 before it is rounded.

Letters: M rows, D hidden size, v this rank's columns of the vocabulary, K tokens asked for in each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lockstep.distributed.checks import check_head, check_tokens
from lockstep.distributed.reduce import replicated
from lockstep.distributed.shard import blocks
from lockstep.distributed.softmax import (
    PLAIN,
    RowSums,
    Scores,
    Scoring,
    block_sums,
    exchange,
    keep,
    kept,
    picked,
)

_TILE_COLUMNS = 2048


def hidden_logprobs(
    hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring = PLAIN
) -> tuple[Tensor, Tensor | None]:
    """`vocab.vocab_logprobs` of the logits hidden · weightᵀ; backward sums the hidden states' gradient over the ranks.

    Matrix products run in the type of the weight, or of autocast as those of `nn.Linear` do. The head's gradient is
    summed in fp32, and is not computed for a head that is frozen.

    Args:
        hidden_MD: Hidden states, the same on all ranks.
        weight_vD: This rank's rows of the output head.
        token_MK: Token ids of the whole vocabulary, int64, the same on all ranks.
        scoring: Shard, temperature, and whether to compute the entropy.

    Returns:
        log p, nats, fp32 [M, K], with value and gradient 0 for ids outside the vocabulary; H, nats, fp32 [M], or None.

    Raises:
        ValueError: Shapes or types do not fit.
        RuntimeError: The ranks' shards overlap, or leave a gap.
    """
    check_head(hidden_MD, weight_vD)
    check_tokens(token_MK, len(hidden_MD))
    device = weight_vD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_vD.dtype
    with torch.autocast(device, enabled=False):
        hidden_MD = replicated(hidden_MD.to(dtype), scoring.shard.group)
        return _HiddenScores.apply(hidden_MD, weight_vD, token_MK, scoring)


class _HiddenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor | None]:
        scores = score(hidden_MD, weight_vD, token_MK, scoring)
        keep(ctx, scores, scoring, None, hidden_MD, weight_vD)
        ctx.set_materialize_grads(False)  # an entropy that no loss uses costs nothing
        return scores.logprob.clone(), None if scores.entropy is None else scores.entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        return *score_gradient(ctx, *grad_outputs, *ctx.needs_input_grad[:2]), None, None


def score(hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring) -> Scores:
    """The forward pass of `hidden_logprobs`."""
    sums = RowSums.of_nothing(len(hidden_MD), scoring.entropy, hidden_MD.device)
    picked_MK = torch.zeros_like(token_MK, dtype=torch.float32)
    for columns, head_cD in _pieces(weight_vD, hidden_MD.dtype):
        start = scoring.shard.start + columns.start
        for rows, z, work in _tiles(hidden_MD, head_cD, scoring.most_rows):
            picked_MK[rows] += picked(z, token_MK[rows], start)
            sums[rows] = sums[rows].joined(block_sums(z, work, None, scoring), scoring.temperature)
    return exchange(sums, picked_MK, token_MK, len(weight_vD), scoring, None)


def score_gradient(
    ctx: Any, gradient_MK: Tensor | None, gradient_M: Tensor | None, of_hidden: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the hidden states (this rank's share of their sum) and of this rank's rows of the head."""
    pull, (hidden_MD, weight_vD) = kept(ctx, gradient_MK, gradient_M)
    hidden_sum = torch.zeros_like(hidden_MD, dtype=torch.float32) if of_hidden else None
    weight_gradient = torch.empty_like(weight_vD) if of_weight else None
    for columns, head_cD in _pieces(weight_vD, hidden_MD.dtype):
        head_sum = None if weight_gradient is None else _zeros_in(weight_gradient[columns])
        for rows, z, work in _tiles(hidden_MD, head_cD, ctx.scoring.most_rows):
            pull[rows].write_(work, z, ctx.scoring.shard.start + columns.start)
            gradient = z.copy_(work)  # in the type of the matrix products; where that is fp32 they are one
            if hidden_sum is not None:
                _add_product_(hidden_sum[rows], gradient, head_cD)
            if head_sum is not None:
                _add_product_(head_sum, gradient.t(), hidden_MD[rows])
        if weight_gradient is not None and head_sum is not None:
            weight_gradient[columns] = head_sum
    return None if hidden_sum is None else hidden_sum.to(hidden_MD.dtype), weight_gradient


def _pieces(weight_vD: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive columns of the vocabulary, with their rows of the head in the type of the matrix products."""
    for start in range(0, len(weight_vD), _TILE_COLUMNS):
        columns = slice(start, min(start + _TILE_COLUMNS, len(weight_vD)))
        yield columns, weight_vD[columns].to(dtype)


def _tiles(hidden_MD: Tensor, head_cD: Tensor, most_rows: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows with their logits for a piece of the head, and fp32 memory of that shape, the same if they are."""
    memory: Tensor | None = None
    for rows in blocks(len(hidden_MD), len(head_cD), hidden_MD.device, most_rows):
        hidden = hidden_MD[rows]
        if memory is None:
            memory = hidden.new_empty(len(hidden), len(head_cD))
        z = torch.mm(hidden, head_cD.t(), out=memory[: len(hidden)])
        yield rows, z, z if z.dtype == torch.float32 else torch.empty_like(z, dtype=torch.float32)


def _zeros_in(piece_cD: Tensor) -> Tensor:
    """Zeros to sum up in, fp32: in the gradient's own memory where that is fp32."""
    return piece_cD.zero_() if piece_cD.dtype == torch.float32 else torch.zeros_like(piece_cD, dtype=torch.float32)


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a·b, all sums in fp32: a product in a narrower type would be rounded to it before it is added."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        total.add_(torch.mm(a, b, out_dtype=total.dtype))
    else:  # no such product on a CPU; two bf16 numbers multiply exactly in fp32
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
