"""Log-probabilities and entropy from hidden states, without full logits.

Logits are multiplied out tile by tile. The sums, exchange and gradient are those of `softmax`.
Forward takes one matrix product; backward three, one of which recomputes the logits. A tile is some
rows by some columns, so memory does not grow with the vocabulary; columns are the outer loop, so
that the gradient of each piece of the head is summed in fp32 before it is rounded.

Letters: M rows, D hidden size, v this rank's columns of the vocabulary, K wanted tokens in each
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.checks import check_head, check_tokens
from lockstep_logprobs.collectives import sum_gradient
from lockstep_logprobs.gradient import RowGradient, load_gradient, save_for_gradient
from lockstep_logprobs.kernel import load_fused, register_kernel, runs_fused
from lockstep_logprobs.shard import split_rows
from lockstep_logprobs.softmax import (
    PLAIN,
    RowScores,
    RowSums,
    Scoring,
    column_tiles,
    pick_logits,
    reduce_over_ranks,
    sum_block,
)
from lockstep_logprobs.tiles import sum_shared_tiles

ROWS = 8
"""Row multiple at which a CPU's matrix products sum all rows in the same order, unless small."""

_SMALL = 4096
"""Largest number of multiplications in a bf16 product that sums in a different order.

PyTorch does not pass such products to oneDNN.
"""


def count_missing_rows(rows: int, weight: Tensor) -> int:
    """The number of zero rows that make a CPU product with `weight` sum all rows alike."""
    least = ROWS * (_SMALL // (ROWS * weight.numel()) + 1)
    if rows:
        return max(-rows % ROWS, least - rows)
    return 0


def hidden_logprobs(
    hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring = PLAIN
) -> tuple[Tensor, Tensor | None]:
    """`vocab.vocab_logprobs` of the logits hidden · weightᵀ.

    Backward sums the hidden states' gradient over the ranks. Matrix products run in the type of the
    weight, or of autocast as in `nn.Linear`. The head's gradient is summed in fp32, and is not
    computed for a frozen head.

    Args:
        hidden_MD: Hidden states, the same on all ranks.
        weight_vD: This rank's rows of the output head.
        token_MK: Global token ids, int64, the same on all ranks.
        scoring: Shard, temperature, and whether to compute the entropy.

    Returns:
        log p, nats, fp32 [M, K], with value and gradient 0 for ids outside the vocabulary; H, nats,
        fp32 [M], or None.

    Raises:
        ValueError: Shapes or types do not match.
        RuntimeError: The ranks' shards overlap or leave a gap.
    """
    check_head(hidden_MD, weight_vD)
    check_tokens(token_MK, len(hidden_MD))
    device = weight_vD.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = weight_vD.dtype
    with torch.autocast(device, enabled=False):
        hidden_MD = sum_gradient(hidden_MD.to(dtype), scoring.shard.group)
        return _HiddenScores.apply(hidden_MD, weight_vD, token_MK, scoring)


class _HiddenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor | None]:
        scores = score_hidden(hidden_MD, weight_vD, token_MK, scoring)
        save_for_gradient(ctx, scores, scoring, None, hidden_MD, weight_vD)
        ctx.set_materialize_grads(False)  # an entropy that no loss uses costs nothing
        return scores.logprob.clone(), None if scores.entropy is None else scores.entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        row, (hidden_MD, weight_vD) = load_gradient(ctx, *grad_outputs)
        of_hidden, of_weight = ctx.needs_input_grad[:2]
        return (
            *score_gradient(row, hidden_MD, weight_vD, ctx.scoring, of_hidden, of_weight),
            None,
            None,
        )


def score_hidden(
    hidden_MD: Tensor, weight_vD: Tensor, token_MK: Tensor, scoring: Scoring
) -> RowScores:
    """The forward pass of `hidden_logprobs`."""
    if scoring.row_invariant and scoring.shard.group is not None:
        sums_RM, picked_MK = sum_shared_tiles(
            lambda *at: _multiply_tile(hidden_MD, weight_vD, *at),
            len(weight_vD),
            token_MK,
            scoring,
        )
    else:
        sums_RM, picked_MK = _hidden_row_sums(
            hidden_MD,
            weight_vD,
            token_MK,
            scoring.shard.start,
            scoring.temperature,
            scoring.entropy,
            scoring.max_rows,
            scoring.row_invariant,
        )
    return reduce_over_ranks(
        RowSums.from_rows(sums_RM), picked_MK, token_MK, len(weight_vD), scoring, None
    )


