"""Linear maps whose sums do not depend on the number of tensor-parallel ranks.

The maps after attention and at the end of an MLP sum over numbers that ranks divide among
themselves. One process, too, multiplies these in a fixed number of chunks, and adds the products in
fp32 by a fixed tree. A rank holds neighboring chunks, which are one subtree; the ranks' sums are
added by the top of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.parallel import RowwiseParallel
from torch.nn import functional as F
from transformers import PreTrainedConfig

from lockstep.models.families.registry import find_family
from lockstep.models.kernels import cast_as_autocast
from lockstep_logprobs.collectives import all_gather, group_size
from lockstep_logprobs.hidden import count_missing_rows
from lockstep_logprobs.kernel import runs_fused

_MOST = 8
"""Largest number of chunks, and so of tensor-parallel ranks."""

_kept_casts: ContextVar[dict[Tensor, Tensor] | None] = ContextVar("kept casts", default=None)


def count_chunks(config: PreTrainedConfig) -> int:
    """The number of chunks of a model's row-cut maps; tensor-parallel ranks must divide it.

    The largest power of two up to 8 that divides the fields that ranks divide; or, if their
    greatest common divisor is 3, 5 or 7, that number.
    """
    parallel = find_family(config).tensor_parallel
    if parallel is None:
        return 1
    fields = config.get_text_config().to_dict()
    common = gcd(*(fields[name] or 1 for name in parallel.divided_fields))
    if common % 2 and common <= _MOST:
        return common
    return gcd(common, _MOST)


def count_map_chunks(config: PreTrainedConfig, name: str) -> int:
    """The number of chunks of a linear map, by its name; 1 unless ranks divide its inputs."""
    parallel = find_family(config).tensor_parallel
    styles = {} if parallel is None else parallel.plan()
    row_cut = {
        key.rpartition(".")[2]
        for key, style in styles.items()
        if isinstance(style, RowwiseParallel)
    }
    # peft calls an adapted map `base_layer`
    if name.removesuffix(".base_layer").rpartition(".")[2] in row_cut:
        return count_chunks(config)
    return 1


def multiply_in_chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    chunks: int,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Batch-invariant `F.linear`, summed over chunks of columns; differentiable.

    Args:
        x: Input [..., T, K]; over ranks, this rank's columns for all T tokens.
        weight: Weight [N, K]; over ranks, this rank's columns.
        bias: Bias [N], added last.
        chunks: Number of chunks in K.
        group: Ranks that hold the columns; each gets the result for its share of the tokens [...,
            T / ranks, N].
    """
    (x,) = cast_as_autocast(x)
    return _ChunkedProduct.apply(x, _cast_weight(weight, x.dtype), bias, chunks, group)


@contextmanager
def keep_casts() -> Iterator[None]:
    """A context in which, without gradients, each weight is cast once, as autocast does."""
    _kept_casts.set({})
    try:
        yield
    finally:
        _kept_casts.set(None)


def add_tree(parts: Iterator[Tensor], count: int) -> Tensor:
    """Adds parts in fp32, in place: halves of an even number, an odd number in order."""
    if count % 2 == 0:
        left = add_tree(parts, count // 2)
        return left.float().add_(add_tree(parts, count // 2))
    total = next(parts)
    for _ in range(count - 1):
        total = total.float().add_(next(parts))
    return total


def _cast_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    kept = _kept_casts.get()
    if weight.dtype == dtype or torch.is_grad_enabled() or kept is None:
        return weight.to(dtype)
    if weight not in kept:
        kept[weight] = weight.to(dtype)
    return kept[weight]


def _multiply_chunks(rows: Tensor, weight: Tensor, chunks: int) -> Iterator[Tensor]:
    """The product of each chunk, in order; on CPUs with padded rows."""
    width = rows.shape[1] // chunks
    pairs = zip(rows.split(width, 1), weight.split(width, 1), strict=True)
    if runs_fused(rows):
        from lockstep.models.exact.fused.products import multiply_tiles

        for part, columns in pairs:
            yield multiply_tiles(part, columns, None)
        return
    missing = count_missing_rows(len(rows), weight[:, :width])
    for part, columns in pairs:
        filled = F.pad(part, (0, 0, 0, missing)) if missing else part
        yield torch.mm(filled, columns.t())[: len(rows)]


class _ChunkedProduct(torch.autograd.Function):
    """Products of chunks, added by a tree; backward takes the full products."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunks: int,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        rows = x.flatten(0, -2)
        ctx.save_for_backward(rows, weight)
        ctx.shape = x.shape
        ctx.has_bias = bias is not None
        ctx.group = group
        total = add_tree(_multiply_chunks(rows, weight, chunks), chunks)
        total = total.view(*x.shape[:-1], len(weight))
        if group is not None:
            ranks = group_size(group)
            sent = total.unflatten(-2, (ranks, -1)).movedim(-3, 0).contiguous()
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group)
            total = add_tree(iter(received.unbind()), ranks)
        if bias is not None:
            total = total.float() + bias
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (rows, weight) = ctx.saved_tensors
        (gradient,) = grad_outputs
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.has_bias else None
        if ctx.group is not None:
            gradient = all_gather(gradient, ctx.group).movedim(0, -3)
        slope = gradient.reshape(len(rows), len(weight))
        of_x = (slope @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        of_weight = slope.mT @ rows if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_bias, None, None