def score_gradient(
    row: RowGradient,
    hidden_MD: Tensor,
    weight_vD: Tensor,
    scoring: Scoring,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of hidden states (this rank's share of the sum) and of this rank's head rows."""
    hidden_gradient, weight_gradient = _hidden_gradients(
        hidden_MD,
        weight_vD,
        *row.schema_tensors,
        row.temperature,
        scoring.shard.start,
        scoring.max_rows,
        of_hidden,
        of_weight,
    )
    return hidden_gradient if of_hidden else None, weight_gradient if of_weight else None


@register_kernel(
    "(Tensor hidden, Tensor weight, Tensor token, int start, float temperature, bool entropy, "
    "int? max_rows, bool row_invariant) -> (Tensor, Tensor)",
    lambda hidden, weight, token, start, temperature, entropy, max_rows, row_invariant: (
        hidden.new_empty((2 + entropy, hidden.shape[0]), dtype=torch.float32),
        token.new_empty(token.shape, dtype=torch.float32),
    ),
    fused="hidden",
)
def _hidden_row_sums(
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    start: int,
    temperature: float,
    entropy: bool,
    max_rows: int | None,
    row_invariant: bool,
) -> tuple[Tensor, Tensor]:
    """`vocab._row_sums` for logits that are multiplied out tile by tile."""
    sums = RowSums.build_empty(len(hidden), entropy, hidden.device)
    tiles_RM = [sums.stack_rows()]
    picked_MK = torch.zeros_like(token, dtype=torch.float32)
    for columns, head_cD in _split_head(weight, hidden.dtype, row_invariant):
        for rows, z, work in _compute_tiles(hidden, head_cD, max_rows, row_invariant):
            picked_MK[rows] += pick_logits(z, token[rows], start + columns.start)
            sums[rows] = sum_block(z, work, None, temperature, entropy, row_invariant)
        tiles_RM.append(sums.stack_rows())
    sums = RowSums.from_rows(torch.stack(tiles_RM, -1)).merge_tiles(temperature)
    return sums.stack_rows(), picked_MK


def _allocate_gradient(needed: bool, x: Tensor) -> Tensor:
    """Memory for a gradient of x; empty if not needed, as kernels always return a tensor."""
    if needed:
        return torch.empty_like(x)
    return x.new_empty(0)


@register_kernel(
    f"(Tensor hidden, Tensor weight, {RowGradient.SCHEMA}, float temperature, int start, int? "
    "max_rows, bool of_hidden, bool of_weight) -> (Tensor, Tensor)",
    lambda hidden, weight, *args: (
        _allocate_gradient(args[-2], hidden),
        _allocate_gradient(args[-1], weight),
    ),
)
def _hidden_gradients(
    hidden: Tensor,
    weight: Tensor,
    maximum: Tensor,
    log_total: Tensor,
    slope: Tensor | None,
    offset: Tensor,
    token: Tensor,
    own: Tensor,
    floor: Tensor | None,
    temperature: float,
    start: int,
    max_rows: int | None,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    row = RowGradient(maximum, log_total, slope, offset, token, own, floor, temperature)
    if of_hidden:
        hidden_sum = torch.zeros_like(hidden, dtype=torch.float32)
    else:
        hidden_sum = None
    weight_gradient = _allocate_gradient(of_weight, weight)
    if runs_fused(hidden):
        tiles = load_fused("hidden", "gradient_tiles")
    else:
        tiles = _gradient_tiles
    for columns, head_cD in _split_head(weight, hidden.dtype):
        head_sum = _allocate_zeros(weight_gradient[columns]) if of_weight else None
        for rows, gradient in tiles(hidden, head_cD, row, start + columns.start, max_rows):
            if hidden_sum is not None:
                _add_product_(hidden_sum[rows], gradient, head_cD)
            if head_sum is not None:
                _add_product_(head_sum, gradient.t(), hidden[rows])
        if head_sum is not None:
            weight_gradient[columns] = head_sum
    return hidden.new_empty(0) if hidden_sum is None else hidden_sum.to(
        hidden.dtype
    ), weight_gradient


def _split_head(
    weight_vD: Tensor, dtype: torch.dtype, row_invariant: bool = False
) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive vocabulary columns, with their head rows in the type of the matrix products."""
    for columns in column_tiles(len(weight_vD), row_invariant):
        yield columns, weight_vD[columns].to(dtype)


def _compute_tiles(
    hidden_MD: Tensor, head_cD: Tensor, max_rows: int | None, row_invariant: bool = False
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows, their logits for a piece of the head, and fp32 scratch of the same shape.

    If the logits are in fp32, the scratch is the logits.
    """
    memory: Tensor | None = None
    for rows in split_rows(len(hidden_MD), len(head_cD), hidden_MD.device, max_rows):
        hidden = hidden_MD[rows]
        if row_invariant:
            hidden = F.pad(hidden, (0, 0, 0, count_missing_rows(len(hidden), head_cD)))
        if memory is None:
            memory = hidden.new_empty(len(hidden), len(head_cD))
        z = torch.mm(hidden, head_cD.t(), out=memory[: len(hidden)])[: rows.stop - rows.start]
        yield rows, z, z if z.dtype == torch.float32 else torch.empty_like(z, dtype=torch.float32)


def _multiply_tile(hidden: Tensor, weight: Tensor, rows: slice, tile: slice) -> Tensor:
    """Logits of this rank's columns of a tile, by a product as wide as the tile.

    The number of columns decides in which order a product sums.
    """
    x = hidden[rows]
    head_cD = weight[max(tile.start, 0) : tile.stop].to(hidden.dtype)
    if not len(head_cD):
        return x[:, :0]
    before = max(-tile.start, 0)
    after = max(tile.stop - len(weight), 0)
    own = slice(before, before + len(head_cD))
    if before or after:
        head_cD = F.pad(head_cD, (0, 0, before, after))
    return torch.mm(F.pad(x, (0, 0, 0, count_missing_rows(len(x), head_cD))), head_cD.t())[
        : len(x), own
    ]


def _gradient_tiles(
    hidden_MD: Tensor, head_cD: Tensor, row: RowGradient, start: int, max_rows: int | None
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows with their logits' gradient for a piece of the head, in the products' type."""
    for rows, z, work in _compute_tiles(hidden_MD, head_cD, max_rows):
        row[rows].write_gradient_(work, z, start)
        yield rows, z.copy_(work)  # in fp32, z and work are the same tensor


def _allocate_zeros(piece_cD: Tensor) -> Tensor:
    """Zeros to accumulate in, fp32; the gradient's own memory if it is fp32."""
    if piece_cD.dtype == torch.float32:
        return piece_cD.zero_()
    return torch.zeros_like(piece_cD, dtype=torch.float32)


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a·b with fp32 sums; a product in a narrower type would round before the addition."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        total.add_(torch.mm(a, b, out_dtype=total.dtype))
    else:  # CPUs lack such a product; two bf16 numbers multiply exactly in fp32
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
